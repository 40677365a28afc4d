"""Kill a process at every change that it makes to the waiting lines of a zone, and check what it leaves.

The process is stepped by ptrace, and what it leaves is the memory as it was after each change, with the locks that it
held marked as a dead one's. A survivor must find each caller in line or not, those that stayed in their order, and all
the room of the others. Run as a program, it prints one JSON object an operation: `python line_killer.py [NAME]`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from killer import stay_on_one_core
from traced import Traced, libc, trace

from headgate import SharedStore

SIZE = 128 << 10
LOCKS = SIZE - (8 << 10)
DEAD = 0x4000_0000
BIG, SMALL, NEW = (bytes((number,)) * 16 + b"\3\1" for number in (1, 2, 3))  # of one bucket


class Caller(NamedTuple):
    """Who stands in a line: where its process sits, its number, and its ticket."""

    seat: tuple[int, int]
    number: int
    line: bytes
    ticket: tuple[int, int] = (0, 0)


class Lines:
    """A zone with callers in its lines: four in one and one in another, and two of a process that died before them."""

    def __init__(self) -> None:
        path = Path("/dev/shm") / f"headgate-killing-{os.getpid()}-{uuid4().hex}"
        self.store = SharedStore(path, size=SIZE)
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), SIZE)
        path.unlink()
        self.path = path
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.native: Any = self.store._zone.lines
        pid = self.let_other_process_join()
        self.seat = self.sit()
        callers = enumerate((BIG, BIG, SMALL, BIG, BIG), 1)
        self.callers = [self.join(number, line) for number, line in callers]
        assert self.is_first(self.callers[0]) is False
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def sit(self) -> tuple[int, int]:
        """A seat that a thread keeps, and does nothing."""
        seats: list[tuple[int, int]] = []
        sits, forever = threading.Event(), threading.Event()

        def hear(called: object) -> bool:
            sits.set()
            return forever.wait()

        threading.Thread(target=self.native.listen, args=(seats.append, hear, 1), daemon=True).start()
        assert sits.wait(30)
        [seat] = seats
        return seat

    def let_other_process_join(self) -> int:
        """The number of a process whose callers are the first of two lines."""
        if (pid := os.fork()) == 0:
            self.seat = self.sit()
            self.join(98, BIG)
            self.join(99, SMALL)
            os.kill(os.getpid(), signal.SIGSTOP)
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        return pid

    def join(self, number: int, line: bytes) -> Caller:
        joined = self.native.join(self.seat, number, line, (number,), (0, 0))
        return Caller(self.seat, number, line, joined[:2])

    def leave(self, caller: Caller, *, as_planned: bool = True) -> None:
        self.native.leave(*caller, as_planned=as_planned, planned=True)

    def is_first(self, caller: Caller) -> bool | None:
        first: bool | None = self.native.is_first(*caller)
        return first

    def seen(self, newcomer: Caller) -> list[int]:
        """The numbers of the callers that are in line, each line in its order; all leave it."""
        left, numbers = [caller for caller in (*self.callers, newcomer) if self.is_first(caller) is not None], []
        while left:
            firsts = [caller for caller in left if self.is_first(caller)]
            wanted = [next(caller for caller in left if caller.line == line) for line in lines_of(left)]
            assert firsts == wanted, f"{firsts} of {left}"
            for caller in firsts:
                numbers.append(caller.number)
                self.leave(caller)
                left.remove(caller)
        for line in (BIG, SMALL, NEW):
            assert self.native.waiting(line) == 0
        room = 0
        while self.native.join(self.seat, 1000 + room, NEW, (1,), (0, 0)):
            room += 1
        assert room == self.native.most_callers
        return sorted(numbers)


def lines_of(callers: list[Caller]) -> list[bytes]:
    return list(dict.fromkeys(caller.line for caller in callers))


def die_at_every_change(operate: Callable[[Lines], object]) -> dict[str, object]:
    stay_on_one_core()
    lines = Lines()
    keep = lines.memory[:]
    newcomer = Caller(lines.seat, 6, NEW if operate is OPERATIONS["a first caller joins"] else BIG)

    def judged() -> list[int]:
        found = lines.seen(newcomer)
        libc.memmove(lines.address, keep, SIZE)
        return found

    before = judged()
    operate(lines)
    after = judged()
    last = ctypes.create_string_buffer(keep, SIZE)
    images = []
    process = start(lines, operate)
    while process.step():
        if libc.memcmp(last, lines.address, SIZE) != 0:
            libc.memmove(last, lines.address, SIZE)
            images.append(last.raw)
    found = []
    for image in images:
        libc.memmove(lines.address, image, SIZE)
        for lock in range(LOCKS, LOCKS + 64 * (1 + lines.native.most_processes), 64):
            holder = int.from_bytes(lines.memory[lock : lock + 4], sys.byteorder)
            if holder & 0x3FFF_FFFF == process.pid:
                lines.memory[lock : lock + 4] = DEAD.to_bytes(4, sys.byteorder)
        found.append(judged())
        assert found[-1] in (before, after), f"{found[-1]} is neither {before} nor {after}"
    kinds = ["after" if each == after else "before" for each in found]
    return {
        "deaths": len(found),
        "before": kinds.count("before"),
        "after": kinds.count("after"),
        "same": before == after,
    }


def start(lines: Lines, operate: Callable[[Lines], object]) -> Traced:
    """A process that stands before the operation."""

    def stop_and_operate() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        operate(lines)

    return trace(stop_and_operate, lines.path)


OPERATIONS: dict[str, Callable[[Lines], object]] = {
    "a caller joins": lambda lines: lines.join(6, BIG),
    "a first caller joins": lambda lines: lines.join(6, NEW),
    "the first leaves": lambda lines: lines.leave(lines.callers[0]),
    "one in the middle leaves": lambda lines: lines.leave(lines.callers[1], as_planned=False),
    "the last leaves": lambda lines: lines.leave(lines.callers[4], as_planned=False),
    "the only one leaves": lambda lines: lines.leave(lines.callers[2]),
    "those of a dead process are passed over": lambda lines: lines.is_first(lines.callers[0]),
    "places are freed": lambda lines: lines.store.clear(),
}


def main() -> None:
    for name, operate in OPERATIONS.items():
        if sys.argv[1:] in ([], [name]):
            print(json.dumps({"operation": name, **die_at_every_change(operate)}), flush=True)


if __name__ == "__main__":
    main()
