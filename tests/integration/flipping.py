"""Damage a zone's memory in one place after another, and call everything that reads it.

Every bit of every word of a few states, of a log's block, of a shard's notes, lock and records, of the cells of holds,
of the limits and of the header is flipped, one at a time, and then words all over the zone are overwritten with random
bits. Whatever the memory contains, a call may only return or raise StoreError, at once.

Run as a program, it prints one JSON object a part: `python flipping.py [RANDOM_PLACES]`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from headgate import Limiter, SharedStore
from headgate.errors import ArgumentError, ConfigError, StoreError
from headgate.operation import Receipt
from headgate.testing import ManualClock

SIZE = 128 << 10
LIMITS = (
    "5/hour fixed", "500/hour", "5/hour bucket", "9/hour leaky 5", "9/hour queue 5", "50/hour log",
    "5/hour burst 9 stepwise", "5/day in Europe/Zurich",
)  # fmt: skip
HELD = ("9 concurrent", "90/hour bucket", "9 concurrent; 50/hour log; 50/hour bucket")
MOST_HOLDS = 60
LINES = SIZE - (8 << 10)
CELLS = LINES - (MOST_HOLDS // 4 + 1) * 272 * 8 & -4096
"""Where the cells of holds begin, which lie behind the only shard."""

SHARD = 4096 + (32 << 10)
WORDS, RECORDS, SLOTS = SHARD + 48, SHARD + 256, SHARD + 256 + 256 * 32
ALL = (1 << 64) - 1


class World:
    """A zone that holds some keys of every algorithm, and its memory."""

    def __init__(self) -> None:
        path = Path("/dev/shm") / f"headgate-flipping-{os.getpid()}-{uuid4().hex}"
        self.store = SharedStore(path, size=SIZE, max_holds=MOST_HOLDS)
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), SIZE)
        path.unlink()
        self.clock = ManualClock(1_800_000_000_000_000)
        self.limiters = [Limiter(text, store=self.store, clock=self.clock) for text in LIMITS]
        self.limiters.append(Limiter("; ".join(LIMITS), store=self.store, clock=self.clock, name="all"))
        before = bytes(self.memory)
        for number, limiter in enumerate(self.limiters):
            for key in ("one", "two", "few", "many"):
                for _ in range({"one": 1, "two": 2, "few": 3, "many": 20}[key]):
                    limiter.hit(key)
                    self.clock.advance(1000 + number)
        self.holding = [Limiter(text, store=self.store, clock=self.clock, name="held") for text in HELD]
        for limiter in self.holding:
            for number in range(3):
                limiter.reserve("held", number + 1, id=name_of(limiter, number), lease=60 + number)
            limiter.commit(limiter.id_of("held", name_of(limiter, 0)), 0)
        now = bytes(self.memory)
        self.used = [place for place in range(SHARD, SIZE, 8) if now[place : place + 8] != before[place : place + 8]]
        self.whole = now
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def word(self, place: int) -> int:
        return int.from_bytes(self.whole[place : place + 8], sys.byteorder)

    def write(self, place: int, word: int) -> None:
        self.memory[place : place + 8] = (word & ALL).to_bytes(8, sys.byteorder)

    def restore(self) -> None:
        ctypes.memmove(self.address, self.whole, SIZE)

    def calls(self) -> Iterator[Callable[[], object]]:
        for limiter in self.limiters:
            for key in ("one", "many"):
                yield lambda limiter=limiter, key=key: limiter.peek(key, 2)  # type: ignore[misc]
                yield lambda limiter=limiter, key=key: limiter.hit(key)  # type: ignore[misc]
            bound = limiter.bound
            yield lambda bound=bound: bound.give_back(Receipt(("many",), (1,)), 10_000_000)  # type: ignore[misc]
            yield lambda bound=bound: bound.read(("two",))  # type: ignore[misc]
            yield lambda limiter=limiter: limiter.hit_many(["few", f"new {uuid4().hex}", "two"])  # type: ignore[misc]
            yield lambda limiter=limiter: limiter.reset("two")  # type: ignore[misc]
        for limiter in self.holding:
            for number in range(4):
                yield lambda limiter=limiter, number=number: self.hold(limiter, number)  # type: ignore[misc]
            yield lambda limiter=limiter: limiter.peek("held", 1)  # type: ignore[misc]
            yield lambda limiter=limiter: limiter.reset("held")  # type: ignore[misc]
        yield lambda: self.store.look("one")
        yield lambda: self.store.look("held")
        yield lambda: self.store.forget("many")
        yield self.store.stats
        yield self.store.info
        yield self.store.known_limits
        yield self.store._zone.check
        yield self.bind_another

    def hold(self, limiter: Limiter, number: int) -> None:
        name = name_of(limiter, number)
        whole_id = limiter.id_of("held", name)
        with suppress(ArgumentError):  # it may look like another hold
            limiter.reserve("held", number + 1, id=name, lease=60)
        with suppress(ArgumentError):
            limiter.extend(whole_id, lease=90, more=number % 2)
        with suppress(ArgumentError):
            limiter.commit(whole_id, number)

    def bind_another(self) -> None:
        with suppress(ConfigError):  # the table of limits may look full
            Limiter("7/minute log", store=self.store, clock=self.clock, name=f"n{uuid4().hex}").hit("new")

    def call_all(self, outcomes: Counter[str]) -> None:
        for call in self.calls():
            try:
                call()
                outcomes["answers"] += 1
            except StoreError as error:
                outcomes[type(error).__name__] += 1
        self.restore()
        self.store.probe()  # releases what the calls held


def name_of(limiter: Limiter, number: int) -> str:
    """Return the name of one of the holds of these limits."""
    return f"{number} of {'; '.join(map(str, limiter.limits))}"


def main() -> None:
    places = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    world = World()
    slots = [place for place in world.used if SLOTS <= place < CELLS]
    cells = [place for place in world.used if place >= CELLS]
    mask = 64
    parts = {
        "states and blocks": ([*slots[:: max(1, len(slots) // 120)]], mask),
        "cells of holds": (cells[:: max(1, len(cells) // 150)], 32),
        "notes": (range(WORDS, WORDS + 26 * 8, 8), mask),
        "records": (range(RECORDS, RECORDS + 8 * 8, 8), 8),
        "limits": (range(4096, 4096 + 3 * 64, 8), mask),
        "header": (range(0, 640, 8), 4),
        "lock": (range(SHARD, SHARD + 48, 8), 12),
    }
    for name, (words, bits) in parts.items():
        outcomes: Counter[str] = Counter()
        for place in words:
            for bit in range(0, 64, 64 // bits):
                faulthandler.dump_traceback_later(20, exit=True)  # a call that takes longer is stuck
                world.write(place, world.word(place) ^ 1 << bit)
                world.call_all(outcomes)
        print(json.dumps({"part": name, **outcomes}), flush=True)
    chance, outcomes = random.Random(7), Counter()
    for _ in range(places):
        faulthandler.dump_traceback_later(20, exit=True)
        for _ in range(chance.choice((1, 3, 30))):
            # The words of locks are left out: the C library may do anything with other bits there.
            place = chance.choice((*world.used, *range(WORDS, SIZE, 8 * 97), *range(4096, SHARD, 8 * 31)))
            if not SHARD <= place < WORDS:
                world.write(place, chance.choice((0, 1, ALL, chance.getrandbits(64), chance.getrandbits(20))))
        world.call_all(outcomes)
    print(json.dumps({"part": "anywhere", **outcomes}), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
