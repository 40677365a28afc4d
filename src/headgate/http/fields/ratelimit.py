"""The RateLimit header fields of draft-ietf-httpapi-ratelimit-headers-11, and Retry-After.

Both fields are Lists of RFC 9651: a quoted policy name with parameters. Seconds are rounded up, so that
a client that returns at the announced time is admitted. Source: the draft, sections 3 and 4; RFC 9110, 10.2.3.

Every response has them, so the native core writes them where it is available; the class here writes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate import core
from headgate.amounts import REQUESTS, base_unit
from headgate.decision import Decision, LimitReading, NamedLimit
from headgate.limits import Limit

US = 1_000_000
LARGEST_INTEGER = 999_999_999_999_999
"""The largest Integer of a structured field (RFC 9651, 3.3.1)."""

_MOST_WRITERS = 4096
_BYTES = "bytes"

PassingFieldsWriter = Callable[[Decision], list[tuple[Any, Any]] | None]
"""Gives the fields of a decision that passes at once, None where more has to be written or done."""


class Form(NamedTuple):
    """The constant part of a limit's fields. `start` is how its member of RateLimit begins."""

    start: str
    window_us: int
    quota: int
    in_flight: bool
    on_the_clock: bool
    shadow: bool


class RateLimitFields:
    """Writes RateLimit-Policy and RateLimit of decisions on the same limits.

    `policy` is the whole first field, None where there are no fields. Names and values are all text, or all bytes.
    """

    def __init__(self, forms: Sequence[Form], policy: tuple[Any, Any] | None, name: Any) -> None:
        self._forms = forms
        self._policy = policy
        self._name = name

    def write(self, decision: Decision) -> list[tuple[Any, Any]]:
        """Return the fields of a decision; for a refusal RateLimit lists only the limits that refuse."""
        if self._policy is None:
            return []
        items = [
            _limit_item(form, reading)
            for form, reading in zip(self._forms, decision.limits, strict=True)
            if not form.shadow and (decision.allowed or not reading.allowed)
        ]
        if not items:
            return [self._policy]
        value = ", ".join(items)
        return [self._policy, (self._name, value.encode() if isinstance(self._name, bytes) else value)]

    def write_passing(self, decision: Decision) -> list[tuple[Any, Any]] | None:
        """Return the fields of a decision that passes at once and was made by its store; None for any other."""
        return self.write(decision) if decision.allowed and not decision.degraded and not decision.delay_us else None


class _Writers(NamedTuple):
    """The writers of the fields of decisions on these limits, as text and as bytes."""

    definitions: tuple[NamedLimit, ...]
    text: RateLimitFields
    encoded: RateLimitFields
    answers: Any
    """Writes the bodies too, natively (`Answers` of the native core); None where Python writes them."""


_writers: dict[int, _Writers] = {}
"""By the identity of the definitions, which are kept with them."""


def ratelimit_fields(decision: Decision) -> list[tuple[str, str]]:
    """Return RateLimit-Policy and RateLimit; no field where no enforced limit applied.

    A refusal lists only the limits that refuse in RateLimit, and all of them in RateLimit-Policy.
    """
    return writers_of(decision.definitions).text.write(decision)


def passing_writer(definitions: tuple[NamedLimit, ...] | None, *, encoded: bool) -> PassingFieldsWriter:
    """Return the writer of the fields of decisions that pass at once and were made by their store; None for any other.

    `encoded` fields are bytes in lower case, as in ASGI; others are text. `definitions` are those of all decisions,
    None where they differ.
    """
    if definitions is not None:
        writers = writers_of(definitions)
        return (writers.encoded if encoded else writers.text).write_passing

    def write_passing(decision: Decision) -> list[tuple[Any, Any]] | None:
        writers = writers_of(decision.definitions)
        return (writers.encoded if encoded else writers.text).write_passing(decision)

    return write_passing


def passing_without_fields(decision: Decision) -> list[tuple[Any, Any]] | None:
    """Return no fields for a decision that passes at once and was made by its store; None for any other."""
    return [] if decision.allowed and not decision.degraded and not decision.delay_us else None


def retry_after_seconds(decision: Decision) -> int | None:
    """Return the seconds of Retry-After on a refusal: at least 1; None where waiting cannot help."""
    if decision.retry_after_us is None:
        return None
    return max(1, _seconds(decision.retry_after_us))


def policy_item(reading: LimitReading) -> str:
    """Return a member of RateLimit-Policy: `"burst";q=20;w=2`, `"llm.tokens";q=90000;qu="tokens";w=60`."""
    return policy_item_of(reading.definition)


