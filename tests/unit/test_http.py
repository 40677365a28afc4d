"""Decisions as headers and bodies: the RateLimit fields of draft 11, Retry-After, problem bodies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Decision, Limiter
from headgate.core import native
from headgate.decision import NamedLimit, Reading, name_limits
from headgate.http.fields.ratelimit import PythonRateLimitFields, form_of, ratelimit_fields, retry_after_seconds
from headgate.http.refusal import answer_of
from headgate.limit_text import parse_limits
from headgate.limits import Limit
from headgate.testing import ManualClock
from strategies import SEVERAL_LIMITS, history_of
from subjects import START_US, make_limiter, parse_list


def fields(decision: Decision) -> dict[str, str]:
    return dict(ratelimit_fields(decision))


def renamed(decision: Decision, *names: str) -> Decision:
    """The decision with its limits named otherwise."""
    definitions = tuple(
        NamedLimit(reading.definition.limit, reading.definition.scope, name)
        for reading, name in zip(decision.limits, names, strict=True)
    )
    readings = [
        Reading(
            reading.allowed,
            reading.remaining,
            reading.reset_after_us,
            reading.retry_after_us,
            reading.next_after_us,
            reading.delay_us,
        )
        for reading in decision.limits
    ]
    binding = next((i for i, reading in enumerate(readings) if not reading.allowed), 0)
    return Decision(definitions, readings, allowed=decision.allowed, binding=binding)


def test_the_worked_example_of_two_policies_is_byte_exact(core: str) -> None:
    clock = ManualClock(START_US - START_US % 86_400_000_000 + 16_400_000)
    limiter = make_limiter(core, "10/second burst 20; 5000/day log", clock)
    assert fields(renamed(limiter.hit("key"), "burst", "daily")) == {
        "RateLimit-Policy": '"burst";q=20;w=2, "daily";q=5000;w=86400',
        "RateLimit": '"burst";r=19;t=2, "daily";r=4999;t=86400',
    }
    limiter.hit("key", 19)
    refused = renamed(limiter.hit("key"), "burst", "daily")
    answer = answer_of(refused)
    assert answer.status == 429
    assert answer.headers == [
        ("Retry-After", "1"),
        ("RateLimit-Policy", '"burst";q=20;w=2, "daily";q=5000;w=86400'),
        ("RateLimit", '"burst";r=0;t=1'),
    ]
    assert answer.problem == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "over the limit of burst (10/second burst 20); retry in 1 s",
        "retry-after-ms": 100,
        "violated-policies": ["burst"],
    }


EXAMPLES = [
    ("10/minute fixed", 3, '"default";q=10;w=60', '"default";r=7;t=60'),
    ("10/minute bucket", 3, '"default";q=10;w=60', '"default";r=7;t=42'),
    ("10/minute leaky 30", 3, '"default";q=30;w=180', '"default";r=27;t=162'),
    ("10/minute queue 29", 3, '"default";q=30;w=180', '"default";r=27;t=162'),
    ("10/minute burst 30 stepwise", 3, '"default";q=30;w=180', '"default";r=27;t=162'),
    ("10/day in Europe/Zurich", 3, '"default";q=10;w=86400', '"default";r=7;t=54000'),
    ("10/month in UTC", 3, '"default";q=10;w=2629746', '"default";r=7;t=1440000'),
    ("10/minute log", 3, '"default";q=10;w=60', '"default";r=7;t=60'),
    ("10 per 100 ms", 3, '"default";q=10', '"default";r=7;t=1'),
    ("1 per 1500 ms bucket", 1, '"default";q=1;w=2', '"default";r=0;t=2'),
]


@pytest.mark.parametrize(("text", "cost", "policy", "state"), EXAMPLES, ids=[text for text, *_ in EXAMPLES])
def test_each_algorithm_has_its_quota_and_window(core: str, text: str, cost: int, policy: str, state: str) -> None:
    clock = ManualClock(START_US - START_US % 60_000_000)
    assert fields(make_limiter(core, text, clock).hit("key", cost)) == {"RateLimit-Policy": policy, "RateLimit": state}


def test_retry_after_is_omitted_where_waiting_cannot_help(core: str) -> None:
    answer = answer_of(make_limiter(core, "5/minute", ManualClock()).hit("key", 6))
    assert answer.status == 429
    assert "Retry-After" not in dict(answer.headers)
    assert answer.problem is not None
    assert "waiting does not help" in answer.problem["detail"]
    assert "retry-after-ms" not in answer.problem


def test_a_limit_that_never_admits_has_no_time_in_its_field(core: str) -> None:
    answer = answer_of(make_limiter(core, "0/minute", ManualClock()).hit("key"))
    assert dict(answer.headers)["RateLimit"] == '"default";r=0'


def test_retry_after_is_rounded_up_and_never_0(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "1000/second bucket", clock)
    limiter.hit("key", 1000)
    assert retry_after_seconds(limiter.hit("key")) == 1
    slow = make_limiter(core, "1 per 2100 ms bucket", clock)
    slow.hit("key")
    assert retry_after_seconds(slow.hit("key")) == 3


def test_a_refusal_for_lack_of_room_is_503_not_429(core: str) -> None:
    limiter = make_limiter(core, "1/hour bucket", ManualClock(), max_keys=1, on_full="refuse")
    limiter.hit("a")
    answer = answer_of(limiter.hit("b"))
    assert answer.status == 503
    assert dict(answer.headers)["X-RateLimit-Degraded"] == "closed"
    assert dict(answer.headers)["Retry-After"] == "3600"
    assert answer.problem is not None
    assert answer.problem["type"].endswith("#temporary-reduced-capacity")


def test_a_request_that_passed_uncounted_has_the_field_degraded(core: str) -> None:
    limiter = make_limiter(core, "1/hour bucket", ManualClock(), max_keys=1, on_full="pass")
    limiter.hit("a")
    answer = answer_of(limiter.hit("b"))
    assert (answer.status, dict(answer.headers)["X-RateLimit-Degraded"]) == (200, "open")


def test_shadow_limits_are_in_no_header() -> None:
    definitions = (
        *name_limits(parse_limits("5/second"), scope="a", name="real"),
        *name_limits(parse_limits("1/second"), scope="b", name="candidate", shadow=True),
    )
    readings = [Reading(True, 4, 1, 0, 1, 0), Reading(False, 0, 1, 1, 1, 0)]
    decision = Decision(definitions, readings, allowed=True, binding=0)
    assert "candidate" not in str(ratelimit_fields(decision))
    assert ratelimit_fields(Decision((), (), allowed=True, binding=None)) == []


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_every_field_parses_and_keeps_the_rules_of_the_draft(
    core: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    limiter: Limiter = make_limiter(core, limits, clock)
    for wait_us, cost in data.draw(history_of(limits)):
        clock.advance(wait_us)
        decision = limiter.hit("key", cost)
        parsed = {name: parse_list(value) for name, value in ratelimit_fields(decision)}
        policies = dict(parsed["RateLimit-Policy"])
        assert list(policies) == [reading.name for reading in decision.limits]
        for name, parameters in parsed["RateLimit"]:
            reading = next(reading for reading in decision.limits if reading.name == name)
            assert 0 <= parameters["r"] <= policies[name]["q"]
            if reading.retry_after_us is None and not reading.remaining:
                assert "t" not in parameters  # nothing will be there at any time
                continue
            assert parameters["t"] >= 0
            if not decision.allowed:
                assert not reading.allowed
                assert parameters["t"] >= 1
            if decision.retry_after_us is not None and not decision.allowed:
                seconds = retry_after_seconds(decision)
                assert seconds is not None
                assert parameters["t"] <= seconds == max(1, math.ceil(decision.retry_after_us / 1e6))


NUMBERS = st.one_of(st.integers(0, 5), st.integers(0, 1 << 52), st.integers(10**14, 10**16))
READINGS = st.builds(
    Reading, st.booleans(), NUMBERS, NUMBERS, st.one_of(st.none(), NUMBERS), NUMBERS, st.sampled_from([0, 0, 7])
)


@pytest.mark.skipif(native is None, reason="there is one core here")
@given(
    SEVERAL_LIMITS, st.lists(READINGS, min_size=8, max_size=8), st.booleans(), st.integers(0, 255),
    st.sampled_from(["", "open", "local"]),
)  # fmt: skip
def test_both_cores_write_the_same_fields(
    limits: list[Limit], readings: list[Reading], allowed: bool, shadows: int, degraded: str
) -> None:
    definitions = tuple(
        NamedLimit(limit, "scope", f"name{index}", shadow=bool(shadows >> index & 1))
        for index, limit in enumerate(limits)
    )
    # A limit admits exactly what it need not wait for.
    consistent = [
        reading._replace(
            retry_after_us=0 if reading.allowed else reading.retry_after_us and max(1, reading.retry_after_us)
        )
        for reading in readings[: len(limits)]
    ]
    consistent = [reading._replace(allowed=reading.retry_after_us == 0) for reading in consistent]
    decision = Decision(definitions, consistent, allowed=allowed, binding=None, degraded=degraded)
    forms = [form_of(definition) for definition in definitions]
    for policy, name in ((("RateLimit-Policy", "all"), "RateLimit"), ((b"p", b"q"), b"r"), (None, "RateLimit")):
        assert native is not None
        native_writer, python_writer = (
            native.RateLimitFields(forms, policy, name),
            PythonRateLimitFields(forms, policy, name),
        )
        assert native_writer.write(decision) == python_writer.write(decision)
        assert native_writer.write_passing(decision) == python_writer.write_passing(decision)


@pytest.mark.parametrize(("retry_after_us", "milliseconds"), [(1, 1), (1_000, 1), (1_001, 2), (999_999, 1_000)])
def test_a_wait_in_milliseconds_is_never_too_short(retry_after_us: int, milliseconds: int) -> None:
    definitions = name_limits(parse_limits("5/minute"), scope="x", name="api")
    reading = Reading(False, 0, retry_after_us, retry_after_us, retry_after_us, 0)
    problem = answer_of(Decision(definitions, [reading], allowed=False, binding=0)).problem
    assert problem is not None
    assert problem["retry-after-ms"] == milliseconds
