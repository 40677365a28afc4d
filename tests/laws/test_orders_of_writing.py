"""Limiters with the same limits in other orders are one: charges, holds and settlements count by unit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate import ArgumentError, ConflictingId, Limiter, parse_limits
from headgate.decision import Decision
from headgate.limits import units_of
from headgate.testing import ManualClock
from subjects import CORES, HOLDING, ZONES, make_store

KINDS = [kind for kind in HOLDING if kind in (*CORES, *ZONES, "redis")]
"""One of each kind; another law compares all topologies of Redis."""

needs_two = pytest.mark.skipif(len(KINDS) < 2, reason="only one store that holds is here")
UNITS = ("requests", "tokens", "bytes", "Jobs", "rows")
SHAPES = ("{} {}/second fixed", "{} {}/second log", "{} {}/2 seconds bucket", "{} {}/minute fixed", "{} {} concurrent")
TEXTS = st.builds(str.format, st.sampled_from(SHAPES), st.integers(1, 60), st.sampled_from(UNITS))
LIMITS = st.lists(TEXTS, min_size=2, max_size=6).filter(lambda texts: len(units_of(parse_limits("; ".join(texts)))) > 1)
AMOUNTS = st.dictionaries(st.sampled_from(UNITS), st.integers(0, 5))
"""Amounts by unit; units that the limits do not count are left out."""

NAMES = st.sampled_from(["1", "2", "3", "4"])
LEASES_US = st.one_of(st.integers(1, 10**6), st.just(3_600_000_000))


def by_name(decision: Decision) -> object:
    """All numbers of a decision by limit; which of several equal limits is binding depends on their order."""
    readings = zip(decision.limits, decision.readings, strict=True)
    by_scope = {reading.definition.scope: tuple(numbers) for reading, numbers in readings}
    return decision.allowed, decision.degraded, decision.retry_after_us, decision.delay_us, by_scope


def outcome_values(limiter: Limiter, reply: Any) -> object:
    """The result of a settlement or an extension, by units and limits."""
    actuals = getattr(reply, "actuals", None)
    amounts = None if actuals is None else dict(zip(units_of(limiter.limits), actuals, strict=True))
    after = {standing.definition.scope: (standing.remaining, standing.reset_after_us) for standing in reply.after}
    decision = getattr(reply, "decision", None)
    return reply.outcome, amounts, after, None if decision is None else by_name(decision)


@needs_two
class AllOrders(RuleBasedStateMachine):
    """Stores with the same operations, each time by limiters that write the limits in some order."""

    @initialize(texts=LIMITS, random=st.randoms(use_true_random=False))
    def start(self, texts: list[str], random: Random) -> None:
        self.clock = ManualClock()
        self.texts = texts
        self.units = units_of(parse_limits("; ".join(texts)))
        self.stores = [make_store(kind) for kind in KINDS]
        self.known: dict[tuple[int, tuple[int, ...]], Limiter] = {}
        self.unnamed: list[list[str]] = []
        self.random = random

    def order(self) -> tuple[int, ...]:
        """The indexes of the limits in some order; limits of one unit keep their order, which distinguishes them."""
        units = [limit.of for limit in parse_limits("; ".join(self.texts))]
        places_of_unit = {unit: [place for place, of in enumerate(units) if of == unit] for unit in units}
        self.random.shuffle(units)
        return tuple(places_of_unit[unit].pop(0) for unit in units)

    def limiter(self, number: int) -> Limiter:
        """A limiter on a store, with the limits in some order."""
        limiter_key = number, self.order()
        if limiter_key not in self.known:
            text = "; ".join(self.texts[place] for place in limiter_key[1])
            self.known[limiter_key] = Limiter(text, store=self.stores[number], name="api", clock=self.clock)
        return self.known[limiter_key]

    def same(self, call: Callable[[Limiter, int], object]) -> None:
        """Assert that all answer alike, or raise the same kind of error."""
        results = []
        for number in range(len(KINDS)):
            try:
                results.append(call(self.limiter(number), number))
            except (ArgumentError, ConflictingId) as error:
                results.append(type(error))
        assert all(result == results[0] for result in results)

    def counted(self, amounts: dict[str, int]) -> dict[str, int]:
        return {unit: amount for unit, amount in amounts.items() if unit in self.units}

    @rule(amounts=AMOUNTS, name=st.one_of(st.none(), NAMES), lease_us=LEASES_US)
    def reserve(self, amounts: dict[str, int], name: str | None, lease_us: int) -> None:
        cost, ids = self.counted(amounts), list[str]()

        def call(limiter: Limiter, _: int) -> object:
            held = limiter.reserve("key", cost, id=name, lease_us=lease_us)
            ids.append(held.id)
            return by_name(held.decision), held.repeated

        self.same(call)
        if name is None:
            self.unnamed.append(ids)

    @rule(amounts=st.one_of(st.none(), st.just(0), AMOUNTS), name=NAMES)
    def commit(self, amounts: dict[str, int] | int | None, name: str) -> None:
        actual = self.counted(amounts) if isinstance(amounts, dict) else amounts
        self.same(lambda limiter, _: outcome_values(limiter, limiter.commit(limiter.id_of("key", name), actual)))

    @rule(amounts=st.one_of(st.none(), AMOUNTS), place=st.integers(0, 5))
    def commit_without_a_name(self, amounts: dict[str, int] | None, place: int) -> None:
        if self.unnamed:
            ids = self.unnamed[-1 - place % len(self.unnamed)]
            actual = None if amounts is None else self.counted(amounts)
            self.same(lambda limiter, number: outcome_values(limiter, limiter.commit(ids[number], actual)))

    @rule(amounts=st.one_of(st.just(0), AMOUNTS), name=NAMES, lease_us=LEASES_US)
    def extend(self, amounts: dict[str, int] | int, name: str, lease_us: int) -> None:
        more = self.counted(amounts) if isinstance(amounts, dict) else amounts
        self.same(
            lambda limiter, _: outcome_values(
                limiter, limiter.extend(limiter.id_of("key", name), more=more, lease_us=lease_us)
            )
        )

    @rule(amounts=AMOUNTS, name=st.one_of(st.none(), NAMES))
    def hit(self, amounts: dict[str, int], name: str | None) -> None:
        self.same(lambda limiter, _: by_name(limiter.hit("key", self.counted(amounts), id=name)))

    @rule()
    def reset(self) -> None:
        for number in range(len(KINDS)):  # the native answer can be wrong for places of several units
            self.limiter(number).reset("key")

    @rule(wait_us=st.one_of(st.integers(0, 1000), st.integers(0, 3_000_000)))
    def wait(self, wait_us: int) -> None:
        self.clock.advance(wait_us)

    @invariant()
    def they_look_alike(self) -> None:
        nothing = dict.fromkeys(self.units, 0)
        self.same(lambda limiter, _: by_name(limiter.peek("key", nothing)))


TestAllOrders = AllOrders.TestCase
TestAllOrders.settings = settings(stateful_step_count=30)
