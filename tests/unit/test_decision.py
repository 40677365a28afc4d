"""Decisions: which limit is binding, in which units, and as values."""

from __future__ import annotations

import copy
import pickle

import pytest

from headgate import Decision, LimitReading
from headgate.decision import NamedLimit, PythonDecision, Reading, binding_of, name_limits
from headgate.limit_text import parse_limits
from headgate.testing import ManualClock
from subjects import make_limiter, numbers


def test_a_decision_is_true_when_it_allows(core: str) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())
    decision = limiter.hit("key")
    assert decision
    assert isinstance(decision, (Decision, PythonDecision))
    assert not limiter.hit("key")


def test_seconds_are_floats_and_microseconds_integers(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "3/second bucket", clock)
    limiter.hit("key", 3)
    decision = limiter.hit("key", 2)
    assert (decision.retry_after_us, decision.retry_after) == (666_667, 0.666667)
    assert (decision.reset_after_us, decision.reset_after) == (1_000_000, 1.0)
    assert (decision.delay_us, decision.delay) == (0, 0.0)
    assert (limiter.hit("key", 9).retry_after_us, limiter.hit("key", 9).retry_after) == (None, None)
    assert (limiter.hit("key", 0).retry_after_us, limiter.hit("key", 0).retry_after) == (0, 0.0)


def test_on_a_refusal_the_limit_with_the_longest_wait_is_binding(core: str) -> None:
    limiter = make_limiter(core, "5/second bucket; 6/minute bucket; 1000/hour bucket", ManualClock())
    limiter.hit("key", 5)
    decision = limiter.hit("key", 4)
    assert decision.binding is not None
    assert decision.binding.name == "default.minute"
    assert decision.retry_after_us == decision.limits[1].retry_after_us
    assert (decision.limit, decision.remaining) == (6, 1)
    never = limiter.hit("key", 6)
    assert never.binding is not None
    assert never.binding.name == "default.second"
    assert never.retry_after is None


def test_when_allowed_the_limit_with_the_fewest_further_requests_is_binding(core: str) -> None:
    limiter = make_limiter(core, "10/second bucket; 12/minute bucket", ManualClock())
    first = limiter.hit("key", 2)
    assert first.binding is not None
    assert first.binding.name == "default.second"
    # Of equals the one that resets latest: 4 further requests of cost 2 under both.
    limiter.reset("key")
    limiter.hit("key", 1)
    equal = limiter.hit("key", 1)
    assert equal.binding is not None
    assert [reading.remaining for reading in equal.limits] == [8, 10]


def test_every_limits_own_numbers_are_there_in_order(core: str) -> None:
    decision = make_limiter(core, "10/second burst 100; 1000/hour", ManualClock()).hit("key", 7)
    assert [(reading.limit, reading.remaining) for reading in decision.limits] == [(100, 93), (1000, 993)]
    assert [reading.name for reading in decision.limits] == ["default.second", "default.hour"]
    assert all(isinstance(reading, LimitReading) for reading in decision.limits)
    assert decision.limits[0].reset_after == 0.7


@pytest.mark.parametrize("implementation", [Decision, PythonDecision])
def test_a_decision_can_be_made_from_readings(implementation: type[Decision]) -> None:
    definitions = name_limits(parse_limits("5/second; 7/minute"), scope="x", name="api", rule="login")
    readings = [Reading(True, 4, 10, 0, 10, 0), Reading(False, 0, 99, 50, 50, 3)]
    decision = implementation(definitions, readings, allowed=False, binding=1, degraded="local")
    assert decision.binding == LimitReading(definitions[1], *readings[1])
    assert decision.limits == tuple(
        LimitReading(definition, *reading) for definition, reading in zip(definitions, readings, strict=True)
    )
    assert (decision.limit, decision.remaining, decision.rule, decision.degraded) == (7, 0, "login", "local")
    assert (decision.retry_after_us, decision.reset_after_us, decision.delay_us) == (50, 99, 3)
    for clone in (pickle.loads(pickle.dumps(decision)), copy.deepcopy(decision)):
        assert numbers(clone) == numbers(decision)
    expected = (
        "Decision(allowed=False, rule='login', limit=7, remaining=0, reset_after=9.9e-05, retry_after=5e-05, "
        "delay=3e-06, degraded='local')"
    )
    assert repr(decision) == expected


@pytest.mark.parametrize("implementation", [Decision, PythonDecision])
def test_where_no_limit_applied_none_is_binding(implementation: type[Decision]) -> None:
    decision = implementation((), (), allowed=True, binding=None)
    assert decision
    assert (decision.limit, decision.remaining, decision.reset_after, decision.binding) == (None, None, None, None)
    assert (decision.retry_after, decision.delay, decision.limits, decision.rule) == (0.0, 0.0, (), "")
    refused = implementation((), (), allowed=False, binding=None, degraded="closed")
    assert refused.retry_after is None


