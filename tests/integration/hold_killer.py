"""Kill a process at one instruction after another of holding and settling, and check what it leaves in the zone.

As `killer`, and beyond it: a survivor repeats the request of the dead process, settles it twice, and reads its places
right before and at the end of its lease. Run as a program, it prints one JSON object a scenario:
`python hold_killer.py [DEATHS] [NAME]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from killer import HOUR_US, NOW_US, Killer, Scenario, World, run

from headgate.holding import Hold
from headgate.operation import Operation

LEASE_US = 60_000_000
ENDS = (NOW_US + LEASE_US, NOW_US + 2 * LEASE_US)
UNNAMED_HOLDS: list[Any] = []
"""Reservations without a name that the scenario made before."""


def reserve(
    world: World, *keys: str, name: str = "x", cost: int = 2, lease_us: int = LEASE_US, now_us: int = NOW_US
) -> tuple[object, ...]:
    bound = world.all if len(keys) > 1 else world.one
    world.clock.moment_us = now_us
    named = tuple(world.names.get(key, key) for key in keys)
    held = bound.reserve(Operation(named, (cost,) * len(keys)), Hold(name, lease_us))
    return held.decision.allowed, held.decision.degraded, held.repeated


def hold(world: World) -> Any:
    """Hold units of a key under an id that the zone generates."""
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
    """A killer whose survivors continue with holds, as if none of the operation had happened or all of it."""

    def __init__(self, scenario: Scenario) -> None:
        UNNAMED_HOLDS.clear()
        super().__init__(scenario)
        if scenario.lossy:
            return
        self.observed_after = {"before": self.observations()}
        self.restore()
        scenario.operate(self.world)
        self.observed_after["after"] = self.observations()
        self.restore()
        assert self.observed_after["before"] != self.observed_after["after"]

    def go_on(self, found: str) -> None:
        if self.scenario.lossy:  # the zone has forgotten holds, whether it has the new one or not
            assert [held.commit(1).outcome for held in UNNAMED_HOLDS[1:]] in ([], ["settled"])  # the hold was open
            if not UNNAMED_HOLDS and self.world.store.stats().holds == self.scenario.max_holds:
                # The new hold took the place of the settled one: all are open now, and none of these is forgotten.
                assert settle(self.world, *self.scenario.keys, name="y") == ("settled", (1,))
            assert reserve(self.world, *self.scenario.keys, name="another")[0]
            assert settle(self.world, *self.scenario.keys, name="another") == ("settled", (1,))
            return
        now_observed = self.observations()
        assert now_observed == self.observed_after[found], (
            f"{found}: {now_observed} is not {self.observed_after[found]}"
        )

    def observations(self) -> list[object]:
        """Return the results of a repeated request, of settling twice, and of leases that end."""
        world, keys = self.world, self.scenario.keys
        observed: list[object] = [world.store.stats().holds]
        observed += [world.state(key, end_us + more) for end_us in ENDS for more in (-1, 0) for key in keys]
        observed += [reserve(world, *keys), settle(world, *keys), settle(world, *keys, actual=2)]
        observed += [settle(world, *keys, name=name) for name in ("y", "z")]
        observed += [world.state(key, NOW_US) for key in keys]
        observed += [reserve(world, *keys, name="another"), settle(world, *keys, name="another", actual=None)]
        observed += [held.commit(1).outcome for held in UNNAMED_HOLDS]
        return [*observed, world.store.stats().holds]


def scenarios() -> Iterator[Scenario]:
    small, wide = 128 << 10, 1 << 20

    def hold_other_keys(world: World) -> None:
        for index in range(5):
            reserve(world, f"other-{index}", lease_us=LEASE_US + index)

    def hold_three(world: World) -> None:
        hold_other_keys(world)
        for number, name in enumerate("yxz"):
            reserve(world, "a", name=name, cost=number + 1, lease_us=LEASE_US + number - 1)

    def hold_once(world: World) -> None:
        hold_other_keys(world)
        reserve(world, "a")

    for name, text in {
        "bucket": "100/hour bucket",
        "places": "9 concurrent",
        "places and a log": "9 concurrent; 60/hour log",
        "three kinds": "100/hour; 9 concurrent; 50/hour bucket",
    }.items():
        yield Scenario(
            f"{name}, held first",
            small,
            text,
            hold_other_keys,
            lambda world: reserve(world, "a"),
            ("a",),
            5,
            max_holds=24,
        )
        yield Scenario(
            f"{name}, held",
            small,
            text,
            hold_three,
            lambda world: reserve(world, "a", name="w"),
            ("a",),
            5,
            max_holds=24,
        )
        yield Scenario(
            f"{name}, committed", small, text, hold_three, lambda world: settle(world, "a"), ("a",), 5, max_holds=24
        )
        yield Scenario(
            f"{name}, cancelled",
            small,
            text,
            hold_three,
            lambda world: settle(world, "a", actual=0),
            ("a",),
            5,
            max_holds=24,
        )
        yield Scenario(
            f"{name}, extended", small, text, hold_three, lambda world: extend(world, "a"), ("a",), 5, max_holds=24
        )
    yield Scenario(
        "a debt", small, "9/hour log", hold_once, lambda world: settle(world, "a", actual=20), ("a",), 5, max_holds=24
    )
    yield from of_long_logs(small)
    yield from without_names(small, hold_other_keys)
    yield from forgotten(small, hold_other_keys)
    yield from of_several_shards(wide)
    yield from in_the_way(wide)


def of_long_logs(small: int) -> Iterator[Scenario]:
    """An entry is removed from a log of blocks or put into it, and those behind it move."""

    def fill_a_log(world: World) -> None:
        for moment in range(30):
            world.hit("a", now_us=NOW_US - 40 + moment)
        reserve(world, "a", name="x", cost=2, now_us=NOW_US - 10)
        reserve(world, "a", name="y", cost=0, now_us=NOW_US - 9)
        for moment in range(8):
            world.hit("a", now_us=NOW_US - 8 + moment)

    log = "99/hour log"
    yield Scenario(
        "long log, cancelled", small, log, fill_a_log, lambda world: settle(world, "a", actual=0), ("a",), max_holds=24
    )
    yield Scenario(
        "long log, a debt",
        small,
        log,
        fill_a_log,
        lambda world: settle(world, "a", name="y", actual=4),
        ("a",),
        max_holds=24,
    )


def forgotten(small: int, hold_other_keys: Callable[[World], object]) -> Iterator[Scenario]:
    def hold_and_settle(world: World) -> None:
        hold_other_keys(world)
        reserve(world, "a", name="x")
        settle(world, "a", name="x")
        reserve(world, "a", name="y", lease_us=1)

    yield Scenario(
        "a full store forgets", small, "100/hour fixed", hold_and_settle,
        lambda world: reserve(world, "a", name="z"), ("a",), 5, lossy=True, max_holds=7,
    )  # fmt: skip
    later_us = NOW_US + 3 * HOUR_US
    yield Scenario(
        "holds that are over", small, "100/hour fixed; 9 concurrent", hold_and_settle,
        lambda world: reserve(world, "a", name="z", now_us=later_us, lease_us=HOUR_US), ("a",), max_holds=24,
        lossy=True, seen_us=later_us,
    )  # fmt: skip


def in_the_way(wide: int) -> Iterator[Scenario]:
    """All room for holds is in other shards, which hold settled ones: they forget some of these and return the room."""

    def hold_and_settle(world: World) -> None:
        for index in range(80):
            reserve(world, f"{index}")
            if index % 40:
                settle(world, f"{index}")

    yield Scenario(
        "holds in the way", wide, "100/hour; 9 concurrent", hold_and_settle,
        lambda world: reserve(world, "a", name="z"), ("a",), lossy=True, max_holds=16,
    )  # fmt: skip


def without_names(small: int, hold_other_keys: Callable[[World], object]) -> Iterator[Scenario]:
    """Holds whose ids contain their cells: made, settled, and put in the place of a settled one."""

    def hold_two(world: World) -> None:
        hold_other_keys(world)
        UNNAMED_HOLDS.extend((hold(world), hold(world)))

    def settle_one_of_two(world: World) -> None:
        hold_two(world)
        UNNAMED_HOLDS[0].commit(1)

    for name, text in {"bucket": "100/hour bucket", "places": "9 concurrent"}.items():
        yield Scenario(
            f"{name}, no name, replaced", small, text, settle_one_of_two, hold, ("a",), 5, lossy=True, max_holds=7
        )
        yield Scenario(f"{name}, no name, held", small, text, hold_two, hold, ("a",), 5, max_holds=24)
        yield Scenario(
            f"{name}, no name, committed",
            small,
            text,
            hold_two,
            lambda world: UNNAMED_HOLDS[1].commit(1),
            ("a",),
            5,
            max_holds=24,
        )
        yield Scenario(f"{name}, no name, held first", small, text, hold_other_keys, hold, ("a",), 5, max_holds=24)


def of_several_shards(wide: int) -> Iterator[Scenario]:
    def hold_two_keys(world: World) -> None:
        reserve(world, "other-0")
        reserve(world, "a", "b", name="y", cost=1)
        reserve(world, "a", "b", name="x")

    text, keys = "100/hour; 9 concurrent", ("a", "b")
    for name, operate in {
        "held": lambda world: reserve(world, "a", "b", name="z"),
        "committed": lambda world: settle(world, "a", "b"),
        "extended": lambda world: extend(world, "a", "b"),
    }.items():
        yield Scenario(f"several shards, {name}", wide, text, hold_two_keys, operate, keys, 1, max_holds=64)


def main() -> None:
    deaths, name = (*sys.argv[1:], "", "")[:2]
    for scenario in scenarios():
        if name in {"", scenario.name}:
            print(json.dumps(run(HoldKiller(scenario), int(deaths) if deaths else None)), flush=True)


if __name__ == "__main__":
    main()