def window_seconds(reading: LimitReading) -> int | None:
    """Return `w`: the window in whole seconds; None for one below a second, which the field cannot express.

    A bucket's window is the time in which it fills: so q/w is the sustained rate, and r <= q.
    """
    window_us = reading.definition.limit.window_us
    return None if window_us < US else max(1, _seconds(window_us))


def effective_seconds(reading: LimitReading) -> int:
    """Return `t`: the seconds within which no more than `r` can be used.

    It is at least the time until one more unit is available, and long enough that r/t does not exceed the
    sustained rate; on a refusal never later than Retry-After.
    """
    return _effective_seconds(form_of(reading.definition), reading)


def writers_of(definitions: tuple[NamedLimit, ...]) -> _Writers:
    """Return the writers of the fields of decisions on these limits."""
    writers = _writers.get(id(definitions))
    if writers is None or writers.definitions is not definitions:
        writers = _new_writers(definitions)
    return writers


def _new_writers(definitions: tuple[NamedLimit, ...]) -> _Writers:
    if len(_writers) >= _MOST_WRITERS:
        _writers.clear()
    forms = [form_of(definition) for definition in definitions]
    policy = ", ".join(policy_item_of(definition) for definition in definitions if not definition.shadow)
    # Windows that overflow the native writer's integers are left to Python.
    is_native = core.native is not None and all(form.window_us < 1 << 62 for form in forms)
    kind = RateLimitFields if is_native else PythonRateLimitFields
    text = ("RateLimit-Policy", policy) if policy else None
    encoded = (b"ratelimit-policy", policy.encode()) if policy else None
    answers = native_answers(definitions, policy) if is_native else None
    writers = _Writers(definitions, kind(forms, text, "RateLimit"), kind(forms, encoded, b"ratelimit"), answers)
    _writers[id(definitions)] = writers
    return writers


def native_answers(definitions: tuple[NamedLimit, ...], policy: str) -> Any:
    """Return the native writer of bodies for decisions on these limits; `policy` is the value of RateLimit-Policy."""
    assert core.native is not None
    limits = [
        (form_of(one), one.name, one.rule, str(one.limit), base_unit(one.limit.of)) for one in definitions
    ]  # fmt: skip
    return core.native.Answers(limits, policy or None)


def form_of(definition: NamedLimit) -> Form:
    """Return the constant part of a limit's fields."""
    limit = definition.limit
    return Form(
        start=f'"{definition.name}";r=',
        window_us=limit.window_us,
        quota=limit.quota,
        in_flight=not limit.is_rate,
        on_the_clock=limit.on_the_clock,
        shadow=definition.shadow,
    )


def policy_item_of(definition: NamedLimit) -> str:
    """Return a limit's member of RateLimit-Policy."""
    limit = definition.limit
    policy = f'"{definition.name}";q={min(limit.quota, LARGEST_INTEGER)}'
    unit = quota_unit(limit)
    if unit != REQUESTS:
        policy = f'{policy};qu="{unit}"'
    if not limit.is_rate:
        return policy
    window_us = limit.window_us
    return policy if window_us < US else f"{policy};w={min(max(1, _seconds(window_us)), LARGEST_INTEGER)}"


def quota_unit(limit: Limit) -> str:
    """Return `qu`: the unit of a quota, by the draft's name where it has one, for money billionths: "nano-usd"."""
    unit = "content-bytes" if limit.of == _BYTES else base_unit(limit.of)
    return unit if limit.is_rate else f"concurrent-{unit}"


def _limit_item(form: Form, reading: LimitReading) -> str:
    """Return a limit's member of RateLimit."""
    remaining = min(max(reading.remaining, 0), LARGEST_INTEGER)  # a limit in debt has less than 0
    if form.in_flight or (reading.remaining <= 0 and reading.retry_after_us is None):
        return f"{form.start}{remaining}"  # no time helps, or none is known
    return f"{form.start}{remaining};t={min(_effective_seconds(form, reading), LARGEST_INTEGER)}"


def _effective_seconds(form: Form, reading: LimitReading) -> int:
    effective_us = reading.reset_after_us
    if not form.on_the_clock or not effective_us:
        share_us = -(-max(reading.remaining, 0) * form.window_us // (form.quota or 1))
        effective_us = max(reading.next_after_us, share_us)
    if reading.allowed:
        return _seconds(effective_us)
    if reading.retry_after_us is not None:
        effective_us = min(effective_us, reading.retry_after_us)
    return max(_seconds(effective_us), 1)


def _seconds(duration_us: int) -> int:
    return -(-duration_us // US)


PythonRateLimitFields = RateLimitFields
if not TYPE_CHECKING and core.native is not None:
    RateLimitFields = core.native.RateLimitFields