def test_a_shadow_limit_is_never_binding() -> None:
    (limit,) = parse_limits("5/second")
    definitions = [NamedLimit(limit, "a", "a", shadow=True), NamedLimit(limit, "b", "b")]
    readings = [Reading(False, 0, 9, 9, 9, 0), Reading(True, 4, 9, 0, 9, 0)]
    assert binding_of(definitions, readings, [1, 1], allowed=True) == 1
    assert binding_of(definitions[:1], readings[:1], [1], allowed=True) is None


def test_names_distinguish_limits() -> None:
    limits = parse_limits("1/second; 2/hour; 3/hour; 4 per 30 seconds; 20 concurrent")
    names = [limit.name for limit in name_limits(limits, scope="s", name="api")]
    assert names == ["api.second", "api.hour", "api.hour-2", "api.30seconds", "api.concurrent"]
    assert [limit.name for limit in name_limits(limits[:1], scope="s", name="api")] == ["api"]
    short = parse_limits("5 per 7 ms; 9 per 2 seconds; 1 per 3 us")
    assert [limit.name for limit in name_limits(short, scope="s", name="api")] == ["api.7ms", "api.2seconds", "api.3us"]
    scopes = [limit.scope for limit in name_limits(limits, scope="s", name="api")]
    assert scopes == [
        "s/sliding.0",
        "s/sliding.1",
        "s/sliding.2",
        "s/sliding.3",
        "s/concurrent.0",
    ]


def test_both_kinds_of_sliding_window_are_one_family_in_a_store() -> None:
    """`5/minute` is a log and `500/minute` a counter: a limit that is raised keeps its place."""
    limits = parse_limits("5/minute; 500/hour; 3/minute counter; 300/hour log; 1/minute fixed")
    scopes = [limit.scope for limit in name_limits(limits, scope="s", name="api")]
    assert scopes == ["s/sliding.0", "s/sliding.1", "s/sliding.2", "s/sliding.3", "s/fixed_window.0"]


def test_a_shadow_limit_that_refuses_is_not_binding_where_another_refuses_sooner() -> None:
    (limit,) = parse_limits("5/second")
    definitions = [NamedLimit(limit, "a", "a", shadow=True), NamedLimit(limit, "b", "b"), NamedLimit(limit, "c", "c")]
    readings = [Reading(False, 0, 9, 9, 9, 0), Reading(False, 0, 3, 3, 3, 0), Reading(True, 4, 9, 0, 9, 0)]
    assert binding_of(definitions, readings, [1, 1, 1], allowed=False) == 1
    never = [readings[0]._replace(retry_after_us=None), *readings[1:]]
    assert binding_of(definitions, never, [1, 1, 1], allowed=False) == 1


@pytest.mark.parametrize(
    ("remaining", "resets", "cost", "binding"),
    [
        ((6, 5), (9, 9), 3, 1),  # one more request of 3 under the second, two under the first
        ((4, 5), (9, 9), 3, 0),  # one more under both, and both reset at once: the first
        ((5, 4), (9, 10), 3, 1),  # one more under both: the second resets later
        ((4, 5), (9, 10), 3, 1),
        ((4, 5), (10, 9), 3, 0),
        ((4, 5), (9, 10), 0, 0),  # a cost of 0 counts as 1
    ],
)
def test_when_allowed_the_limit_nearest_to_refusing_this_cost_is_binding(
    remaining: tuple[int, int], resets: tuple[int, int], cost: int, binding: int
) -> None:
    (limit,) = parse_limits("9/second")
    definitions = [NamedLimit(limit, name, name) for name in "ab"]
    readings = [Reading(True, left, reset_us, 0, 1, 0) for left, reset_us in zip(remaining, resets, strict=True)]
    assert binding_of(definitions, readings, [cost, cost], allowed=True) == binding


def test_decisions_of_many_keys_can_be_copied_and_pickled(core: str) -> None:
    limiter = make_limiter(core, "2/minute; 3/hour", ManualClock(), name="api")
    decisions = limiter.hit_many(["a", "a", "b", "a"])
    for clone in (pickle.loads(pickle.dumps(decisions)), copy.copy(decisions), copy.deepcopy(decisions)):
        assert clone.allowed == decisions.allowed and clone.allowed_count == decisions.allowed_count == 3
        assert list(map(numbers, clone)) == list(map(numbers, decisions))
        assert len(clone) == 4 and numbers(clone[-1]) == numbers(decisions[-1])
