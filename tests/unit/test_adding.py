"""A new algorithm and a new store touch no other files than those that CONTRIBUTING names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headgate import Limiter, MemoryStore
from headgate.algorithms.table import ALGORITHMS, Algorithm, Shape
from headgate.algorithms.transition import Step, convert, decide, give_back
from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit, binding_of
from headgate.holding import Hold
from headgate.http.fields.ratelimit import ratelimit_fields
from headgate.keys import Key, check_cost, encode_key
from headgate.limit_text import parse_limits
from headgate.limits import Limit
from headgate.operation import Operation, Receipt
from headgate.policy.gate import Gate
from headgate.policy.request import Request
from headgate.stores.protocol import BoundLimits, Failure, Store, StoreStats
from headgate.stores.python_table import PythonDecisions
from headgate.testing import ManualClock
from headgate.units import CompiledLimit

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LIMIT_NAMES = "|".join(algorithm.limit.__name__ for algorithm in ALGORITHMS.values())
NAMES_ONE = re.compile(rf"\b(?:{LIMIT_NAMES})\b|[\"'](?:{'|'.join(ALGORITHMS)})[\"']")
MINUTE_US = 60_000_000


def named_files(title: str) -> list[str]:
    """The files that a section of CONTRIBUTING names in its list."""
    section = CONTRIBUTING.partition(f"\n### {title}\n")[2].partition("\n##")[0]
    listed = "".join(line for line in section.splitlines() if line.startswith(("- ", "  ")))
    return re.findall(r"`([^` ]+/[^` ]*)`", listed)


@dataclass(frozen=True, slots=True)
class Cooldown(Limit):
    """A toy: up to `limit` units at once, and then nothing for a period."""

    limit: int
    period_us: int  # pyright: ignore[reportIncompatibleMethodOverride] - a frozen field is read-only too
    algorithm: ClassVar[str] = "cooldown"

    @property
    def quota(self) -> int:
        return self.limit

    @property
    def compiled(self) -> CompiledLimit:
        return CompiledLimit(self.algorithm, 1, self.limit, self.period_us)

    def scaled(self, share: Fraction) -> Limit:
        return Cooldown(max(1, int(self.limit * share)), self.period_us)

    def __str__(self) -> str:
        return f"{self.limit}/{self.period_name} cooldown"


State = tuple[int]
"""The moment until which nothing passes."""


def roll(limit: CompiledLimit, state: State | None, now: int) -> State:
    return (0,) if state is None or state[0] <= now else state


def admit(limit: CompiledLimit, state: State, now: int, cost: int) -> int | None:
    if cost == 0:
        return 0
    return None if cost > limit.quota else max(0, state[0] - now)


def charge(limit: CompiledLimit, state: State, now: int, cost: int) -> State:
    return (now + limit.period,) if cost else state


def measure(limit: CompiledLimit, state: State, now: int) -> tuple[int, int, int]:
    left = max(0, state[0] - now)
    return 0 if left else limit.quota, left, left


def converted(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    return state if state[0] > now_us else None


def given_back(limit: CompiledLimit, state: State, now: int, cost: int, earliest: int) -> State | None:
    return None if state[0] - limit.period >= earliest else state


@pytest.fixture
def cooldown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy, by an entry in the table alone."""
    transition: Any = SimpleNamespace(
        roll=roll, admit=admit, charge=charge, measure=measure, convert=converted, give_back=given_back
    )
    entry = Algorithm(Cooldown, (Shape("cooldown", ("limit",)),), transition, latest=lambda limit, state: state[0])
    monkeypatch.setitem(ALGORITHMS, "cooldown", entry)


@pytest.mark.usefixtures("cooldown")
def test_a_new_algorithm_is_an_entry_in_the_table() -> None:
    clock = ManualClock(0)
    limiter = Limiter("3/minute cooldown; 5/hour", store=MemoryStore(core="python"), clock=clock)
    first = limiter.hit("u", 2)
    assert first.allowed and [reading.name for reading in first.limits] == ["default.minute", "default.hour"]
    refused = limiter.hit("u")
    assert (refused.allowed, refused.retry_after, refused.remaining) == (False, 60.0, 0)
    assert limiter.peek("u", 4).retry_after is None
    assert [reading.remaining for reading in refused.limits] == [0, 3]
    clock.advance(MINUTE_US)
    decision = limiter.hit("u")
    assert decision.allowed
    limiter.give_back("u", 1, 0, decision)
    assert limiter.peek("u").limits[0].remaining == 0  # peek reports what its cost would leave
    assert limiter.peek("u", 0).limits[0].remaining == 3


@pytest.mark.usefixtures("cooldown")
def test_a_new_algorithm_is_parsed_scaled_printed_and_used_in_policies() -> None:
    (limit,) = parse_limits("3/minute cooldown")
    assert limit == Cooldown(3, MINUTE_US) and parse_limits(str(limit)) == (limit,)
    with pytest.raises(ValueError, match='did you mean "cooldown"'):
        parse_limits("3/minute cooldwn")
    assert str(limit.scaled(Fraction(1, 2))) == "1/minute cooldown"
    clock = ManualClock(0)
    policy = {"version": 1, "rules": [{"name": "r", "by": ["ip"], "limits": "3/minute cooldown"}]}
    gate = Gate(policy, store=MemoryStore(core="python"), clock=clock)
    request = Request(client_ip="203.0.113.9")
    assert [gate.hit(request).allowed, gate.hit(request).allowed] == [True, False]
    assert dict(ratelimit_fields(gate.hit(request)))["RateLimit-Policy"] == '"r";q=3;w=60'


