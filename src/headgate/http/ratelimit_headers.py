"""The RateLimit header fields of draft-ietf-httpapi-ratelimit-headers-11, and Retry-After.

Both fields are Lists of RFC 9651: a quoted policy name with parameters. Seconds are rounded up, so
that who comes back when told is let in. Source: the draft, sections 3 and 4; RFC 9110, 10.2.3.
"""

from __future__ import annotations

from headgate.decision import Decision, LimitReading, NamedLimit
from headgate.limits import Concurrent, LeakyBucket, LeakyQueue, TokenBucket

US = 1_000_000
LARGEST_INTEGER = 999_999_999_999_999
"""The largest Integer of a structured field (RFC 9651, 3.3.1)."""

_MOST_ITEMS = 4096
_items: dict[int, tuple[NamedLimit, str]] = {}
"""Members of RateLimit-Policy by the identity of the limit, which is kept with them."""


def ratelimit_fields(decision: Decision) -> list[tuple[str, str]]:
    """RateLimit-Policy and RateLimit; none where no enforced limit applied.

    A refusal lists only the limits that refuse in RateLimit, and all of them in RateLimit-Policy.
    """
    enforced = [reading for reading in decision.limits if not reading.shadow]
    if not enforced:
        return []
    speaking = enforced if decision.allowed else [reading for reading in enforced if not reading.allowed]
    fields = [("RateLimit-Policy", ", ".join(map(policy_item, enforced)))]
    if speaking:
        fields.append(("RateLimit", ", ".join(map(limit_item, speaking))))
    return fields


def retry_after_seconds(decision: Decision) -> int | None:
    """What Retry-After says on a refusal: at least 1; None where waiting cannot help."""
    if decision.retry_after_us is None:
        return None
    return max(1, _seconds(decision.retry_after_us))


def policy_item(reading: LimitReading) -> str:
    """A member of RateLimit-Policy: `"burst";q=20;w=2`."""
    definition = reading.definition
    known = _items.get(id(definition))
    if known is None or known[0] is not definition:  # written once for each limit in use
        if len(_items) >= _MOST_ITEMS:
            _items.clear()
        known = _items[id(definition)] = definition, _policy_item(reading)
    return known[1]


def _policy_item(reading: LimitReading) -> str:
    limit = reading.definition.limit
    quota = f'"{reading.name}";q={_integer(limit.quota)}'
    if isinstance(limit, Concurrent):
        return f'{quota};qu="concurrent-requests"'
    window = window_seconds(reading)
    return quota if window is None else f"{quota};w={_integer(window)}"


def limit_item(reading: LimitReading) -> str:
    """A member of RateLimit: `"burst";r=19;t=2`."""
    remaining = f'"{reading.name}";r={_integer(reading.remaining)}'
    never = reading.retry_after_us is None and not reading.remaining
    if never or isinstance(reading.definition.limit, Concurrent):
        return remaining  # no time helps, or none is known
    return f"{remaining};t={_integer(effective_seconds(reading))}"


def window_seconds(reading: LimitReading) -> int | None:
    """`w`: the window in whole seconds; None for one below a second, which cannot be said.

    A bucket's window is the time in which it fills: it keeps q/w the sustained rate, and r <= q.
    """
    window_us = _window_us(reading)
    return None if window_us < US else max(1, _seconds(window_us))


def effective_seconds(reading: LimitReading) -> int:
    """`t`: the seconds within which no more than `r` can be used.

    At least the time until one more unit is there, and long enough that r/t does not pass the
    sustained rate; on a refusal never later than Retry-After.
    """
    if reading.definition.limit.algorithm == "fixed_window" and reading.reset_after_us:
        effective_us = reading.reset_after_us
    else:
        share_us = -(-reading.remaining * _window_us(reading) // max(1, reading.limit))
        effective_us = max(reading.next_after_us, share_us)
    if not reading.allowed and reading.retry_after_us is not None:
        effective_us = min(effective_us, reading.retry_after_us)
    return max(_seconds(effective_us), 0 if reading.allowed else 1)


def _window_us(reading: LimitReading) -> int:
    limit = reading.definition.limit
    if isinstance(limit, TokenBucket | LeakyBucket | LeakyQueue):
        return -(-limit.quota * limit.period_us // limit.refill)
    return limit.period_us


def _seconds(duration_us: int) -> int:
    return -(-duration_us // US)


def _integer(value: int) -> int:
    return min(value, LARGEST_INTEGER)
