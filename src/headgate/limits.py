"""Limits as values: an algorithm with its numbers, checked once, frozen for good.

`str(limit)` is the limit's text form, `headgate.limit_text.parse_limits` reads it back. What the
algorithms mean is in docs/algorithms.md; how the numbers become integers of one unit is in
`headgate.units`. What a limit needs to be decided and kept is in `headgate.algorithms.table`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import ClassVar

from headgate.errors import ConfigError, brief_number
from headgate.keys import whole_number
from headgate.periods import parse_period, period_text
from headgate.units import (
    LARGEST,
    UNITS_US,
    CompiledLimit,
    compile_bucket,
    compile_window,
    nearest_bucket,
    nearest_window,
)

EXACT_UP_TO = 100
"""The greatest N for which the text `N/period` is the exact log; above it is the counter."""


class Limit:
    """What all limits share. `algorithm` is the name the vectors use."""

    __slots__ = ()
    algorithm: ClassVar[str]
    is_rate: ClassVar[bool] = True
    """Whether it counts requests within a time, so that waiting helps; else those in flight, which end."""

    on_the_clock: ClassVar[bool] = False
    """Whether all that was used is back at one moment of the clock, the same for all keys."""

    @property
    def family(self) -> str:
        """Which limits take over each other's states when one is changed into another: those of one family."""
        return self.algorithm

    @property
    def quota(self) -> int:
        """The greatest cost that can ever pass at one instant (`q` of the RateLimit-Policy header)."""
        raise TypeError(f"{type(self).__name__} is not a limit")

    @property
    def period_name(self) -> str:
        """Its period in a word, which tells it from other limits of one name: `second`, `5minutes`."""
        number, unit = period_text(self.period_us)
        return unit if number == 1 else f"{number}{unit}s"

    @property
    def window_us(self) -> int:
        """The time in which its whole quota comes back, in microseconds: q/w is the sustained rate. 0 for no rate."""
        return self.period_us

    def life_us(self, cost: int) -> int:
        """How long one request of this cost counts at the most, in microseconds, rounded up."""
        return self.period_us

    def scaled(self, share: Fraction) -> Limit:
        """A limit that admits about this share, or so many times as much; one unit at least where this one admits any.

        Never more than the share.
        """
        return self

    @property
    def period_us(self) -> int:
        """The period of a rate, in microseconds; raises ConfigError for a limit that is no rate."""
        raise self._no_rate()

    @property
    def compiled(self) -> CompiledLimit:
        """The integers that a transition computes with; raises ConfigError for a limit that is no rate."""
        raise self._no_rate()

    def _no_rate(self) -> ConfigError:
        return ConfigError(f'"{self}" counts requests in flight, which end: here a rate is needed, such as 20/second')


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Window(Limit):
    limit: int
    period_us: int = field()  # pyright: ignore[reportIncompatibleMethodOverride] - a frozen field is read-only too
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    weighed: ClassVar[bool] = False
    """Whether counts are multiplied by times, and so must fit together."""

    def __init__(self, *, limit: int, period: str | None = None, period_us: int | None = None) -> None:
        limit = _whole(self, "limit", limit, least=0)
        period_us = _period_us(self, period, period_us)
        compiled = compile_window(self.algorithm, limit, period_us, weighed=self.weighed)
        if compiled is None:
            raise _too_fine(type(self)(limit=nearest_window(period_us), period_us=period_us))
        _set(self, limit=limit, period_us=period_us, compiled=compiled)

    @property
    def quota(self) -> int:
        return self.limit

    def scaled(self, share: Fraction) -> Limit:
        if share == 1 or self.limit == 0:
            return self
        return type(self)(limit=max(1, int(self.limit * share)), period_us=self.period_us)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(limit={self.limit}, {_period_argument(self.period_us)})"


class FixedWindow(_Window):
    """At most `limit` units in each window of `period_us`, windows aligned to the Unix epoch.

    Up to twice the limit can pass around a border between two windows.
    """

    __slots__ = ()
    algorithm = "fixed_window"
    on_the_clock = True

    def __str__(self) -> str:
        return f"{_rate(self.limit, self.period_us)} fixed"


class _Sliding(_Window):
    """What passed within the last period, told exactly or by an estimate. As text without a word, by its number."""

    __slots__ = ()

    @property
    def family(self) -> str:
        return "sliding"


