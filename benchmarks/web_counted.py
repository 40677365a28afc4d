"""Web applications without a server: the instructions that a limiter adds to a request, counted by callgrind.

    python -m benchmarks.web_counted MODULE FUNCTION REQUESTS

answers so many requests by the application that a function of a module of `benchmarks.web_apps` builds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.measuring import Section
from benchmarks.web import BARE, COMPARISONS, CONSTANT, MANY, Comparison
from benchmarks.web_inside import asgi_caller, built

REQUESTS = 1000
LINE_BYTES = 64
COLUMNS = ("application", "limited by", "instructions", "added", "lines of code", "added")
COUNTED_SUBJECTS = {BARE, CONSTANT.name, "headgate", "headgate, policy"}

Place = tuple[str, int]
"""(the file of a program or library, the address of an instruction in it)"""


def run(quick: bool) -> Section:
    """Count a request of each application as the difference of two runs of different length."""
    text = (
        "What a request takes of the applications of the sections before, called in one process as their servers call "
        "them. Lines of code are the different 64 bytes of programs and libraries that most requests run: a processor "
        "fetches each anew where other code has taken its place meanwhile, which an application's own and its "
        "system's does between two requests."
    )
    if not shutil.which("valgrind"):
        return Section("Web applications, counted", text + " Not counted: valgrind is not at hand.", COLUMNS, [])
    rows: list[tuple[str, ...]] = []
    for comparison in COMPARISONS:
        if comparison.server == "uvicorn" and not comparison.body:
            rows += _rows(comparison, REQUESTS // 5 if quick else REQUESTS)
    return Section("Web applications, counted", text, COLUMNS, rows)


def _rows(comparison: Comparison, requests: int) -> Iterator[tuple[str, ...]]:
    subjects = [subject for subject in comparison.subjects if subject.name in COUNTED_SUBJECTS]
    runs = [(subject.function, share * requests) for subject in subjects for share in (1, 3)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as threads:
        count = partial(_count, Path(folder), comparison.module)
        counted = list(threads.map(count, *zip(*runs, strict=True)))
    bare, bare_lines = 0.0, 0
    for subject, fewer, more in zip(subjects, counted[::2], counted[1::2], strict=True):
        each = {place: (count - fewer[place]) / (2 * requests) for place, count in more.items()}
        lines = len({(file, address // LINE_BYTES) for (file, address), count in each.items() if count > 0.5})
        instructions = sum(each.values())
        if subject.name == BARE:
            bare, bare_lines = instructions, lines
            yield comparison.title.partition(",")[0], subject.name, f"{instructions:,.0f}", "", f"{lines:,}", ""
        else:
            added = f"{instructions - bare:,.0f}", f"{lines:,}", f"{lines - bare_lines:,}"
            yield comparison.title.partition(",")[0], subject.name, f"{instructions:,.0f}", *added


def _count(folder: Path, module: str, function: str, requests: int) -> Counter[Place]:
    """The executions of each instruction by a process that answers so many requests."""
    out = folder / f"{function}.{requests}"
    command = ["valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-pos=no", "--compress-strings=no"]
    command += [f"--callgrind-out-file={out}", sys.executable, "-m", "benchmarks.web_counted"]
    done = subprocess.run(
        [*command, module, function, str(requests)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{module}.{function} under valgrind: {done.stderr[-2000:]}")
    return _read(out)


def _read(out: Path) -> Counter[Place]:
    """The counts of a file of callgrind, without those of called functions, which follow each line `calls=`."""
    counts: Counter[Place] = Counter()
    file, is_of_call = "", False
    with out.open() as lines:
        for line in lines:
            if line.startswith("ob="):
                file = line[3:].rstrip()
            elif line.startswith("calls="):
                is_of_call = True
            elif line.startswith("0x"):
                if not is_of_call:
                    address, _, count = line.split()
                    counts[file, int(address, 16)] += int(count)
                is_of_call = False
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.web_counted", description=__doc__)
    parser.add_argument("module")
    parser.add_argument("function")
    parser.add_argument("requests", type=int)
    options = parser.parse_args()
    comparison = next(one for one in COMPARISONS if one.module == options.module)
    with asyncio.Runner() as runner:
        asgi_caller(runner, built(comparison, options.function, MANY), comparison)(options.requests)


if __name__ == "__main__":
    main()
