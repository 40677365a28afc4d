"""Holds over several identities, which a Cluster stores in several slots, get the same answers as in one table."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headgate import ArgumentError, ConflictingId
from headgate.decision import NamedLimit, name_limits
from headgate.holding import Hold
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.testing import ManualClock
from subjects import HOLDING, deciding, make_store, numbers, outcome_values

RULES = (
    ("20/minute bucket; 90/hour fixed", "30/minute log", "9/10 seconds leaky 12"),
    ("40/hour burst 60 stepwise", "25/minute counter; 7 concurrent"),
    ("15/minute bucket", "18/minute bucket", "5 concurrent", "50/day in Europe/Zurich"),
)
LEASES_US = (10, 1_000_000, 60_000_000, 3_600_000_000)
STEPS = 500


class TwinBounds:
    """The same limits on stores of all kinds, each rule with a separate identity, and their holds."""

    def __init__(self, seed: int, rules: tuple[str, ...]) -> None:
        self.random, self.clock, self.groups = random.Random(seed), ManualClock(), len(rules)
        limits: list[NamedLimit] = []
        for group, text in enumerate(rules):
            limits += name_limits(parse_limits(text), scope=f"s{group}", name=f"r{group}", group=group)
        room: dict[str, dict[str, Any]] = {"shared": {"size": 8 << 20, "max_holds": 7000}}
        stores = [make_store(kind, **room.get(kind, {})) for kind in deciding(HOLDING)]
        self.bounds: list[Any] = [store.bind(limits, clock=self.clock) for store in stores]
        self.held: list[tuple[tuple[str, ...], list[str]]] = []

    def same(self, keys: tuple[str, ...], call: Callable[[int], object]) -> None:
        """Assert that all answer alike, and have the same numbers afterwards."""
        results: list[object] = []
        for place in range(len(self.bounds)):
            try:
                results.append(call(place))
            except (ArgumentError, ConflictingId) as error:
                results.append(type(error))
        assert all(result == results[0] for result in results), results
        peeks = [Operation(keys, (0,) * self.groups, commit=False)] * len(self.bounds)
        remaining = [numbers(bound.decide(peek)) for bound, peek in zip(self.bounds, peeks, strict=True)]
        assert all(one == remaining[0] for one in remaining), remaining

    def step(self) -> None:
        draw, chance = self.random, self.random.random()
        keys = tuple(f"key {draw.randrange(3)}" for _ in range(self.groups))
        costs = tuple(draw.choice([0, 1, 2, 3, 9]) for _ in range(self.groups))
        if chance < 0.2:
            self.same(keys, lambda place: numbers(self.bounds[place].decide(Operation(keys, costs, commit=False))))
        elif chance < 0.35:
            self.same(keys, lambda place: self.hit(place, keys, costs))
        elif chance < 0.65 or not self.held:
            self.reserve(keys, costs)
        elif chance < 0.8:
            keys, ids = self.held.pop(draw.randrange(len(self.held)))
            actuals = draw.choice([None, 0, list(costs)])
            self.same(keys, lambda place: outcome_values(self.bounds[place].commit(ids[place], actuals)))
        elif chance < 0.93:
            (keys, ids), lease_us = draw.choice(self.held), draw.choice(LEASES_US)
            self.same(keys, lambda place: outcome_values(self.bounds[place].extend(ids[place], lease_us, costs)))
        else:
            self.clock.advance(draw.choice([0, 1, 700_000, 20_000_000]))

    def hit(self, place: int, keys: tuple[str, ...], costs: tuple[int, ...]) -> object:
        return numbers(self.bounds[place].decide(Operation(keys, costs)))

    def reserve(self, keys: tuple[str, ...], costs: tuple[int, ...]) -> None:
        name, lease_us = self.random.choice([None, None, f"name {self.random.randrange(9)}"]), LEASES_US[2]
        ids: list[str] = []

        def call(place: int) -> object:
            reserved = self.bounds[place].reserve(Operation(keys, costs), Hold(name, lease_us))
            ids.append(reserved.id)
            return reserved.repeated, numbers(reserved.decision)

        self.same(keys, call)
        if len(ids) == len(self.bounds):
            self.held.append((keys, ids))


@pytest.mark.skipif(len(deciding(HOLDING)) < 2, reason="only one store that holds is here")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rules", RULES, ids=["rates", "steps", "places"])
def test_holds_over_several_identities_give_the_same_answers_on_all_stores(rules: tuple[str, ...], seed: int) -> None:
    alike = TwinBounds(seed, rules)
    for _ in range(STEPS):
        alike.step()
