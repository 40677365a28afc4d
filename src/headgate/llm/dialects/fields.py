"""What remains, as headers of OpenAI's and of Anthropic's answers tell it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from headgate.amounts import is_money, number_text
from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND, Clock, since_epoch_us, utc_moment
from headgate.decision import Decision, NamedLimit
from headgate.llm.dialects.answers import duration_text
from headgate.llm.dialects.paths import Family

_MOST_KNOWN = 1000
_PREFIXES: dict[Family, str] = {"openai": "x-ratelimit-", "anthropic": "anthropic-ratelimit-"}
_LAST_US = since_epoch_us(datetime(9999, 12, 31, tzinfo=UTC))

LIMIT_HEADERS = tuple(_PREFIXES.values())
"""How the names of headers begin that tell of limits."""

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
    readings, prefix = decision.readings, _PREFIXES[family]
    for name, unit, of_money, limits in _told(family, decision.definitions):
        place, limit = limits[0] if len(limits) == 1 else _nearest(limits, readings)
        _, remaining, reset_after_us, *_ = readings[place]
        left = number_text(max(0, remaining), unit) if of_money else str(max(0, remaining))
        if family == "anthropic":
            reset_us = now_us
            if reset_after_us:
                reset_us = decision.definitions[place].limit.border_us(now_us + reset_after_us)
            parts = [("limit", limit), ("remaining", left), ("reset", moment_text(reset_us))]
            headers += [(f"{prefix}{name}-{part}", value) for part, value in parts]
        else:
            reset = duration_text(reset_after_us)
            headers += [(f"{prefix}limit-{name}", limit), (f"{prefix}remaining-{name}", left)]
            headers.append((f"{prefix}reset-{name}", reset))
    return headers


def moment_text(at_us: int) -> str:
    """A moment as RFC 3339 writes it, in whole seconds, rounded up."""
    seconds = -(-min(at_us, _LAST_US) // US_PER_SECOND)
    return f"{utc_moment(seconds * US_PER_SECOND):%Y-%m-%dT%H:%M:%SZ}"


_Numbers = tuple[bool, int, int, int | None, int, int]
"""A `Reading`'s."""

_Told = list[tuple[str, str, bool, list[tuple[int, str]]]]


def _told(family: Family, definitions: tuple[NamedLimit, ...]) -> _Told:
    """What headers tell of limits of each unit: (its name there, the unit, whether it is money, the limits of it).

    Of a limit its place and its size. Known of those that were asked before: a policy's limits are the same objects in
    each decision.
    """
    known = _known.get((family, id(definitions)))
    if known is not None and known[0] is definitions:
        return known[1]
    found: dict[str, tuple[str, list[tuple[int, str]]]] = {}
    for place, definition in enumerate(definitions):
        limit = definition.limit
        if definition.shadow or not limit.is_rate:
            continue
        unit = "input_tokens" if family == "anthropic" and limit.of == _CACHE_AWARE else limit.of
        name = unit.replace("_", "-").lower()
        found.setdefault(name, (limit.of, []))[1].append((place, number_text(limit.quota, limit.of)))
    told = [(name, unit, is_money(unit), limits) for name, (unit, limits) in found.items()]
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[family, id(definitions)] = definitions, told
    return told


_known: dict[tuple[Family, int], tuple[tuple[NamedLimit, ...], _Told]] = {}
"""By dialect and definitions, which are kept here so that no others get their id."""


def _nearest(limits: list[tuple[int, str]], readings: Sequence[_Numbers]) -> tuple[int, str]:
    """The limit that is told of several: refusing ones first, of those the longest wait; then what has least left."""
    told, least = limits[0], (2, 0, 0)
    for each in limits:
        allowed, remaining, reset_after_us, wait_us, _, _ = readings[each[0]]
        if allowed:
            rank = 1, remaining, -reset_after_us
        else:
            rank = 0, -(1 << 62) if wait_us is None else -wait_us, remaining
        if rank < least:
            told, least = each, rank
    return told
