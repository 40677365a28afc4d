"""The cost of Python's stable ABI for a hit: `python -m benchmarks.measure_stable_abi`, some ten minutes.

The native core is built for this Python and for the stable ABI, and callgrind counts the instructions of a hit in a
whole program of Python, as the difference of two runs of different length. The clock is one of tests, which costs both
nearly the same: valgrind cannot follow how the system's clock is read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HITS = {
    "a key": "hit('user:42')",
    "a key of two parts": "hit(('tenant 7', 'user:42'))",
    "a cost": "hit('user:42', cost=3)",
}
PROGRAM = """
from headgate import Limiter
from headgate.testing import ManualClock
hit = Limiter("1000000000/hour burst 1000000000", clock=ManualClock(1_800_000_000_000_000)).hit
for _ in range({hits}): {hit}
"""
FEWER, MORE = 5_000, 15_000


def build(folder: Path, name: str, suffix: str, *features: str) -> Path:
    """A folder with the package and this build of its native core."""
    target = ROOT / "rust" / "target" / "stable-abi" / name
    command = f"cargo rustc --quiet --release --lib --manifest-path {ROOT}/rust/python/Cargo.toml --crate-type cdylib"
    subprocess.run(
        [*command.split(), *features],
        env={**os.environ, "CARGO_TARGET_DIR": str(target), "PYO3_PYTHON": sys.executable},
        check=True,
    )
    package = folder / name
    shutil.copytree(ROOT / "src" / "headgate", package / "headgate", ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(target / "release" / "libheadgate_native.so", package / "headgate" / f"_native{suffix}")
    return package


def count(package: Path, hit: str, hits: int) -> int:
    """The number of instructions of a program with so many hits."""
    callgrind = "valgrind --tool=callgrind --callgrind-out-file=/dev/null"
    done = subprocess.run(
        [*callgrind.split(), sys.executable, "-c", PROGRAM.format(hits=hits, hit=hit)],
        env={**os.environ, "PYTHONPATH": str(package), "PYTHONHASHSEED": "0", "HEADGATE_CORE": "native"},
        capture_output=True,
        text=True,
        check=True,
    )
    match = re.search(r"Collected : (\d+)", done.stderr)
    assert match, done.stderr
    return int(match[1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for_one = build(Path(folder), "one-python", ".so")
        for_all = build(Path(folder), "stable", ".abi3.so", "--features", "pyo3/abi3-py311")
        for name, hit in HITS.items():
            one, stable = (
                (count(package, hit, MORE) - count(package, hit, FEWER)) / (MORE - FEWER)
                for package in (for_one, for_all)
            )
            print(f"{name}: {one:,.0f} instructions, {stable:,.0f} with the stable ABI ({stable / one - 1:+.1%})")


if __name__ == "__main__":
    main()