class SlidingLog(_Sliding):
    """Never more than `limit` units in any interval of `period_us`: every admitted request is remembered.

    Exact, at the price of 16 bytes for each instant at which requests passed.
    """

    __slots__ = ()
    algorithm = "sliding_log"

    def __str__(self) -> str:
        rate = _rate(self.limit, self.period_us)
        return rate if self.limit <= EXACT_UP_TO else f"{rate} log"


class SlidingWindow(_Sliding):
    """At most `limit` units a `period_us`, estimated from this window's and the last window's counts.

    The last window weighs as much as of it still overlaps the sliding period. Up to twice the
    limit can pass in the worst interval; for steady traffic the estimate is close.
    """

    __slots__ = ()
    algorithm = "sliding_window"
    weighed = True

    def life_us(self, cost: int) -> int:
        return 2 * self.period_us

    def __str__(self) -> str:
        rate = _rate(self.limit, self.period_us)
        return f"{rate} counter" if self.limit <= EXACT_UP_TO else rate


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Bucket(Limit):
    capacity: int
    refill: int
    period_us: int = field()  # pyright: ignore[reportIncompatibleMethodOverride] - a frozen field is read-only too
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, *, capacity: int, refill: int, period: str | None = None, period_us: int | None = None) -> None:
        capacity = _whole(self, "capacity", capacity, least=0)
        refill = _whole(self, "refill", refill, least=1)
        period_us = _period_us(self, period, period_us)
        compiled = compile_bucket(self.algorithm, capacity, refill, period_us)
        if compiled is None:
            near_capacity, near_refill = nearest_bucket(capacity, refill, period_us)
            raise _too_fine(type(self)(capacity=near_capacity, refill=near_refill, period_us=period_us))
        _set(self, capacity=capacity, refill=refill, period_us=period_us, compiled=compiled)

    @property
    def quota(self) -> int:
        return self.capacity

    @property
    def window_us(self) -> int:
        return _time_us(self.capacity, self.refill, self.period_us)

    def life_us(self, cost: int) -> int:
        return _time_us(cost, self.refill, self.period_us)

    def scaled(self, share: Fraction) -> Limit:
        if share == 1 or self.capacity == 0:
            return self
        refill, period_us = _scaled_rate(self.refill, self.period_us, share)
        return type(self)(capacity=max(1, int(self.capacity * share)), refill=refill, period_us=period_us)

    def __repr__(self) -> str:
        numbers = f"capacity={self.capacity}, refill={self.refill}"
        return f"{type(self).__name__}({numbers}, {_period_argument(self.period_us)})"


class TokenBucket(_Bucket):
    """A burst of `capacity` units, refilled continuously by `refill` units a `period_us`."""

    __slots__ = ()
    algorithm = "token_bucket"

    def __str__(self) -> str:
        rate = _rate(self.refill, self.period_us)
        return f"{rate} bucket" if self.capacity == self.refill else f"{rate} burst {self.capacity}"


