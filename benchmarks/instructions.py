"""Instructions of the native hot path, counted by callgrind: the counts do not depend on the machine's load."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import Section, Target

RUST = Path(__file__).parents[1] / "rust"
DECISIONS = 20_000
MOST = {
    "fixed_window": 440,
    "sliding_window": 560,
    "token_bucket": 510,
    "short_log": 530,
    "sliding_log": 1000,
    "stepwise": 840,
    "calendar_window": 710,
    "three_limits": 1750,
    "new_keys": 2420,
}
"""The most instructions of one decision: a little more than it takes. A change that needs more says why here."""

MOST_HELD = {
    "fixed_window": 1430,
    "sliding_window": 1470,
    "token_bucket": 1480,
    "places": 1960,
    "ten_limits": 36200,
}
"""The most instructions of a hold and its settling, in a table in which each new hold replaces a settled one."""

MOST_OF_GATE = {
    "ten_rules": 4050,
    "two_hundred_rules": 4050,
    "new_paths": 4050,
    "strange_paths": 10000,
}
"""The most instructions of a gate with three rules for each request: to find these, to hash their keys, to decide."""

PROGRAMS = (
    ("core", "hot_path", MOST, "", ()),
    ("core", "held_path", MOST_HELD, "hold and settle: ", ("memory", "10000")),
    ("policy", "gate_path", MOST_OF_GATE, "gate: ", ()),
)
"""The programs: (crate, example, bounds, label of the rows, further arguments)."""


def count(path: Path, kind: str, decisions: int, folder: Path, more: Sequence[str]) -> int:
    """The number of instructions of a run."""
    out = folder / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(path), kind, str(decisions), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    match = re.search(r"Collected : (\d+)", done.stderr)
    assert match, done.stderr
    return int(match[1])


def run(quick: bool) -> Section:
    """Count a decision as the difference of two runs of different length."""
    text = (
        "Instructions that one decision takes in the native core (hash of the key, table, transition, answer); and a "
        "hold with its settling, of one limit or of ten limits of four keys. Those of a gate are of three rules that "
        "match a request, each with one limit, among all rules that its policy has."
    )
    columns = ("decision", "instructions", "at most")
    if not (shutil.which("valgrind") and shutil.which("cargo")):
        return Section("Instructions", text + " Not counted: valgrind or cargo is not at hand.", columns, [])
    rows = []
    is_met = True
    with tempfile.TemporaryDirectory() as folder:
        for crate, name, most_of, label, arguments in PROGRAMS:
            program = built(crate, name)
            for kind, most in most_of.items():
                more, fewer = (count(program, kind, share * DECISIONS, Path(folder), arguments) for share in (2, 1))
                each = (more - fewer) / DECISIONS
                is_met &= each <= most
                rows.append((label + kind.replace("_", " "), f"{each:,.0f}", f"{most:,}"))
    return Section(
        "Instructions",
        text,
        columns,
        rows,
        (Target("no decision takes more instructions than its bound", "see the table", is_met),),
    )


def built(crate: str, example: str) -> Path:
    """A program of the examples of a native crate."""
    manifest = str(RUST / "Cargo.toml")
    build = ["cargo", "build", "--quiet", "--release", "--manifest-path", manifest, "--package", f"headgate-{crate}"]
    subprocess.run([*build, "--example", example], check=True)
    return RUST / "target" / "release" / "examples" / example
