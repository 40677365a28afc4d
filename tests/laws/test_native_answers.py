"""The native core tells clients of a decision in the same bytes as Python: bodies of refusals, `/v1/check`."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import Decision
from headgate.core import native
from headgate.decision import NamedLimit, Reading, binding_of
from headgate.http.fields.ratelimit import native_answers, ratelimit_fields
from headgate.http.refusal import python_refusal_body
from headgate.limits import Limit
from headgate.service.checks.decision_json import python_decision_json
from strategies import SEVERAL_LIMITS

_AMOUNTS = st.one_of(
    st.integers(0, 130), st.integers(0, 10**9), st.integers(0, 1 << 52), st.integers(10**14, (1 << 62) - 1)
)
_READINGS = st.builds(
    lambda remaining, reset_us, wait_us, next_us, delay_us: Reading(
        wait_us == 0, remaining, reset_us, wait_us, next_us, delay_us
    ),
    st.one_of(_AMOUNTS, st.integers(-(10**9), 0)), _AMOUNTS, st.one_of(st.just(0), st.none(), _AMOUNTS), _AMOUNTS,
    st.one_of(st.just(0), _AMOUNTS),
)  # fmt: skip
_NAMES = st.one_of(
    st.sampled_from(["default", "default.2", "defaults", "login", 'a "quoted\\ name']),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
)
_RULES = st.one_of(st.just(""), _NAMES)


@pytest.mark.skipif(native is None, reason="there is one core here")
@given(
    SEVERAL_LIMITS,
    st.lists(st.tuples(_READINGS, _NAMES, _RULES, st.booleans()), min_size=4, max_size=4),
    st.sampled_from(["", "", "local", "open", "closed"]),
)
def test_both_cores_send_the_same_response(
    limits: list[Limit], rest: list[tuple[Reading, str, str, bool]], degraded: str
) -> None:
    assume(all(limit.window_us < 1 << 62 for limit in limits))  # others are left to Python
    definitions = tuple(
        NamedLimit(limit, "scope", name, rule, shadow=shadow)
        for limit, (_, name, rule, shadow) in zip(limits, rest, strict=False)
    )
    readings = [reading for reading, *_ in rest[: len(limits)]]
    allowed = all(reading.allowed or one.shadow for reading, one in zip(readings, definitions, strict=True))
    binding = binding_of(definitions, readings, [1] * len(limits), allowed=allowed)
    decision = Decision(definitions, readings, allowed=allowed, binding=binding, degraded=degraded)
    answers = native_answers(definitions, dict(ratelimit_fields(decision)).get("RateLimit-Policy", ""))
    written = answers.decision_json(decision)
    assert written == python_decision_json(decision)
    assert json.loads(written)["allowed"] is allowed
    if not allowed:
        assert answers.problem(decision) == python_refusal_body(decision)


@pytest.mark.skipif(native is None, reason="there is one core here")
def test_both_cores_send_the_same_response_for_a_decision_without_limits() -> None:
    decision = Decision((), [], allowed=True, binding=None)
    assert native_answers((), "").decision_json(decision) == python_decision_json(decision)
