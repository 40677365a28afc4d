"""Kill a process at one instruction after another of a decision, and check what it leaves in the zone.

The process is stepped by ptrace (`traced`). After every instruction that changes the zone's memory, and before
every one that will, a fresh process is killed with SIGKILL; then a survivor must get every lock,
find the zone whole, and find the decision charged in full or not at all.

Run as a program, it prints one JSON object a scenario: `python killer.py [DEATHS] [NAME]`. With a
number of DEATHS about so many processes are killed in each scenario, and as many of those that
mend, at points that are evenly spread; with 0 one at every instruction from the first change to the
last, whether it changes anything or not, which takes hours. `python killer.py stopped` stops
processes, and continues to decide; `python killer.py limits` kills one that takes back limits; `python
killer.py steps` counts changes by steps of both kinds.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import logging
import mmap
import os
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from traced import Traced, libc, trace

from headgate import Gate, Request, SharedStore, parse_limits
from headgate.decision import Decision, name_limits
from headgate.errors import StoreTimeout
from headgate.operation import Operation, Receipt
from headgate.stores.protocol import BoundLimits

libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
libc.memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
MOST_STEPS = 400_000


def stay_on_one_core() -> None:
    """With the processes that are started from now on: to wake one on another core takes longer than its step."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


class Scenario(NamedTuple):
    """What is there before, and what is done to it."""

    name: str
    size: int
    limits: str
    prepare: Callable[[World], object]
    operate: Callable[[World], object]
    keys: tuple[str, ...]
    """The keys of the decision: charged all, or none. Of several, each is in a shard of its own, in this order."""

    bystanders: int = 0
    """So many other keys (`other-0` and so on) must stay as they are."""

    lossy: bool = False
    """Whether bystanders may be let go for the new key."""

    log_percent: int = 25
    max_holds: int | None = None
    seen_us: int = NOW_US
    """The time at which the remaining units are read."""


class Clock:
    """A clock that stands still and can stop the process that reads it, which is close to the decision."""

    def __init__(self) -> None:
        self.moment_us = NOW_US
        self.stops = False

    def now_us(self) -> int:
        if self.stops:
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.moment_us

    def let_pass(self, duration_us: int) -> float:
        return 0.0