class LeakyBucket(_Bucket):
    """A bucket of `capacity` units that leaks `refill` units a `period_us`; what would overflow is refused.

    The meter of ITU-T I.371 (GCRA): the same decisions as a token bucket of the same numbers.
    """

    __slots__ = ()
    algorithm = "leaky_bucket"

    def __str__(self) -> str:
        return f"{_rate(self.refill, self.period_us)} leaky {self.capacity}"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class LeakyQueue(Limit):
    """Requests leave evenly spaced, `refill` a `period_us`; up to `queue` units wait their turn.

    An admitted request carries the `delay` after which it may proceed.
    """

    queue: int
    refill: int
    period_us: int = field()  # pyright: ignore[reportIncompatibleMethodOverride] - a frozen field is read-only too
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    algorithm: ClassVar[str] = "leaky_queue"

    def __init__(self, *, queue: int, refill: int, period: str | None = None, period_us: int | None = None) -> None:
        queue = _whole(self, "queue", queue, least=0)
        refill = _whole(self, "refill", refill, least=1)
        period_us = _period_us(self, period, period_us)
        compiled = compile_bucket(self.algorithm, queue + 1, refill, period_us)
        if compiled is None:
            near_capacity, near_refill = nearest_bucket(queue + 1, refill, period_us)
            raise _too_fine(LeakyQueue(queue=near_capacity - 1, refill=near_refill, period_us=period_us))
        _set(self, queue=queue, refill=refill, period_us=period_us, compiled=compiled)

    @property
    def quota(self) -> int:
        return self.queue + 1

    @property
    def window_us(self) -> int:
        return _time_us(self.quota, self.refill, self.period_us)

    def life_us(self, cost: int) -> int:
        return _time_us(cost, self.refill, self.period_us)

    def scaled(self, share: Fraction) -> Limit:
        if share == 1:
            return self
        refill, period_us = _scaled_rate(self.refill, self.period_us, share)
        return LeakyQueue(queue=int(self.queue * share), refill=refill, period_us=period_us)

    def __repr__(self) -> str:
        return f"LeakyQueue(queue={self.queue}, refill={self.refill}, {_period_argument(self.period_us)})"

    def __str__(self) -> str:
        return f"{_rate(self.refill, self.period_us)} queue {self.queue}"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Concurrent(Limit):
    """At most `limit` units in flight at one time."""

    limit: int
    algorithm: ClassVar[str] = "concurrent"
    is_rate: ClassVar[bool] = False

    def __init__(self, *, limit: int) -> None:
        _set(self, limit=_whole(self, "limit", limit, least=0))

    @property
    def quota(self) -> int:
        return self.limit

    @property
    def period_name(self) -> str:
        return "concurrent"

    @property
    def window_us(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Concurrent(limit={self.limit})"

    def __str__(self) -> str:
        return f"{self.limit} concurrent"


def _time_us(units: int, refill: int, period_us: int) -> int:
    """How long so many units take to flow in, rounded up."""
    return -(-units * period_us // refill)


def _scaled_rate(refill: int, period_us: int, share: Fraction) -> tuple[int, int]:
    """(refill, period_us) of this share of a rate, never more; a refill of less than one takes a longer period."""
    scaled = int(refill * share)
    if scaled:
        return scaled, period_us
    grain_us = next(unit_us for unit_us in reversed(UNITS_US) if period_us >= unit_us)
    return 1, ceil(period_us / (refill * share) / grain_us) * grain_us


def _rate(count: int, period_us: int) -> str:
    number, unit = period_text(period_us)
    if number == 1:
        return f"{count}/{unit}"
    plural = unit if unit in ("us", "ms") else unit + "s"
    return f"{count} per {number} {plural}"


def _period_argument(period_us: int) -> str:
    number, unit = period_text(period_us)
    return f'period="{unit}"' if number == 1 else f"period_us={period_us}"


def _whole(limit: Limit, name: str, value: object, *, least: int) -> int:
    """`value` as a whole number in [least, 2**52], or a ConfigError that says what would be right."""
    kind = type(limit).__name__
    number = whole_number(value)
    if number is None:
        raise ConfigError(f"{kind}: {name} must be a whole number, not {value!r}")
    if number < least:
        raise ConfigError(f"{kind}: {name} must be at least {least}, not {brief_number(number)}")
    if number > LARGEST:
        raise ConfigError(f"{kind}: {name} must be at most {LARGEST} (2**52), not {brief_number(number)}")
    return number


def _period_us(limit: Limit, period: str | None, period_us: int | None) -> int:
    kind = type(limit).__name__
    if (period is None) == (period_us is None):
        raise ConfigError(f'{kind}: give one of period (such as "minute" or "5 minutes") and period_us')
    if period is None:
        return _whole(limit, "period_us", period_us, least=1)
    if not isinstance(period, str):
        raise ConfigError(f'{kind}: period must be text such as "minute" or "5 minutes", not {period!r}')
    return _whole(limit, "period_us", parse_period(period), least=1)


def _too_fine(nearest: Limit) -> ConfigError:
    return ConfigError(
        "these numbers are too fine for exact arithmetic (capacity or limit times period passes 2**52); "
        f'the nearest limit that fits is "{nearest}"'
    )


def _set(value: Limit, /, **fields: object) -> None:
    """Fill the fields of a frozen limit, once, from its own `__init__`."""
    for name, field_value in fields.items():
        object.__setattr__(value, name, field_value)
