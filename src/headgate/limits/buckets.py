"""Limits whose used units flow back at a rate: buckets and the queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import ClassVar

from headgate.limits.limit import Limit, period_argument, rate_text, read_period_us, set_fields, too_fine, whole
from headgate.units import UNITS_US, CompiledLimit, compile_bucket, nearest_bucket


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Bucket(Limit):
    capacity: int
    refill: int
    period_us: int = field()  # pyright: ignore[reportIncompatibleMethodOverride] - a frozen field is read-only too
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, *, capacity: int, refill: int, period: str | None = None, period_us: int | None = None) -> None:
        capacity = whole(self, "capacity", capacity, least=0)
        refill = whole(self, "refill", refill, least=1)
        period_us = read_period_us(self, period, period_us)
        compiled = compile_bucket(self.algorithm, capacity, refill, period_us)
        if compiled is None:
            near_capacity, near_refill = nearest_bucket(capacity, refill, period_us)
            raise too_fine(type(self)(capacity=near_capacity, refill=near_refill, period_us=period_us))
        set_fields(self, capacity=capacity, refill=refill, period_us=period_us, compiled=compiled)

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
        return f"{type(self).__name__}({numbers}, {period_argument(self.period_us)})"


class TokenBucket(_Bucket):
    """A burst of `capacity` units, refilled continuously by `refill` units a `period_us`."""

    __slots__ = ()
    algorithm = "token_bucket"

    def __str__(self) -> str:
        rate = rate_text(self.refill, self.period_us)
        return f"{rate} bucket" if self.capacity == self.refill else f"{rate} burst {self.capacity}"


class LeakyBucket(_Bucket):
    """A bucket of `capacity` units that leaks `refill` units a `period_us`; what would overflow it is refused.

    The meter of ITU-T I.371 (GCRA): the same decisions as a token bucket of the same numbers.
    """

    __slots__ = ()
    algorithm = "leaky_bucket"

    def __str__(self) -> str:
        return f"{rate_text(self.refill, self.period_us)} leaky {self.capacity}"


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
        queue = whole(self, "queue", queue, least=0)
        refill = whole(self, "refill", refill, least=1)
        period_us = read_period_us(self, period, period_us)
        compiled = compile_bucket(self.algorithm, queue + 1, refill, period_us)
        if compiled is None:
            near_capacity, near_refill = nearest_bucket(queue + 1, refill, period_us)
            raise too_fine(LeakyQueue(queue=near_capacity - 1, refill=near_refill, period_us=period_us))
        set_fields(self, queue=queue, refill=refill, period_us=period_us, compiled=compiled)

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
        return f"LeakyQueue(queue={self.queue}, refill={self.refill}, {period_argument(self.period_us)})"

    def __str__(self) -> str:
        return f"{rate_text(self.refill, self.period_us)} queue {self.queue}"


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
