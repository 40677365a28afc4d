"""What a hit pays for holds that it does not use: the scripts of before holds and those of today, in turns."""

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
_TELL_CALLS = """
import json, sys
from headgate.decision import name_limits
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.redis.commands import Commands
texts, keys, prefix = json.load(sys.stdin)
told = []
for text in texts:
    limits, calls = Commands(name_limits(parse_limits(text), scope="bench", name="bench"), prefix, None), []
    for key in range(keys):
        call = next(limits.decide(Operation((f"user:{key}",), (1,))))
        calls.append([[word.hex() for word in words] for words in (call.keys, call.arguments)])
    told.append([call.script.text, calls])
json.dump(told, sys.stdout)
"""
"""Run by either version: the script of each text of limits, and the keys and arguments of a hit of each key."""


def run(quick: bool) -> Section:
    """Count the instructions of a Redis for hits of each kind."""
    rows, targets, rounds = [], [], 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        if program("redis-server") and program("valgrind") and _unpacked(Path(folder)):
            subjects = {**ADMITTING, **{f"{name}, refusing": text for name, text in REFUSING.items()}}
            with counted_redis(Path(folder)) as server:
                for name, (before, today) in _counted(server, Path(folder), subjects, rounds).items():
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
    """Whether the package of before holds is in a folder now: not without the repository's history."""
    archive = subprocess.run(["git", "archive", BEFORE, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode == 0:
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return archive.returncode == 0


def _counted(
    server: CountedRedis, folder: Path, subjects: dict[str, str], rounds: int
) -> dict[str, tuple[float, float]]:
    """The instructions of a hit of each subject: (before, today), the medians of all rounds."""
    client: Any = redis.Redis(port=server.port)
    texts = list(subjects.values())
    sources = (folder, "before"), (ROOT, "today")
    streams = list(zip(*(_streams(client, texts, source, prefix) for source, prefix in sources), strict=True))
    taken: list[tuple[list[float], list[float]]] = [([], []) for _ in subjects]
    for pair in streams:
        for stream in pair:  # each limit is known, or used up
            saturate(server.port, stream, 2 * len(stream))
    for _ in range(rounds):
        for own, pair in zip(taken, streams, strict=True):
            for which in (0, 1):
                server.instructions()
                saturate(server.port, pair[which], CALLS)
                own[which].append(server.instructions() / CALLS)
    return {name: (median(own[0]), median(own[1])) for name, own in zip(subjects, taken, strict=True)}


def _streams(client: Any, texts: list[str], source: Path, prefix: str) -> list[list[bytes]]:
    """The hits of each text of limits on each key, as a version of the package asks them."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "HEADGATE_CORE": "python"}
    told = subprocess.run(
        [sys.executable, "-c", _TELL_CALLS],
        input=json.dumps([texts, KEYS, prefix]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    streams = []
    for script, calls in json.loads(told.stdout):
        sha = client.script_load(script)
        stream = [command_of(sha, *([bytes.fromhex(word) for word in words] for words in call)) for call in calls]
        random.Random(1).shuffle(stream)
        streams.append(stream)
    return streams
