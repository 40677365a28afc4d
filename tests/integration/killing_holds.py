"""Kill a process at one instruction after another of holding and settling, and look at what it leaves in the zone.

As `killing`, and beyond it: a survivor asks again for what the dead process asked for, settles it twice, and looks at
its places right before and at the end of its lease. Run as a program, it prints one JSON object a scenario:
`python killing_holds.py [DEATHS] [NAME]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from killing import HOUR_US, NOW_US, Killer, Scenario, World, run

from headgate.holding import Hold
from headgate.operation import Operation

LEASE_US = 60_000_000
ENDS = (NOW_US + LEASE_US, NOW_US + 2 * LEASE_US)
KEPT: list[Any] = []
"""Reservations without a name that a scenario has made before."""


def reserve(
    world: World, *keys: str, name: str = "x", cost: int = 2, lease_us: int = LEASE_US, now_us: int = NOW_US
) -> tuple[object, ...]:
    bound = world.all if len(keys) > 1 else world.one
    world.clock.moment_us = now_us
    named = tuple(world.names.get(key, key) for key in keys)
    held = bound.reserve(Operation(named, (cost,) * len(keys)), Hold(name, lease_us))
    return held.decision.allowed, held.decision.degraded, held.repeated


def hold(world: World) -> Any:
    """Hold units of a key under an id that the zone makes."""
    world.clock.moment_us = NOW_US
    return world.one.hold("a", 2, lease_us=LEASE_US)  # type: ignore[attr-defined]


def settle(world: World, *keys: str, name: str = "x", actual: int | None = 1, now_us: int = NOW_US) -> object:
    bound = world.all if len(keys) > 1 else world.one
    world.clock.moment_us = now_us
    settlement = bound.commit(bound.id_of(world.names.get(keys[0], keys[0]), name), actual)
    return settlement.outcome, settlement.actuals


def extend(world: World, *keys: str, name: str = "x", more: int = 1) -> object:
    bound = world.all if len(keys) > 1 else world.one
    world.clock.moment_us = NOW_US
    whole_id = bound.id_of(world.names.get(keys[0], keys[0]), name)
    return bound.extend(whole_id, 2 * LEASE_US, (more,) * len(keys)).outcome


class HoldKiller(Killer):
    """A killer whose survivors go on with holds: as after none of the operation, or as after all of it."""

    def __init__(self, scenario: Scenario) -> None:
        KEPT.clear()
        super().__init__(scenario)
        if scenario.lossy:
            return
        self.then = {"before": self.continued()}
        self.restore()
        scenario.operate(self.world)
        self.then["after"] = self.continued()
        self.restore()
        assert self.then["before"] != self.then["after"]

    def go_on(self, found: str) -> None:
        if self.scenario.lossy:  # what was forgotten is forgotten, whether there is a new hold or not
            assert [held.commit(1).outcome for held in KEPT[1:]] in ([], ["settled"])  # it was open
            if not KEPT and self.world.store.stats().holds == self.scenario.max_holds:
                # The new hold took the place of the settled one: all are open now, and none of these is forgotten.
                assert settle(self.world, *self.scenario.keys, name="y") == ("settled", (1,))
            assert reserve(self.world, *self.scenario.keys, name="another")[0]
            assert settle(self.world, *self.scenario.keys, name="another") == ("settled", (1,))
            return
        then = self.continued()
        assert then == self.then[found], f"{found}: {then} is not {self.then[found]}"

    def continued(self) -> list[object]:
        """What comes of asking again, of settling twice, and of leases that end."""
        world, keys = self.world, self.scenario.keys
        told: list[object] = [world.store.stats().holds]
        told += [world.state(key, end_us + more) for end_us in ENDS for more in (-1, 0) for key in keys]
        told += [reserve(world, *keys), settle(world, *keys), settle(world, *keys, actual=2)]
        told += [settle(world, *keys, name=name) for name in ("y", "z")]
        told += [world.state(key, NOW_US) for key in keys]
        told += [reserve(world, *keys, name="another"), settle(world, *keys, name="another", actual=None)]
        told += [held.commit(1).outcome for held in KEPT]
        return [*told, world.store.stats().holds]


def scenarios() -> Iterator[Scenario]:
    small, wide = 128 << 10, 1 << 20

    def some(world: World) -> None:
        for index in range(5):
            reserve(world, f"other-{index}", lease_us=LEASE_US + index)

    def held(world: World) -> None:
        some(world)
        for number, name in enumerate("yxz"):
            reserve(world, "a", name=name, cost=number + 1, lease_us=LEASE_US + number - 1)

    def over(world: World) -> None:
        some(world)
        reserve(world, "a")

    for name, text in {
        "bucket": "100/hour bucket",
        "places": "9 concurrent",
        "places and a log": "9 concurrent; 60/hour log",
        "three kinds": "100/hour; 9 concurrent; 50/hour bucket",
    }.items():
        yield Scenario(
            f"{name}, held first", small, text, some, lambda world: reserve(world, "a"), ("a",), 5, max_holds=24
        )
        yield Scenario(
            f"{name}, held", small, text, held, lambda world: reserve(world, "a", name="w"), ("a",), 5, max_holds=24
        )
        yield Scenario(
            f"{name}, committed", small, text, held, lambda world: settle(world, "a"), ("a",), 5, max_holds=24
        )
        yield Scenario(
            f"{name}, cancelled", small, text, held, lambda world: settle(world, "a", actual=0), ("a",), 5, max_holds=24
        )
        yield Scenario(
            f"{name}, extended", small, text, held, lambda world: extend(world, "a"), ("a",), 5, max_holds=24
        )
    yield Scenario(
        "a debt", small, "9/hour log", over, lambda world: settle(world, "a", actual=20), ("a",), 5, max_holds=24
    )
    yield from of_long_logs(small)
    yield from without_names(small, some)
    yield from forgotten(small, some)
    yield from of_several_shards(wide)
    yield from in_the_way(wide)


def of_long_logs(small: int) -> Iterator[Scenario]:
    """An entry goes out of a log of blocks or into it, and those behind move."""

    def long(world: World) -> None:
        for moment in range(30):
            world.hit("a", now_us=NOW_US - 40 + moment)
        reserve(world, "a", name="x", cost=2, now_us=NOW_US - 10)
        reserve(world, "a", name="y", cost=0, now_us=NOW_US - 9)
        for moment in range(8):
            world.hit("a", now_us=NOW_US - 8 + moment)

    log = "99/hour log"
    yield Scenario(
        "long log, cancelled", small, log, long, lambda world: settle(world, "a", actual=0), ("a",), max_holds=24
    )
    yield Scenario(
        "long log, a debt", small, log, long, lambda world: settle(world, "a", name="y", actual=4), ("a",), max_holds=24
    )


def forgotten(small: int, some: Callable[[World], object]) -> Iterator[Scenario]:
    def settled(world: World) -> None:
        some(world)
        reserve(world, "a", name="x")
        settle(world, "a", name="x")
        reserve(world, "a", name="y", lease_us=1)

    yield Scenario(
        "a full store forgets", small, "100/hour fixed", settled,
        lambda world: reserve(world, "a", name="z"), ("a",), 5, lossy=True, max_holds=7,
    )  # fmt: skip
    later_us = NOW_US + 3 * HOUR_US
    yield Scenario(
        "holds that are over", small, "100/hour fixed; 9 concurrent", settled,
        lambda world: reserve(world, "a", name="z", now_us=later_us, lease_us=HOUR_US), ("a",), max_holds=24,
        lossy=True, seen_us=later_us,
    )  # fmt: skip


def in_the_way(wide: int) -> Iterator[Scenario]:
    """All room for holds is in other shards, which have settled ones: they forget some of them, and give it back."""

    def settled(world: World) -> None:
        for index in range(80):
            reserve(world, f"{index}")
            if index % 40:
                settle(world, f"{index}")

    yield Scenario(
        "holds in the way", wide, "100/hour; 9 concurrent", settled,
        lambda world: reserve(world, "a", name="z"), ("a",), lossy=True, max_holds=16,
    )  # fmt: skip


def without_names(small: int, some: Callable[[World], object]) -> Iterator[Scenario]:
    """Holds whose ids tell their cells: made, settled, and put in the place of one that is settled."""

    def two(world: World) -> None:
        some(world)
        KEPT.extend((hold(world), hold(world)))

    def one_settled(world: World) -> None:
        two(world)
        KEPT[0].commit(1)

    for name, text in {"bucket": "100/hour bucket", "places": "9 concurrent"}.items():
        yield Scenario(f"{name}, no name, replaced", small, text, one_settled, hold, ("a",), 5, lossy=True, max_holds=7)
        yield Scenario(f"{name}, no name, held", small, text, two, hold, ("a",), 5, max_holds=24)
        yield Scenario(
            f"{name}, no name, committed", small, text, two, lambda world: KEPT[1].commit(1), ("a",), 5, max_holds=24
        )
        yield Scenario(f"{name}, no name, held first", small, text, some, hold, ("a",), 5, max_holds=24)


def of_several_shards(wide: int) -> Iterator[Scenario]:
    def held(world: World) -> None:
        reserve(world, "other-0")
        reserve(world, "a", "b", name="y", cost=1)
        reserve(world, "a", "b", name="x")

    text, keys = "100/hour; 9 concurrent", ("a", "b")
    for name, operate in {
        "held": lambda world: reserve(world, "a", "b", name="z"),
        "committed": lambda world: settle(world, "a", "b"),
        "extended": lambda world: extend(world, "a", "b"),
    }.items():
        yield Scenario(f"several shards, {name}", wide, text, held, operate, keys, 1, max_holds=64)


def main() -> None:
    deaths, name = (*sys.argv[1:], "", "")[:2]
    for scenario in scenarios():
        if name in {"", scenario.name}:
            print(json.dumps(run(HoldKiller(scenario), int(deaths) if deaths else None)), flush=True)


if __name__ == "__main__":
    main()
