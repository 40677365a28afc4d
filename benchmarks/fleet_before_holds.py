"""The cost of holds for a hit that uses none: the scripts before there were holds and those of today, in turns."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import redis

from benchmarks.fleet import ADMITTING, REFUSING, command_of, saturate
from benchmarks.measuring import Section, Target
from benchmarks.servers import CountedRedis, counted_redis, program

ROOT = Path(__file__).parents[1]
BEFORE = "41101afad84ea3c0cbbdecd8051780c08d2a950f"
"""The last commit before holds."""

KEYS, CALLS = 128, 512
MOST = 1.02
_PRINT_CALLS = """
import json, sys
from headgate.decision import name_limits
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.redis.commands import Commands
texts, keys, prefix = json.load(sys.stdin)
scripts = []
for text in texts:
    limits, calls = Commands(name_limits(parse_limits(text), scope="bench", name="bench"), prefix, None), []
    for key in range(keys):
        call = next(limits.decide(Operation((f"user:{key}",), (1,))))
        calls.append([[word.hex() for word in words] for words in (call.keys, call.arguments)])
    scripts.append([call.script.text, calls])
json.dump(scripts, sys.stdout)
"""
"""Run by either version: the script of each text of limits, and the keys and arguments of a hit of each key."""


def run(quick: bool) -> Section:
    """Count the instructions of a Redis for hits of each kind."""
    rows, targets, rounds = [], [], 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        if program("redis-server") and program("valgrind") and _unpacked(Path(folder)):
            subjects = {**ADMITTING, **{f"{name}, refusing": text for name, text in REFUSING.items()}}
            with counted_redis(Path(folder)) as server:
                for name, (before, today) in _count_instructions(server, Path(folder), subjects, rounds).items():
                    ratio = today / before
                    rows.append((name, f"{before:,.0f}", f"{today:,.0f}", f"{ratio:.3f}"))
                    asked = f"{name}: a hit takes at most 2 % more of the server than before holds"
                    targets.append(Target(asked, f"{ratio - 1:+.1%}", ratio <= MOST))
    return Section(
        "Hits on Redis, before holds and today",
        f"Instructions of a Redis under callgrind for a hit, with the scripts of commit {BEFORE[:7]}, before there "
        "were holds, and with those of today, in turns on one server, with states of their own.",
        ("limit", "before", "today", "today by before"),
        rows,
        targets,
    )


def _unpacked(folder: Path) -> bool:
    """Unpack the package from before holds into a folder; False without the repository's history."""
    archive = subprocess.run(["git", "archive", BEFORE, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode == 0:
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return archive.returncode == 0


def _count_instructions(
    server: CountedRedis, folder: Path, subjects: dict[str, str], rounds: int
) -> dict[str, tuple[float, float]]:
    """The instructions of a hit of each subject: (before, today), the medians of all rounds."""
    client: Any = redis.Redis(port=server.port)
    texts = list(subjects.values())
    sources = (folder, "before"), (ROOT, "today")
    streams = list(zip(*(_streams(client, texts, source, prefix) for source, prefix in sources), strict=True))
    samples: list[tuple[list[float], list[float]]] = [([], []) for _ in subjects]
    for pair in streams:
        for stream in pair:  # each limit is known, or used up
            saturate(server.port, stream, 2 * len(stream))
    for _ in range(rounds):
        for times, pair in zip(samples, streams, strict=True):
            for which in (0, 1):
                server.instructions()
                saturate(server.port, pair[which], CALLS)
                times[which].append(server.instructions() / CALLS)
    return {name: (median(times[0]), median(times[1])) for name, times in zip(subjects, samples, strict=True)}


def _streams(client: Any, texts: list[str], source: Path, prefix: str) -> list[list[bytes]]:
    """The commands of hits of each text of limits on each key, as a version of the package sends them."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "HEADGATE_CORE": "python"}
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_CALLS],
        input=json.dumps([texts, KEYS, prefix]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    streams = []
    for script, calls in json.loads(done.stdout):
        sha = client.script_load(script)
        stream = [command_of(sha, *([bytes.fromhex(word) for word in words] for words in call)) for call in calls]
        random.Random(1).shuffle(stream)
        streams.append(stream)
    return streams
