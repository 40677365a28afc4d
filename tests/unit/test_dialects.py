"""Every dialect expresses the decision, and an independent parser parses it."""

from __future__ import annotations

import re
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ConfigError, Decision, Limiter, parse_limits
from headgate.http.fields.dialects import DIALECTS, fields_of
from headgate.http.fields.ratelimit import quota_unit
from headgate.http.refusal import answer_of
from headgate.limits import Limit
from headgate.testing import ManualClock
from strategies import SEVERAL_LIMITS, history_of
from subjects import START_US, make_limiter, parse_list


def decide(cost: int = 1, times: int = 1) -> Decision:
    """Return a decision by a bucket of 20 and a daily limit of 5000."""
    limiter = Limiter("10/second burst 20; 5000/day fixed", name="api", clock=ManualClock(START_US))
    return [limiter.hit("key", cost) for _ in range(times)][-1]


def written(dialect: str | tuple[str, ...], decision: Decision) -> dict[str, str]:
    return dict(fields_of(dialect, ManualClock(START_US))(decision))


POLICIES = "20;w=2, 5000;w=86400"
NAMED = '"api.second";q=20;w=2, "api.day";q=5000;w=86400'


@pytest.mark.parametrize(
    ("dialect", "allowed", "refused"),
    [
        (
            "draft-11",
            {"RateLimit-Policy": NAMED, "RateLimit": '"api.second";r=19;t=2, "api.day";r=4999;t=57600'},
            {"RateLimit-Policy": NAMED, "RateLimit": '"api.second";r=0;t=1'},
        ),
        (
            "draft-next",
            {"RateLimit-Policy": NAMED, "RateLimit": '"api.second";a=19;w=2, "api.day";a=4999;w=57600'},
            {"RateLimit-Policy": NAMED, "RateLimit": '"api.second";a=0;w=1'},
        ),
        (
            "draft-07",
            {"RateLimit": "limit=20, remaining=19, reset=1", "RateLimit-Policy": POLICIES},
            {"RateLimit": "limit=20, remaining=0, reset=1", "RateLimit-Policy": POLICIES},
        ),
        (
            "draft-06",
            {
                "RateLimit-Limit": "20",
                "RateLimit-Remaining": "19",
                "RateLimit-Reset": "1",
                "RateLimit-Policy": POLICIES,
            },
            {"RateLimit-Limit": "20", "RateLimit-Remaining": "0", "RateLimit-Reset": "1", "RateLimit-Policy": POLICIES},
        ),
        (
            "draft-03",
            {"RateLimit-Limit": f"20, {POLICIES}", "RateLimit-Remaining": "19", "RateLimit-Reset": "1"},
            {"RateLimit-Limit": f"20, {POLICIES}", "RateLimit-Remaining": "0", "RateLimit-Reset": "1"},
        ),
        (
            "x-delta",
            {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "19", "X-RateLimit-Reset": "1"},
            {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"},
        ),
        (
            "x-epoch",
            {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "19", "X-RateLimit-Reset": "1800000001"},
            {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000001"},
        ),
        ("none", {}, {}),
    ],
)
def test_each_dialect_is_written_as_specified(dialect: str, allowed: dict[str, str], refused: dict[str, str]) -> None:
    assert written(dialect, decide()) == allowed
    assert written(dialect, decide(times=21)) == refused


def test_every_dialect_is_among_those_above() -> None:
    assert set(DIALECTS) == {
        "draft-11", "draft-next", "draft-07", "draft-06", "draft-03", "x-delta", "x-epoch", "none",
    }  # fmt: skip


def test_of_several_dialects_the_first_field_of_each_name_is_written() -> None:
    fields = written(("draft-11", "x-delta", "draft-06"), decide())
    assert fields["RateLimit-Policy"] == NAMED
    assert set(fields) == {
        "RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
        "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
    }  # fmt: skip


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no dialect of headers is named 'draft-12'; there are draft-11, "):
        fields_of("draft-12")


def test_a_refusal_that_waiting_cannot_help_still_has_a_reset() -> None:
    answer = answer_of(decide(cost=6000), fields_of("draft-07"))
    assert answer.status == 429
    assert "Retry-After" not in dict(answer.headers)
    assert dict(answer.headers)["RateLimit"] == "limit=20, remaining=20, reset=0"


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_all_dialects_are_well_formed_and_consistent(limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    limiter = make_limiter("python", limits, clock)
    for wait_us, cost in data.draw(history_of(limits, max_size=8)):
        clock.advance(wait_us)
        decision = limiter.hit("key", cost)
        for dialect in DIALECTS:
            for name, value in fields_of(dialect, clock)(decision):
                _check(dialect, name, value, decision)


def _check(dialect: str, name: str, value: str, decision: Decision) -> None:
    if dialect in ("draft-11", "draft-next"):
        for _, parameters in parse_list(value):
            assert all(isinstance(number, int) and number >= 0 for number in parameters.values())
    elif name == "RateLimit":
        parsed_fields: Any = http_sf.parse(value.encode(), tltype="dictionary")
        assert {"limit", "remaining", "reset"} == set(parsed_fields)
        assert parsed_fields["remaining"][0] == min(decision.remaining or 0, 999_999_999_999_999)
    elif name.endswith("Policy") or (dialect == "draft-03" and name.endswith("Limit")):
        parsed: Any = http_sf.parse(value.encode(), tltype="list")
        quotas = [quota for quota, parameters in parsed if "w" in parameters]
        assert len(quotas) == len(set(quotas))
    else:
        assert re.fullmatch(r"\d+", value)


def test_each_quota_names_its_unit_unless_it_counts_requests() -> None:
    text = "60/minute; 900 tokens/minute; 5 bytes/second; 0.5 usd/day"
    limiter = Limiter(text, name="llm", clock=ManualClock(START_US))
    decision = limiter.hit("key", {"tokens": 100})
    policy = written("draft-11", decision)["RateLimit-Policy"]
    assert [(name, parameters.get("qu"), parameters["q"]) for name, parameters in parse_list(policy)] == [
        ("llm.minute", None, 60), ("llm.tokens.minute", "tokens", 900), ("llm.bytes.second", "content-bytes", 5),
        ("llm.usd.day", "nano-usd", 500_000_000),
    ]  # fmt: skip
    remaining = [(name, parameters["r"]) for name, parameters in parse_list(written("draft-11", decision)["RateLimit"])]
    assert remaining == [
        ("llm.minute", 59), ("llm.tokens.minute", 800), ("llm.bytes.second", 5), ("llm.usd.day", 500_000_000),
    ]  # fmt: skip
    refused = limiter.hit("key", {"tokens": 801})
    assert written("draft-07", refused)["RateLimit-Policy"] == "900;w=60", "of the binding limit's unit alone"
    assert b"over the limit of llm.tokens.minute (900 tokens/minute);" in (answer_of(refused).body or b"")


def test_quotas_of_requests_in_flight_name_their_unit() -> None:
    assert [quota_unit(limit) for limit in parse_limits("5 concurrent; 5 tokens concurrent; 5/minute")] == [
        "concurrent-requests", "concurrent-tokens", "requests",
    ]  # fmt: skip
