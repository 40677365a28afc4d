"""The limits of a decision, as headers of OpenAI's and of Anthropic's answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from headgate.amounts import is_money, number_text
from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND, Clock, since_epoch_us, utc_moment
from headgate.decision import Decision, NamedLimit
from headgate.llm.dialects.answers import duration_text
from headgate.llm.dialects.paths import Family

_MOST_CACHED = 1000
_PREFIXES: dict[Family, str] = {"openai": "x-ratelimit-", "anthropic": "anthropic-ratelimit-"}
_LAST_US = since_epoch_us(datetime(9999, 12, 31, tzinfo=UTC))

LIMIT_HEADERS = tuple(_PREFIXES.values())
"""The prefixes of the names of headers that report limits."""

_CACHE_AWARE = "uncached_input_tokens"
"""The unit that Anthropic calls input tokens, as most of its limits leave out tokens read from the cache."""


def limit_headers(family: Family, decision: Decision, *, clock: Clock = SYSTEM_CLOCK) -> list[tuple[str, str]]:
    """The limits of a decision: for each unit the one that is nearest to refusing, or that refuses for longest.

    `x-ratelimit-{limit,remaining,reset}-{requests,tokens,input-tokens,...}`, the reset a duration such as `6m0s`; or
    `anthropic-ratelimit-{...}-{limit,remaining,reset}`, the reset a time (RFC 3339). Money is in dollars: `-usd`.
    Limits of calls in flight are left out: they have no reset.
    """
    headers: list[tuple[str, str]] = []
    now_us = clock.now_us()
    readings, prefix = decision.readings, _PREFIXES[family]
    for name, unit, of_money, limits in _reported_units(family, decision.definitions):
        place, limit = limits[0] if len(limits) == 1 else _nearest(limits, readings)
        _, remaining, reset_after_us, *_ = readings[place]
        remaining_text = number_text(max(0, remaining), unit) if of_money else str(max(0, remaining))
        if family == "anthropic":
            reset_us = now_us
            if reset_after_us:
                reset_us = decision.definitions[place].limit.border_us(now_us + reset_after_us)
            parts = [("limit", limit), ("remaining", remaining_text), ("reset", moment_text(reset_us))]
            headers += [(f"{prefix}{name}-{part}", value) for part, value in parts]
        else:
            reset = duration_text(reset_after_us)
            headers += [(f"{prefix}limit-{name}", limit), (f"{prefix}remaining-{name}", remaining_text)]
            headers.append((f"{prefix}reset-{name}", reset))
    return headers


def moment_text(at_us: int) -> str:
    """A time as RFC 3339 writes it, in whole seconds, rounded up."""
    seconds = -(-min(at_us, _LAST_US) // US_PER_SECOND)
    return f"{utc_moment(seconds * US_PER_SECOND):%Y-%m-%dT%H:%M:%SZ}"


_Numbers = tuple[bool, int, int, int | None, int, int]
"""The numbers of a `Reading`."""

_UnitLimits = list[tuple[str, str, bool, list[tuple[int, str]]]]


def _reported_units(family: Family, definitions: tuple[NamedLimit, ...]) -> _UnitLimits:
    """The limits of each unit that headers report: (its name in headers, the unit, whether it is money, its limits).

    A limit is its place and its size. The result is cached: a policy's limits are the same objects in each decision.
    """
    cached = _cache.get((family, id(definitions)))
    if cached is not None and cached[0] is definitions:
        return cached[1]
    by_name: dict[str, tuple[str, list[tuple[int, str]]]] = {}
    for place, definition in enumerate(definitions):
        limit = definition.limit
        if definition.shadow or not limit.is_rate:
            continue
        unit = "input_tokens" if family == "anthropic" and limit.of == _CACHE_AWARE else limit.of
        name = unit.replace("_", "-").lower()
        by_name.setdefault(name, (limit.of, []))[1].append((place, number_text(limit.quota, limit.of)))
    units = [(name, unit, is_money(unit), limits) for name, (unit, limits) in by_name.items()]
    if len(_cache) >= _MOST_CACHED:
        _cache.clear()
    _cache[family, id(definitions)] = definitions, units
    return units


_cache: dict[tuple[Family, int], tuple[tuple[NamedLimit, ...], _UnitLimits]] = {}
"""By dialect and the id of definitions, which are kept here so that no other object gets that id."""


def _nearest(limits: list[tuple[int, str]], readings: Sequence[_Numbers]) -> tuple[int, str]:
    """The limit to report of several: refusing ones first, of those the longest wait; then the least remaining."""
    nearest, least = limits[0], (2, 0, 0)
    for each in limits:
        allowed, remaining, reset_after_us, wait_us, _, _ = readings[each[0]]
        if allowed:
            rank = 1, remaining, -reset_after_us
        else:
            rank = 0, -(1 << 62) if wait_us is None else -wait_us, remaining
        if rank < least:
            nearest, least = each, rank
    return nearest
