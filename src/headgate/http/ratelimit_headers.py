"""The RateLimit header fields of draft-ietf-httpapi-ratelimit-headers-11, and Retry-After.

Both fields are Lists of RFC 9651: a quoted policy name with parameters. Seconds are rounded up, so
that who comes back when told is let in. Source: the draft, sections 3 and 4; RFC 9110, 10.2.3.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.decision import Decision, LimitReading, NamedLimit
from headgate.limits import Concurrent, LeakyBucket, LeakyQueue, Limit, TokenBucket

US = 1_000_000
LARGEST_INTEGER = 999_999_999_999_999
"""The largest Integer of a structured field (RFC 9651, 3.3.1)."""

_MOST_FORMS = 4096


class _Form(NamedTuple):
    """What is the same in every answer of a limit."""

    definition: NamedLimit
    policy: str
    """Its member of RateLimit-Policy."""

    start: str
    """How its member of RateLimit begins."""

    window_us: int
    in_flight: bool
    on_the_clock: bool


_forms: dict[int, _Form] = {}
"""By the identity of the limit, which is kept with it."""


def ratelimit_fields(decision: Decision) -> list[tuple[str, str]]:
    """RateLimit-Policy and RateLimit; none where no enforced limit applied.

    A refusal lists only the limits that refuse in RateLimit, and all of them in RateLimit-Policy.
    """
    policies: list[str] = []
    items: list[str] = []
    allowed = decision.allowed
    for reading in decision.limits:
        form = _form_of(reading)
        if form.definition.shadow:
            continue
        policies.append(form.policy)
        if allowed or not reading.allowed:
            items.append(_limit_item(form, reading))
    if not policies:
        return []
    fields = [("RateLimit-Policy", ", ".join(policies))]
    if items:
        fields.append(("RateLimit", ", ".join(items)))
    return fields


def retry_after_seconds(decision: Decision) -> int | None:
    """What Retry-After says on a refusal: at least 1; None where waiting cannot help."""
    if decision.retry_after_us is None:
        return None
    return max(1, _seconds(decision.retry_after_us))


def policy_item(reading: LimitReading) -> str:
    """A member of RateLimit-Policy: `"burst";q=20;w=2`."""
    return _form_of(reading).policy


def limit_item(reading: LimitReading) -> str:
    """A member of RateLimit: `"burst";r=19;t=2`."""
    return _limit_item(_form_of(reading), reading)


def _limit_item(form: _Form, reading: LimitReading) -> str:
    remaining = reading.remaining
    left = remaining if remaining < LARGEST_INTEGER else LARGEST_INTEGER
    if form.in_flight or (not remaining and reading.retry_after_us is None):
        return f"{form.start}{left}"  # no time helps, or none is known
    seconds = _effective_seconds(form, reading)
    return f"{form.start}{left};t={seconds if seconds < LARGEST_INTEGER else LARGEST_INTEGER}"


def _form_of(reading: LimitReading) -> _Form:
    definition = reading.definition
    form = _forms.get(id(definition))
    if form is None or form.definition is not definition:
        if len(_forms) >= _MOST_FORMS:
            _forms.clear()
        form = _forms[id(definition)] = _new_form(definition)
    return form


def _new_form(definition: NamedLimit) -> _Form:
    limit = definition.limit
    in_flight = isinstance(limit, Concurrent)
    window_us = 0 if in_flight else _window_us(limit)
    policy = f'"{definition.name}";q={_integer(limit.quota)}'
    if in_flight:
        policy += ';qu="concurrent-requests"'
    elif window_us >= US:
        policy += f";w={_integer(max(1, _seconds(window_us)))}"
    start = f'"{definition.name}";r='
    return _Form(definition, policy, start, window_us, in_flight, limit.algorithm == "fixed_window")


def window_seconds(reading: LimitReading) -> int | None:
    """`w`: the window in whole seconds; None for one below a second, which cannot be said.

    A bucket's window is the time in which it fills: it keeps q/w the sustained rate, and r <= q.
    """
    window_us = _form_of(reading).window_us
    return None if window_us < US else max(1, _seconds(window_us))


def effective_seconds(reading: LimitReading) -> int:
    """`t`: the seconds within which no more than `r` can be used.

    At least the time until one more unit is there, and long enough that r/t does not pass the
    sustained rate; on a refusal never later than Retry-After.
    """
    return _effective_seconds(_form_of(reading), reading)


def _effective_seconds(form: _Form, reading: LimitReading) -> int:
    if form.on_the_clock and reading.reset_after_us:
        effective_us = reading.reset_after_us
    else:
        share_us = -(-reading.remaining * form.window_us // (reading.limit or 1))
        effective_us = reading.next_after_us if reading.next_after_us > share_us else share_us
    if reading.allowed:
        return -(-effective_us // US)
    if reading.retry_after_us is not None:
        effective_us = min(effective_us, reading.retry_after_us)
    return max(_seconds(effective_us), 1)


def _window_us(limit: Limit) -> int:
    if isinstance(limit, TokenBucket | LeakyBucket | LeakyQueue):
        return -(-limit.quota * limit.period_us // limit.refill)
    return limit.period_us


def _seconds(duration_us: int) -> int:
    return -(-duration_us // US)


def _integer(value: int) -> int:
    return min(value, LARGEST_INTEGER)
