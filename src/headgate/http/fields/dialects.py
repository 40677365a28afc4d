"""The dialects of rate limit header fields, by name; each writes the fields of a decision.

`draft-11` is that of `ratelimit_fields`, and `draft-next` what the draft's editors write now. The older
ones, and `X-RateLimit-*`, report only one limit: the binding one. Sources: the tags -03, -06, -07 and -11
of draft-ietf-httpapi-ratelimit-headers; of `x-epoch`, GitHub's documentation of its REST API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.decision import Decision, LimitReading
from headgate.errors import ConfigError
from headgate.http.fields.ratelimit import (
    LARGEST_INTEGER,
    effective_seconds,
    ratelimit_fields,
    retry_after_seconds,
    window_seconds,
)

Fields = Callable[[Decision], list[tuple[str, str]]]
"""Writes the fields of a decision: (name, value) each."""

NONE = "none"


def fields_of(dialects: str | Sequence[str], clock: Clock = SYSTEM_CLOCK) -> Fields:
    """Return the writer of one dialect, or of several one after another; raises ConfigError for an unknown name.

    `clock` gives the current time for `x-epoch`.
    """
    if not isinstance(dialects, str | Sequence):
        raise ConfigError(f"headers are the name of a dialect, or a list of names, not {dialects!r:.40}")
    names = (dialects,) if isinstance(dialects, str) else tuple(dialects)
    writers: dict[str, Fields] = {**_WRITERS, "x-epoch": partial(_x_epoch, clock)}
    for name in names:
        if name not in writers:
            raise ConfigError(f"no dialect of headers is named {name!r:.40}; there are {', '.join(writers)}")
    if len(names) == 1:
        return writers[names[0]]

    def write_several(decision: Decision) -> list[tuple[str, str]]:
        fields: dict[str, tuple[str, str]] = {}
        for name in names:
            for field in writers[name](decision):
                fields.setdefault(field[0].lower(), field)  # the drafts share names: the first field of a name counts
        return list(fields.values())

    return write_several


def _no_fields(decision: Decision) -> list[tuple[str, str]]:
    return []


def _draft_next(decision: Decision) -> list[tuple[str, str]]:
    """`RateLimit: "api";a=99;w=60`"""
    fields = []
    for name, value in ratelimit_fields(decision):
        renamed = value
        if name == "RateLimit":
            enforced = [reading for reading in decision.limits if not reading.shadow]
            listed = enforced if decision.allowed else [reading for reading in enforced if not reading.allowed]
            renamed = ", ".join(map(_draft_next_item, listed))
        fields.append((name, renamed))
    return fields


def _draft_next_item(reading: LimitReading) -> str:
    available = f'"{reading.name}";a={min(max(reading.remaining, 0), LARGEST_INTEGER)}'
    never = reading.retry_after_us is None and reading.remaining <= 0
    if never or not reading.definition.limit.is_rate:
        return available
    return f"{available};w={effective_seconds(reading)}"


def _draft_07(decision: Decision) -> list[tuple[str, str]]:
    """`RateLimit: limit=100, remaining=50, reset=5`"""
    numbers = _binding_numbers(decision)
    if numbers is None:
        return []
    limit, remaining, reset = numbers
    policies = ", ".join(_policies(decision))
    fields = [("RateLimit", f"limit={limit}, remaining={remaining}, reset={reset}")]
    return [*fields, ("RateLimit-Policy", policies)] if policies else fields


def _draft_06(decision: Decision) -> list[tuple[str, str]]:
    """`RateLimit-Limit: 100`, and so on, each an Integer."""
    fields = _three_fields("RateLimit", decision)
    policies = ", ".join(_policies(decision))
    return [*fields, ("RateLimit-Policy", policies)] if fields and policies else fields


def _draft_03(decision: Decision) -> list[tuple[str, str]]:
    """`RateLimit-Limit: 20, 20;w=2, 5000;w=86400`"""
    fields = _three_fields("RateLimit", decision)
    if fields:
        fields[0] = ("RateLimit-Limit", ", ".join([fields[0][1], *_policies(decision)]))
    return fields


def _x_delta(decision: Decision) -> list[tuple[str, str]]:
    """`X-RateLimit-Reset: 5`, seconds from now."""
    return _three_fields("X-RateLimit", decision)


def _x_epoch(clock: Clock, decision: Decision) -> list[tuple[str, str]]:
    """`X-RateLimit-Reset: 1795211522`, seconds since the Unix epoch."""
    fields = _three_fields("X-RateLimit", decision)
    if fields:
        reset_us = clock.now_us() + _reset_us(decision)
        fields[2] = (fields[2][0], str(-(-reset_us // 1_000_000)))
    return fields


def _three_fields(name: str, decision: Decision) -> list[tuple[str, str]]:
    numbers = _binding_numbers(decision)
    if numbers is None:
        return []
    names = (f"{name}-Limit", f"{name}-Remaining", f"{name}-Reset")
    return [(field, str(number)) for field, number in zip(names, numbers, strict=True)]


def _binding_numbers(decision: Decision) -> tuple[int, int, int] | None:
    """Return limit, remaining and seconds until the reset, of the binding limit."""
    binding = decision.binding
    if binding is None or binding.shadow:
        return None
    seconds = retry_after_seconds(decision) if not decision.allowed else None
    reset = -(-_reset_us(decision) // 1_000_000) if seconds is None else seconds
    return min(binding.limit, LARGEST_INTEGER), min(max(binding.remaining, 0), LARGEST_INTEGER), reset


def _reset_us(decision: Decision) -> int:
    """Return when a refused client may retry; for an admitted one, when the whole quota is available again."""
    if not decision.allowed and decision.retry_after_us is not None:
        return decision.retry_after_us
    return decision.reset_after_us or 0


def _policies(decision: Decision) -> list[str]:
    """Return `20;w=2` for each limit that counts the binding one's unit; of those with the same quota, one."""
    found: dict[int, str] = {}
    binding = decision.binding
    for reading in decision.limits:
        if binding is None or reading.unit != binding.unit:  # these fields cannot name what a number counts
            continue
        if reading.shadow or not reading.definition.limit.is_rate:
            continue
        window, quota = window_seconds(reading), min(reading.limit, LARGEST_INTEGER)
        if window is not None:
            found.setdefault(quota, f"{quota};w={min(window, LARGEST_INTEGER)}")
    return list(found.values())


_WRITERS: dict[str, Fields] = {
    "draft-11": ratelimit_fields,
    "draft-next": _draft_next,
    "draft-07": _draft_07,
    "draft-06": _draft_06,
    "draft-03": _draft_03,
    "x-delta": _x_delta,
    "x-epoch": _x_delta,
    NONE: _no_fields,
}

DIALECTS = tuple(_WRITERS)
"""The names of all dialects."""
