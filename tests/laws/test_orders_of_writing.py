"""Limiters that write the same limits in other orders are one: charges, holds and settlings are of their units."""

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
"""One of each kind; that all Redis hold alike is another law."""

needs_two = pytest.mark.skipif(len(KINDS) < 2, reason="only one store that holds is here")
UNITS = ("requests", "tokens", "bytes", "Jobs", "rows")
SHAPES = ("{} {}/second fixed", "{} {}/second log", "{} {}/2 seconds bucket", "{} {}/minute fixed", "{} {} concurrent")
TEXTS = st.builds(str.format, st.sampled_from(SHAPES), st.integers(1, 60), st.sampled_from(UNITS))
LIMITS = st.lists(TEXTS, min_size=2, max_size=6).filter(lambda texts: len(units_of(parse_limits("; ".join(texts)))) > 1)
AMOUNTS = st.dictionaries(st.sampled_from(UNITS), st.integers(0, 5))
"""Of units that limits may not count: what they do not is left out."""

NAMES = st.sampled_from(["1", "2", "3", "4"])
LEASES_US = st.one_of(st.integers(1, 10**6), st.just(3_600_000_000))


def by_name(decision: Decision) -> object:
    """All that a decision says of each limit; which of several equals speaks depends on their order."""
    readings = zip(decision.limits, decision.readings, strict=True)
    told = {reading.definition.scope: tuple(own) for reading, own in readings}
    return decision.allowed, decision.degraded, decision.retry_after_us, decision.delay_us, told


def told(limiter: Limiter, came: Any) -> object:
    """What came of a settling, by units and limits."""
    actuals = getattr(came, "actuals", None)
    amounts = None if actuals is None else dict(zip(units_of(limiter.limits), actuals, strict=True))
    after = {own.definition.scope: (own.remaining, own.reset_after_us) for own in came.after}
    decision = getattr(came, "decision", None)
    return came.outcome, amounts, after, None if decision is None else by_name(decision)


@needs_two
class AllOrders(RuleBasedStateMachine):
    """Stores that are asked for the same, each time by limiters that write the limits in some order."""

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
        """Places of the limits in some order; those of one unit keep theirs, which tells them apart."""
        units = [limit.of for limit in parse_limits("; ".join(self.texts))]
        own = {unit: [place for place, of in enumerate(units) if of == unit] for unit in units}
        self.random.shuffle(units)
        return tuple(own[unit].pop(0) for unit in units)

    def limiter(self, number: int) -> Limiter:
        """A limiter that asks a store, in an order of its own."""
        asked = number, self.order()
        if asked not in self.known:
            text = "; ".join(self.texts[place] for place in asked[1])
            self.known[asked] = Limiter(text, store=self.stores[number], name="api", clock=self.clock)
        return self.known[asked]

    def same(self, ask: Callable[[Limiter, int], object]) -> None:
        """All answer alike, or raise the same kind of error."""
        answers = []
        for number in range(len(KINDS)):
            try:
                answers.append(ask(self.limiter(number), number))
            except (ArgumentError, ConflictingId) as error:
                answers.append(type(error))
        assert all(answer == answers[0] for answer in answers)

    def counted(self, amounts: dict[str, int]) -> dict[str, int]:
        return {unit: amount for unit, amount in amounts.items() if unit in self.units}

    @rule(amounts=AMOUNTS, name=st.one_of(st.none(), NAMES), lease_us=LEASES_US)
    def reserve(self, amounts: dict[str, int], name: str | None, lease_us: int) -> None:
        cost, ids = self.counted(amounts), list[str]()

        def ask(limiter: Limiter, _: int) -> object:
            held = limiter.reserve("key", cost, id=name, lease_us=lease_us)
            ids.append(held.id)
            return by_name(held.decision), held.repeated

        self.same(ask)
        if name is None:
            self.unnamed.append(ids)

    @rule(amounts=st.one_of(st.none(), st.just(0), AMOUNTS), name=NAMES)
    def commit(self, amounts: dict[str, int] | int | None, name: str) -> None:
        actual = self.counted(amounts) if isinstance(amounts, dict) else amounts
        self.same(lambda limiter, _: told(limiter, limiter.commit(limiter.id_of("key", name), actual)))

    @rule(amounts=st.one_of(st.none(), AMOUNTS), place=st.integers(0, 5))
    def commit_without_a_name(self, amounts: dict[str, int] | None, place: int) -> None:
        if self.unnamed:
            ids = self.unnamed[-1 - place % len(self.unnamed)]
            actual = None if amounts is None else self.counted(amounts)
            self.same(lambda limiter, number: told(limiter, limiter.commit(ids[number], actual)))

    @rule(amounts=st.one_of(st.just(0), AMOUNTS), name=NAMES, lease_us=LEASES_US)
    def extend(self, amounts: dict[str, int] | int, name: str, lease_us: int) -> None:
        more = self.counted(amounts) if isinstance(amounts, dict) else amounts
        self.same(
            lambda limiter, _: told(limiter, limiter.extend(limiter.id_of("key", name), more=more, lease_us=lease_us))
        )

    @rule(amounts=AMOUNTS, name=st.one_of(st.none(), NAMES))
    def hit(self, amounts: dict[str, int], name: str | None) -> None:
        self.same(lambda limiter, _: by_name(limiter.hit("key", self.counted(amounts), id=name)))

    @rule()
    def reset(self) -> None:
        for number in range(len(KINDS)):  # the native answer to it can be wrong of places of several units
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
