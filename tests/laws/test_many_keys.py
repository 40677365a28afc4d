"""Very many keys under several limits get the same answers on all stores: two keys share a place in a table or the
beginning of a hash only by accident, and never among the few keys of other laws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headgate import ArgumentError, ConflictingId, Limiter
from headgate.testing import ManualClock
from subjects import CORES, ZONES, make_store, numbers, outcome_values

LIMITS = (
    "30/minute; 200/hour",
    "40/minute counter; 7 concurrent",
    "25/minute bucket; 300/day; 9 concurrent; 12/minute log",
    "5 concurrent",
    "3/second queue 9; 50/hour log",
)
KINDS = (*CORES, *ZONES)


class TwinLimiters:
    """Limiters that differ only in their stores, and their holds."""

    def __init__(self, seed: int, keys: int) -> None:
        self.random, self.keys, self.clock = random.Random(seed), keys, ManualClock()
        room: dict[str, dict[str, Any]] = {"shared": {"size": 8 << 20, "max_holds": 7000}}
        stores = [make_store(kind, **room.get(kind, {})) for kind in KINDS]
        self.limiters = [
            [Limiter(limits, store=store, name=f"limits{number}", clock=self.clock) for store in stores]
            for number, limits in enumerate(LIMITS)
        ]
        self.held: list[list[tuple[Limiter, str]]] = []

    def same(self, alike: list[Limiter], call: Callable[[Limiter], object]) -> None:
        results: list[object] = []
        for limiter in alike:
            try:
                results.append(call(limiter))
            except (ArgumentError, ConflictingId) as error:
                results.append(type(error))
        assert all(result == results[0] for result in results), results

    def same_held(self, held: list[tuple[Limiter, str]], call: Callable[[Limiter, str], Any]) -> None:
        ids = dict(held)
        self.same(list(ids), lambda limiter: outcome_values(call(limiter, ids[limiter])))

    def step(self) -> None:
        draw, alike = self.random, self.random.choice(self.limiters)
        key, cost, chance = f"key {draw.randrange(self.keys)}", draw.randrange(4), draw.random()
        if chance < 0.2:
            self.same(alike, lambda limiter: numbers(limiter.peek(key, cost)))
        elif chance < 0.45:
            self.same(alike, lambda limiter: numbers(limiter.hit(key, cost)))
        elif chance < 0.7 or not self.held:
            self.reserve(alike, key, cost)
        elif chance < 0.9:
            held, actual = self.held.pop(draw.randrange(len(self.held))), draw.choice([None, 0, 1, 6])
            self.same_held(held, lambda limiter, whole_id: limiter.commit(whole_id, actual))
        elif chance < 0.96:
            held, more, lease = draw.choice(self.held), draw.randrange(3), draw.choice([1, 60, 3600])
            self.same_held(held, lambda limiter, whole_id: limiter.extend(whole_id, lease, more))
        elif chance < 0.97:
            self.same(alike, lambda limiter: limiter.reset(key))
        else:
            self.clock.advance(draw.choice([0, 1, 300_000, 20_000_000]))

    def reserve(self, alike: list[Limiter], key: str, cost: int) -> None:
        name = self.random.choice([None, f"name {self.random.randrange(9)}"])
        lease, ids = self.random.choice([1, 60, 3600]), []

        def call(limiter: Limiter) -> object:
            held = limiter.reserve(key, cost, lease, name)
            ids.append((limiter, held.id))
            return bool(held), held.repeated, numbers(held.decision)

        self.same(alike, call)
        if len(ids) == len(alike):
            self.held.append(ids)


@pytest.mark.skipif(len(KINDS) < 2, reason="only the Python core is here")
@pytest.mark.parametrize("keys", [20, 300, 20_000])
def test_very_many_keys_give_the_same_answers_on_all_stores(keys: int) -> None:
    alike = TwinLimiters(keys, keys)
    for _ in range(6000):
        alike.step()