@pytest.mark.usefixtures("cooldown")
def test_the_numbers_of_a_new_algorithm_can_change() -> None:
    clock, store = ManualClock(0), MemoryStore(core="python")
    assert Limiter("1/minute cooldown", name="n", store=store, clock=clock).hit("u")
    changed = Limiter("1/hour cooldown", name="n", store=store, clock=clock)
    assert changed.hit("u").retry_after == 60.0
    clock.advance(MINUTE_US)
    assert changed.hit("u").allowed and changed.hit("u").retry_after == 3600.0


def test_files_that_name_an_algorithm_are_those_that_the_page_names() -> None:
    source = ROOT / "src" / "headgate"
    naming = {
        str(file.relative_to(ROOT))
        for file in source.rglob("*.py")
        if file.parent.name != "algorithms" and NAMES_ONE.search(file.read_text())
    }
    assert naming <= {*named_files("Adding an algorithm"), *named_files("Files that name algorithms for good reason")}


@pytest.mark.parametrize(
    ("title", "least"),
    [("Adding an algorithm", 8), ("Adding a store", 3), ("Files that name algorithms for good reason", 3)],
)
def test_the_files_that_a_page_names_are_there(title: str, least: int) -> None:
    files = named_files(title)
    assert len(files) >= least
    assert [name for name in files if not (ROOT / name).exists()] == []


class DictStore(Store):
    """A toy store: a dictionary, against the protocol of stores alone."""

    failure: Failure = "never"

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], tuple[CompiledLimit, tuple[Any, ...]]] = {}

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        return DictLimits(self, tuple(limits), clock or self.clock)

    def stats(self) -> StoreStats:
        return StoreStats(len(self.states), 0, 0, 0, 0, 0, 0)

    def clear(self) -> None:
        self.states.clear()


class DictLimits(BoundLimits):
    def __init__(self, store: DictStore, limits: tuple[NamedLimit, ...], clock: Clock) -> None:
        self.store, self.limits, self.clock = store, limits, clock
        self.groups = max(limit.group for limit in limits) + 1

    def hit(self, key: Key, cost: int = 1, *, id: str | bytes | None = None) -> Decision:
        operation = Operation((key,) * self.groups, (cost,) * self.groups)
        return self.decide(operation) if id is None else self.reserve(operation, Hold(id, 0, at_once=True)).decision

    def peek(self, key: Key, cost: int = 1) -> Decision:
        return self.decide(Operation((key,) * self.groups, (cost,) * self.groups, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        every = list(keys)
        each = costs if isinstance(costs, Iterable) else [costs or 1] * len(every)
        return PythonDecisions(self.hit(key, cost) for key, cost in zip(every, each, strict=True))

    def decide(self, operation: Operation, /) -> Decision:
        now_us = self.clock.now_us() if operation.now_us is None else operation.now_us
        places = self._places(operation.keys)
        each = [check_cost(operation.costs[limit.group]) for limit in self.limits]
        states = self.read(operation.keys, now_us)
        steps = [
            Step(limit.limit.compiled, state, cost, limit.shadow)
            for limit, state, cost in zip(self.limits, states, each, strict=True)
        ]
        outcome = decide(steps, now_us, commit=operation.commit, max_delay_us=operation.max_delay_us)
        for place, step, state in zip(places, steps, outcome.states, strict=True):
            if state is not None:
                self.store.states[place] = (step.limit, state)
        binding = binding_of(self.limits, outcome.readings, each, allowed=outcome.allowed)
        return Decision(self.limits, outcome.readings, allowed=outcome.allowed, binding=binding)

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        now_us, costs = self.clock.now_us(), receipt.costs
        for place, limit in zip(self._places(receipt.keys), self.limits, strict=True):
            stored = self.store.states.pop(place, None)
            if stored is not None:
                former, state = stored
                left = give_back(limit.limit.compiled, state, now_us, costs[limit.group], now_us - ago_us, former)
                if left is not None:
                    self.store.states[place] = (former, left)

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        dropped = [self.store.states.pop(place, None) for place in self._places(keys)]
        return any(one is not None for one in dropped)

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        now_us = self.clock.now_us() if now_us is None else now_us
        stored = [self.store.states.get(place) for place in self._places(keys)]
        return [
            None
            if one is None
            else one[1]
            if one[0] == own.limit.compiled
            else convert(own.limit.compiled, one[1], now_us, one[0])
            for own, one in zip(self.limits, stored, strict=True)
        ]

    def _places(self, keys: tuple[Key, ...]) -> list[tuple[str, str]]:
        return [(limit.scope, encode_key(keys[limit.group])) for limit in self.limits]


def test_a_new_store_is_written_against_the_protocol_alone() -> None:
    clock, other = ManualClock(0), ManualClock(0)
    limits = "2/second burst 3; 9/minute; 5/second queue 2"
    toy, memory = Limiter(limits, store=DictStore(), clock=clock), Limiter(limits, clock=other)
    for step in range(60):
        answers = [limiter.hit("u", 1 + step % 2) for limiter in (toy, memory)]
        assert repr(answers[0]) == repr(answers[1])
        if answers[0] and step % 7 == 0:
            for limiter, decision in zip((toy, memory), answers, strict=True):
                limiter.give_back("u", 1, 0, decision)
        clock.advance(300_000)
        other.advance(300_000)
    assert repr(toy.peek("u")) == repr(memory.peek("u"))
    assert toy.hit_many(["a", "b"]).allowed_count == 2
    assert toy.acquire("c").allowed
    assert toy.reset("u") and not toy.reset("u")


def test_a_gate_uses_a_new_store() -> None:
    gate = Gate(
        {"version": 1, "rules": [{"name": "r", "by": ["ip"], "limits": "1/minute"}]},
        store=DictStore(),
        clock=ManualClock(0),
    )
    assert [gate.hit(Request(client_ip="203.0.113.9")).allowed for _ in range(2)] == [True, False]
