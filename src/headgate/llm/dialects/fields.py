"""What remains, as headers of OpenAI's and of Anthropic's answers tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headgate.amounts import number_text
from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.decision import Decision, LimitReading
from headgate.llm.dialects.answers import duration_text
from headgate.llm.dialects.paths import Family

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)

_CACHE_AWARE = "uncached_input_tokens"
"""What Anthropic calls input tokens, as most of its limits leave out what the cache read."""


def limit_headers(family: Family, decision: Decision, *, clock: Clock = SYSTEM_CLOCK) -> list[tuple[str, str]]:
    """The limits of a decision, of each unit the one that is nearest to refusing, or refuses for longest.

    `x-ratelimit-{limit,remaining,reset}-{requests,tokens,input-tokens,...}`, the reset a duration such as `6m0s`; or
    `anthropic-ratelimit-{...}-{limit,remaining,reset}`, the reset a moment (RFC 3339). Of money whole currency: `-usd`.
    Limits of calls in flight are left out, which no reset tells.
    """
    headers: list[tuple[str, str]] = []
    now_us = clock.now_us()
    for name, reading in _nearest(family, decision).items():
        remaining = number_text(max(0, reading.remaining), reading.unit)
        told = {"limit": number_text(reading.limit, reading.unit), "remaining": remaining}
        if family == "anthropic":
            told["reset"] = moment_text(now_us + reading.reset_after_us)
            headers += [(f"anthropic-ratelimit-{name}-{part}", value) for part, value in told.items()]
        else:
            told["reset"] = duration_text(reading.reset_after_us)
            headers += [(f"x-ratelimit-{part}-{name}", value) for part, value in told.items()]
    return headers


def is_limit_header(name: str) -> bool:
    """Whether a header, in lower case, tells of limits: a provider's are those of its own customer, not of a caller."""
    return name.startswith(("x-ratelimit-", "anthropic-ratelimit-"))


def moment_text(at_us: int) -> str:
    """A moment as RFC 3339 writes it, in whole seconds, rounded up."""
    seconds = -(-min(at_us, _LAST_US) // 1_000_000)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def _nearest(family: Family, decision: Decision) -> dict[str, LimitReading]:
    """By the name of a unit in headers, the limit that is told of it."""
    found: dict[str, LimitReading] = {}
    for reading in decision.limits:
        if reading.shadow or not reading.definition.limit.is_rate:
            continue
        unit = "input_tokens" if family == "anthropic" and reading.unit == _CACHE_AWARE else reading.unit
        name = unit.replace("_", "-").lower()
        if name not in found or _is_nearer(reading, found[name]):
            found[name] = reading
    return found


def _is_nearer(reading: LimitReading, other: LimitReading) -> bool:
    return _rank(reading) < _rank(other)


def _rank(reading: LimitReading) -> tuple[bool, int, int]:
    """The least is told: refusing ones first, of those the longest wait; then what has the least left."""
    wait_us = reading.retry_after_us
    if not reading.allowed:
        return False, -(1 << 62) if wait_us is None else -wait_us, reading.remaining
    return True, reading.remaining, -reading.reset_after_us