class World:
    """A zone, the limits bound to it, and its memory."""

    def __init__(self, size: int, log_percent: int, limits: str, keys: int, max_holds: int | None = None) -> None:
        path = Path("/dev/shm") / f"headgate-killing-{os.getpid()}-{uuid4().hex}"
        self.store = SharedStore(path, size=size, log_percent=log_percent, max_holds=max_holds)
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), size)
        path.unlink()
        self.path = path
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size = size
        self.clock = Clock()
        for _ in range(100):  # the interpreter has its own ways with what it has seen often
            self.clock.now_us()
        values = parse_limits(limits)
        self.one = self.bind(values, 1)
        self.all = self.bind(values, keys)
        self.names = self.keys_in_shards() if keys > 1 else {}

    def keys_in_shards(self) -> dict[str, str]:
        """Keys in shards of their own, by the names that scenarios have for them: "z" in the lowest, "a" and so on."""
        shards, plain = self.store.info()["shards"], self.bind(parse_limits("9/hour"), 1, scope="plain")
        first = 4096 + max(32 << 10, min(self.size // 64, 1 << 20)) // 4096 * 4096
        lines = min(max(self.size // 64, 8 << 10), 4 << 20) // 4096 * 4096
        end = self.size - lines - (-(-self.store.info()["max_holds"] // 4) + shards) * 272 * 8  # the cells of holds
        stride = (end // 4096 * 4096 - first) // shards
        stride -= (stride - 320) % 4096
        used = [slice(first + shard * stride + 48 + 16, first + shard * stride + 48 + 24) for shard in range(shards)]
        found: dict[int, str] = {}
        while len(found) < shards:
            before, key = [self.memory[place] for place in used], uuid4().hex
            plain.decide(Operation((key,), (1,)))
            [shard] = [shard for shard, place in enumerate(used) if self.memory[place] != before[shard]]
            found[shard] = key
        self.store.clear()
        return dict(zip("zabcdefgh", (found[shard] for shard in sorted(found)), strict=False))

    def bind(self, values: Any, groups: int, scope: str = "rule") -> BoundLimits:
        definitions = [
            named for group in range(groups) for named in name_limits(values, scope=scope, name="rule", group=group)
        ]
        return self.store.bind(definitions, clock=self.clock)

    def hit(self, *keys: str, cost: int = 1, now_us: int = NOW_US, commit: bool = True) -> Decision:
        bound = self.all if len(keys) > 1 else self.one
        self.clock.moment_us = now_us
        named = tuple(self.names.get(key, key) for key in keys)
        return bound.decide(Operation(named, (cost,) * len(keys), commit=commit))

    def give_back(self, *keys: str, cost: int = 1, now_us: int = NOW_US, ago_us: int = 0) -> None:
        bound = self.all if len(keys) > 1 else self.one
        self.clock.moment_us = now_us
        bound.give_back(Receipt(tuple(self.names.get(key, key) for key in keys), (cost,) * len(keys)), ago_us)

    def forget(self, key: str) -> bool:
        return self.one.reset((self.names.get(key, key),))

    def state(self, key: str, now_us: int) -> tuple[object, ...]:
        """All that can be seen of a key."""
        decision = self.hit(key, cost=0, now_us=now_us, commit=False)
        return tuple((reading.remaining, reading.reset_after_us) for reading in decision.limits)


def scenarios() -> Iterator[Scenario]:
    small, wide = 128 << 10, 1 << 20

    def some(world: World) -> None:
        for index in range(30):
            world.hit(f"other-{index}", cost=index % 3 + 1)

    def known(world: World) -> None:
        some(world)
        for key in ("a", "b", "c", "d"):
            for moment in range(7):
                world.hit(key, now_us=NOW_US + moment)

    for name, text in {
        "fixed window": "100/hour fixed",
        "sliding window": "100/hour",
        "token bucket": "100/hour bucket",
        "several limits": "100/hour; 60/hour log",
    }.items():
        yield Scenario(f"{name}, a known key", small, text, known, lambda world: world.hit("a"), ("a",), 30)
        yield Scenario(f"{name}, a new key", small, text, some, lambda world: world.hit("a"), ("a",), 30)
    yield Scenario(
        "several shards", wide, "100/hour log", known, lambda world: world.hit("a", "b", "c"), ("a", "b", "c"), 30,
    )  # fmt: skip
    yield Scenario(
        "several shards, new keys", wide, "100/hour", some, lambda world: world.hit("a", "b", "c"), ("a", "b", "c"), 30,
    )  # fmt: skip
    later_us = NOW_US + HOUR_US + 3
    yield Scenario(
        "log, some entries leave and one comes", small, "100/hour log", known,
        lambda world: world.hit("a", now_us=later_us), ("a",), 0,
    )  # fmt: skip
    yield Scenario(
        "log, a clock that was far ahead", small, "100/hour log",
        lambda world: [world.hit("a", now_us=NOW_US + 10 * HOUR_US + moment) for moment in range(20)],
        lambda world: world.hit("a"), ("a",),
    )  # fmt: skip

    def full(world: World) -> None:
        number = 0
        while world.store.stats().evicted == 0:
            world.hit(f"other-{number}", cost=3)
            number += 1

    yield Scenario("a full zone", small, "100/hour", full, lambda world: world.hit("a"), ("a",), 40, lossy=True)
    yield Scenario(
        "a full zone of logs", small, "9/hour log", full, lambda world: world.hit("a"), ("a",), 40,
        lossy=True, log_percent=90,
    )  # fmt: skip

    def forget(world: World) -> None:
        for index in range(40):
            for moment in range(index % 12):
                world.hit(f"other-{index}", now_us=NOW_US + moment)
        known(world)

    yield Scenario("reset", small, "100/hour log", forget, lambda world: world.forget("a"), ("a",), 40)
    yield from given_back(small, wide, some, known)


def full_list_of_limits() -> Scenario:
    """A new version of a limit finds the list full: limits are taken back for it. That takes a million instructions."""

    def versions(world: World) -> None:
        for moment in range(7):
            world.hit("a", now_us=NOW_US + moment)
        for number in range(world.store.info()["max_limits"] - len(world.store.known_limits())):
            bound = world.bind(parse_limits("900/hour"), 1, scope=f"other{number}")
            if number % 3 == 0:
                bound.decide(Operation((f"named-{number}",), (1,), now_us=NOW_US))

    def hit_new_version(world: World) -> None:
        world.bind(parse_limits("90/hour fixed"), 1).decide(Operation(("a",), (1,), now_us=NOW_US))

    return Scenario("a full list of limits", 128 << 10, "100/hour fixed", versions, hit_new_version, ("a",))


def die_at_every_change(scenario: Scenario) -> dict[str, object]:
    """Step one process through its operation, and judge the memory as it was after each change.

    What a process leaves that is killed is that memory, with the locks that it held marked as a dead one's.
    """
    stay_on_one_core()
    killer = Killer(scenario)
    images, process = [], killer.start()
    killer.remember()
    while process.step():
        if killer.changed():
            images.append(killer.last.raw)
    found = []
    for number, image in enumerate(images):
        libc.memmove(killer.world.address, image, scenario.size)
        for lock in (512, 4096 + (32 << 10)):
            holder = int.from_bytes(killer.world.memory[lock : lock + 4], sys.byteorder)
            if holder & 0x3FFF_FFFF == process.pid:
                killer.world.memory[lock : lock + 4] = (0x4000_0000).to_bytes(4, sys.byteorder)
        found.append(killer.judge(backwards=False))
        if number % 10 == 0:  # and the next process that binds limits continues where this one ended
            scenario.operate(killer.world)
            assert killer.world.store._zone.check() is None
    killer.restore()
    assert found == sorted(found, reverse=True), "charged, and then not charged again"
    return {"deaths": len(found), "before": found.count("before"), "after": found.count("after")}


def given_back(
    small: int, wide: int, some: Callable[[World], object], known: Callable[[World], object]
) -> Iterator[Scenario]:
    """What was charged is given back: of a state of which something is left, and of one that goes by it."""
    end_us = NOW_US + 6

    def one(world: World) -> None:
        some(world)
        for key in ("a", "b", "c"):
            world.hit(key)

    def long(world: World) -> None:
        some(world)
        for moment in range(40):
            world.hit("a", now_us=NOW_US + moment % 20, cost=moment % 3 + 1)

    for name, text in {
        "100/hour": "100/hour",
        "several limits": "100/hour fixed; 100/hour bucket; 60/hour log",
    }.items():
        yield Scenario(
            f"{name}, given back", small, text, known,
            lambda world: world.give_back("a", cost=2, now_us=end_us, ago_us=4), ("a",), 30,
        )  # fmt: skip
        yield Scenario(f"{name}, all given back", small, text, one, lambda world: world.give_back("a"), ("a",), 30)
    yield Scenario(
        "long log, given back", small, "100/hour log", long,
        lambda world: world.give_back("a", cost=20, now_us=NOW_US + 19, ago_us=17), ("a",), 30,
    )  # fmt: skip
    yield Scenario(
        "several shards, given back", wide, "100/hour log", known,
        lambda world: world.give_back("a", "b", "c", cost=2, now_us=end_us, ago_us=4), ("a", "b", "c"), 30,
    )  # fmt: skip
    yield Scenario(
        "several shards, all given back", wide, "100/hour; 60/hour log", one,
        lambda world: world.give_back("a", "b", "c"), ("a", "b", "c"), 30,
    )  # fmt: skip


class Point(NamedTuple):
    """Where a process is killed: after so many changes of the zone's memory, and so many steps after that.

    From the start the steps are not counted: the interpreter takes some more or fewer instructions every time.
    """

    changes: int
    steps: int = 0


class Killer:
    """Runs one scenario's operation again and again, each time a bit further."""

    every_instruction = False

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(scenario.size, scenario.log_percent, scenario.limits, len(scenario.keys), scenario.max_holds)
        scenario.prepare(self.world)
        self.keep = ctypes.create_string_buffer(scenario.size)
        self.mended = 0
        self.last = ctypes.create_string_buffer(scenario.size)
        self.after_us = NOW_US + HOUR_US + 3 if "leave" in scenario.name else scenario.seen_us
        self.save()
        self.before = self.seen()
        scenario.operate(self.world)
        self.after = self.seen()
        self.restore()
        assert self.before[0] != self.after[0], "the operation changes nothing"

    def save(self) -> None:
        libc.memmove(self.keep, self.world.address, self.scenario.size)

    def restore(self) -> None:
        libc.memmove(self.world.address, self.keep, self.scenario.size)

    def seen(self) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        """What is seen of the decision's keys, and of the bystanders."""
        keys = [self.world.state(key, self.after_us) for key in self.scenario.keys]
        others = [self.world.state(f"other-{index}", self.after_us) for index in range(self.scenario.bystanders)]
        return keys, others

    def start(self) -> Traced:
        """A process that stands before the operation."""

        def operate() -> None:
            self.world.clock.stops = True
            self.scenario.operate(self.world)

        return trace(operate, self.world.path, every_instruction=self.every_instruction)

    def changes(self) -> list[int]:
        """The numbers of the steps that change the zone's memory."""
        process, steps, found = self.start(), 0, []
        self.remember()
        while process.step():
            steps += 1
            if self.changed():
                found.append(steps)
            assert steps < MOST_STEPS
        assert self.seen() == self.after
        self.restore()
        return found

    def remember(self) -> None:
        libc.memmove(self.last, self.world.address, self.scenario.size)

    def changed(self) -> bool:
        """Return whether the zone's memory differs from the last one remembered; remember it if so."""
        if libc.memcmp(self.last, self.world.address, self.scenario.size) == 0:
            return False
        self.remember()
        return True

    def kill_at(self, point: Point, *, backwards: bool) -> str:
        """Kill a process at a point, and judge the zone that it leaves."""
        self.leave_at(point)
        found = self.judge(backwards=backwards)
        self.restore()
        return found

    def leave_at(self, point: Point) -> None:
        """Kill a process at a point."""
        process, changes = self.start(), 0
        self.remember()
        while changes < point.changes:
            assert process.step(), f"the operation ended after {changes} changes"
            changes += self.changed()
        for _ in range(point.steps):
            assert process.step()
            if self.changed():  # the change comes a bit sooner than in the first run
                break
        process.kill()

    def judge(self, *, backwards: bool) -> str:
        """Return what a survivor finds, "before" or "after"; raise at anything else."""
        if backwards:  # the first survivor may use any of the keys
            for key in reversed(self.scenario.keys):
                self.world.state(key, self.after_us)
        keys, others = self.seen()
        assert keys in (self.before[0], self.after[0]), f"half charged: {keys}"
        unharmed = (self.before[1], self.after[1])
        assert self.scenario.lossy or others in unharmed, f"others were harmed: {others}"
        fault = self.world.store._zone.check()
        assert fault is None, fault
        found = "after" if keys == self.after[0] else "before"
        self.go_on(found)
        assert self.world.store._zone.check() is None
        self.mended += self.world.store.info()["mended"]
        return found

    def go_on(self, found: str) -> None:
        """Check that a survivor can continue to charge each key."""
        for key in self.scenario.keys:
            was = self.world.state(key, self.after_us)
            assert self.world.hit(key, now_us=self.after_us).allowed
            assert self.world.state(key, self.after_us) != was


def run(killer: Killer, most_deaths: int | None) -> dict[str, object]:
    """Kill at all points of a scenario, or at so many; at every instruction with 0."""
    stay_on_one_core()
    scenario = killer.scenario
    killer.every_instruction = most_deaths == 0
    changes = killer.changes()
    points = spread(list(points_of(changes, all_of_them=killer.every_instruction)), most_deaths)
    found = [killer.kill_at(point, backwards=index % 2 == 1) for index, point in enumerate(points)]
    assert found == sorted(found, reverse=True), "charged, and then not charged again"
    assert set(found) == {"before", "after"}
    # A second death: of a process that mends what the first left half done.
    numbers = range(1, len(changes) + 1)
    counts = bisect_left(numbers, True, key=lambda change: killer.kill_at(Point(change), backwards=False) == "after")
    firsts = {counts // 2, counts - 1}  # before it counts
    if len(scenario.keys) > 1:
        firsts |= {counts, (counts + len(changes)) // 2}  # and after, when the other shards are not yet changed
    points = [Point(numbers[index]) for index in sorted(firsts) if 0 <= index < len(changes)]
    second = second_deaths(killer, points, most_deaths)
    return {
        "scenario": scenario.name,
        "changes": len(changes),
        "deaths": len(found),
        "before": found.count("before"),
        "after": found.count("after"),
        "second_deaths": second,
        "mended": killer.mended,
    }


def points_of(changes: list[int], *, all_of_them: bool) -> Iterator[Point]:
    """Before and after each change; or every instruction from the one before the first change to the last change."""
    yield Point(0, changes[0] - 1)
    for number, (step, following) in enumerate(itertools.pairwise(changes), 1):
        yield Point(number)
        if following - step > 1:
            first = 1 if all_of_them else following - step - 1
            yield from (Point(number, more) for more in range(first, following - step))
    yield Point(len(changes))


def spread(points: list[Point], count: int | None) -> list[Point]:
    """So many of the points, but four at least, evenly spread, the first and the last among them; or all of them."""
    count = max(4, count) if count else len(points)
    if len(points) <= count:
        return points
    return sorted({points[(len(points) - 1) * number // (count - 1)] for number in range(count)})


def second_deaths(killer: Killer, firsts: list[Point], most_deaths: int | None) -> int:
    """Kill a process at some points, and another at every change that it makes while it mends what that one left.

    It comes by each key of the decision, and by one of the lowest shard with others.
    """
    keys = killer.scenario.keys
    ways: list[tuple[str, ...]] = [(key,) for key in keys]
    if len(keys) > 1:
        ways.append(("z", *keys[1:]))
    share = max(1, most_deaths // (len(firsts) * len(ways))) if most_deaths else most_deaths
    return sum(mender_deaths(killer, first, way, share) for first in firsts for way in ways)


def mender_deaths(killer: Killer, first: Point, way: tuple[str, ...], most_deaths: int | None) -> int:
    killer.leave_at(first)
    original = ctypes.create_string_buffer(killer.keep.raw, killer.scenario.size)
    killer.save()  # half done, and its owner is dead
    mending = killer.scenario._replace(
        operate=lambda world: world.hit(*way, cost=0, now_us=killer.after_us, commit=False)
    )
    mender = type(killer).__new__(type(killer))
    mender.__dict__.update(killer.__dict__, scenario=mending)
    process, changes = mender.start(), 0
    mender.remember()
    while process.step():
        changes += mender.changed()
    mender.restore()
    points = spread([Point(number) for number in range(1, changes + 1)], most_deaths)
    for index, point in enumerate(points):
        mender.kill_at(point, backwards=index % 2 == 1)
    killer.mended = mender.mended
    libc.memmove(killer.keep, original, killer.scenario.size)
    killer.restore()
    return len(points)


class Stopped(NamedTuple):
    """A process that a SIGSTOP caught inside a shard of a zone of several."""

    killer: Killer
    pid: int


def stop_in_a_shard() -> Stopped:
    scenario = Scenario(
        "stopped", 1 << 20, "1000/hour bucket", lambda world: [world.hit(key) for key in ("a", "b", "c")],
        lambda world: world.hit("a"), ("a", "b", "c"),
    )  # fmt: skip
    killer = Killer(scenario)
    changes = killer.changes()
    process = killer.start()
    for _ in range(changes[len(changes) // 2]):
        assert process.step()
    process.let_go(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    return Stopped(killer, process.pid)


def timed(call: Callable[[], object]) -> tuple[str, float]:
    """Return the error of a call, "" for none, and how long it took."""
    started, error = time.monotonic(), ""
    try:
        call()
    except StoreTimeout as timeout:
        error = str(timeout)
    return error, time.monotonic() - started


def stopped(ends: Callable[[int], object]) -> dict[str, object]:
    """A process that is stopped while it holds a shard is waited for once; other shards go on, and it may end."""
    killer, pid = stop_in_a_shard()
    hit = killer.world.hit
    error, waited_s = timed(lambda: hit("a"))
    later = [timed(lambda: hit("a")) for _ in range(100)]
    both = [timed(lambda: hit("a", "b", "c")) for _ in range(100)]
    others = [timed(lambda key=key: hit(key)) for key in ("b", "c") * 50]  # type: ignore[misc]
    ends(pid)
    os.waitpid(pid, 0)
    back = timed(lambda: hit("a"))
    return {
        "error": error,
        "names_the_process": f"thread {pid} " in error,
        "waited_s": waited_s,
        "refused_at_once": sum(bool(error) for error, _ in later + both),
        "refused_in_s": sum(taken_s for _, taken_s in later + both),
        "others": sum(not error for error, _ in others),
        "others_in_s": sum(taken_s for _, taken_s in others),
        "is_back": not back[0],
    }


def stopped_gate(ends: Callable[[int], object]) -> dict[str, object]:
    """Return what a policy's choice decides while a process is stopped in a shard, and what the log contains."""
    killer, pid = stop_in_a_shard()
    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("headgate").addHandler(handler)
    rule = {"name": "all", "by": ["ip"], "limits": "1000/hour bucket", "on_store_error": "closed"}
    gate = Gate({"version": 1, "rules": [rule]}, store=killer.world.store)
    requests = [Request("GET", "/", client_ip=f"192.0.2.{number}") for number in range(200)]
    times, answers = [], []
    for request in requests:
        started = time.monotonic()
        answers.append(gate.hit(request).degraded)
        times.append(time.monotonic() - started)
    ends(pid)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 60
    while len(log) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    return {
        "degraded": sorted(set(answers)),
        "waits": sum(taken_s > 0.2 for taken_s in times),
        "took_s": sum(times),
        "log": log,
        "degraded_later": sorted({gate.hit(request).degraded for request in requests}),
    }


def main() -> None:
    if sys.argv[1:] == ["stopped"]:
        for measure in (stopped, stopped_gate):
            for sig in (signal.SIGCONT, signal.SIGKILL):
                print(json.dumps(measure(lambda pid, sig=sig: os.kill(pid, sig))))  # type: ignore[misc]
        return
    if sys.argv[1:] == ["limits"]:
        print(json.dumps(die_at_every_change(full_list_of_limits())))
        return
    if sys.argv[1:] == ["steps"]:
        stay_on_one_core()
        killer = Killer(next(scenarios()))
        by_writes, killer.every_instruction = len(killer.changes()), True
        print(json.dumps({"by_writes": by_writes, "by_instructions": len(killer.changes())}))
        return
    deaths, name = (*sys.argv[1:], "", "")[:2]
    for scenario in scenarios():
        if name in {"", scenario.name}:
            print(json.dumps(run(Killer(scenario), int(deaths) if deaths else None)), flush=True)


if __name__ == "__main__":
    main()
