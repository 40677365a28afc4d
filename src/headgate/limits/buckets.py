"""Limits whose used units are replenished at a rate: buckets and the queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, gcd
from typing import ClassVar

from headgate.amounts import REQUESTS, Amount, number_text
from headgate.errors import check_flag
from headgate.limits.limit import (
    Limit,
    count_argument,
    rate_text,
    read_count,
    read_period_us,
    read_unit,
    repr_of,
    set_fields,
    too_fine,
)
from headgate.units import UNITS_US, CompiledLimit, compile_bucket, compile_steps, nearest_bucket, nearest_steps


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Bucket(Limit):
    capacity: int
    refill: int
    period_us: int = field()  # pyright: ignore[reportIncompatibleMethodOverride] - a frozen field is read-only too
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    of: str

    def __init__(
        self,
        *,
        capacity: Amount,
        refill: Amount,
        period: str | None = None,
        period_us: int | None = None,
        of: str = REQUESTS,
    ) -> None:
        of = read_unit(self, of)
        capacity_units = read_count(self, "capacity", capacity, least=0, of=of)
        refill_units = read_count(self, "refill", refill, least=1, of=of)
        period_us = read_period_us(self, period, period_us)
        compiled = self._compiled(capacity_units, refill_units, period_us)
        if compiled is None:
            raise too_fine(self._with_counts(*self._nearest(capacity_units, refill_units, period_us), period_us, of))
        set_fields(self, capacity=capacity_units, refill=refill_units, period_us=period_us, compiled=compiled, of=of)

    def _with_counts(self, capacity: int, refill: int, period_us: int, of: str) -> Limit:
        """A limit of this class with counts in integers of its unit."""
        return type(self)(
            capacity=count_argument(capacity, of), refill=count_argument(refill, of), period_us=period_us, of=of
        )

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
        capacity = max(1, int(self.capacity * share))
        refill, period_us = _scaled_rate(self, capacity, self.refill, share)
        return self._with_counts(capacity, refill, period_us, self.of)

    @classmethod
    def _compiled(cls, capacity: int, refill: int, period_us: int) -> CompiledLimit | None:
        return compile_bucket(cls.algorithm, capacity, refill, period_us)

    @classmethod
    def _nearest(cls, capacity: int, refill: int, period_us: int) -> tuple[int, int]:
        """The valid (capacity, refill) nearest to those that fit no unit."""
        return nearest_bucket(capacity, refill, period_us)

    def __repr__(self) -> str:
        return repr_of(self, self.period_us, capacity=self.capacity, refill=self.refill)


class TokenBucket(_Bucket):
    """A burst of `capacity` units, refilled continuously by `refill` units a `period_us`.

    With `stepwise` they are added in steps, `refill` units at the end of each full period since the first charge of a
    full bucket.
    """

    __slots__ = ()
    algorithm = "token_bucket"

    def __new__(cls, *, stepwise: bool = False, **_numbers: object) -> TokenBucket:
        return object.__new__(StepwiseBucket if check_flag("TokenBucket: stepwise", stepwise) else cls)

    def __init__(
        self,
        *,
        capacity: Amount,
        refill: Amount,
        period: str | None = None,
        period_us: int | None = None,
        of: str = REQUESTS,
        stepwise: bool = False,
    ) -> None:
        super().__init__(capacity=capacity, refill=refill, period=period, period_us=period_us, of=of)

    def __str__(self) -> str:
        rate = rate_text(self.refill, self.of, self.period_us)
        return (
            f"{rate} bucket" if self.capacity == self.refill else f"{rate} burst {number_text(self.capacity, self.of)}"
        )


class StepwiseBucket(TokenBucket):
    """The class of `TokenBucket(stepwise=True)`: a bucket that is refilled in whole steps."""

    __slots__ = ()
    algorithm = "stepwise"

    @classmethod
    def _compiled(cls, capacity: int, refill: int, period_us: int) -> CompiledLimit | None:
        return compile_steps(cls.algorithm, capacity, refill, period_us)

    @classmethod
    def _nearest(cls, capacity: int, refill: int, period_us: int) -> tuple[int, int]:
        return nearest_steps(refill, period_us), refill

    @property
    def window_us(self) -> int:
        return self.life_us(self.capacity)

    def life_us(self, cost: int) -> int:
        return -(-cost // self.refill) * self.period_us

    def __repr__(self) -> str:
        return f"TokenBucket{super().__repr__().removeprefix(type(self).__name__)[:-1]}, stepwise=True)"

    def __str__(self) -> str:
        return f"{super().__str__()} stepwise"


class LeakyBucket(_Bucket):
    """A bucket of `capacity` units that leaks `refill` units a `period_us`; what would overflow is refused.

    The meter of ITU-T I.371 (GCRA): the same decisions as a token bucket of the same numbers.
    """

    __slots__ = ()
    algorithm = "leaky_bucket"

    def __str__(self) -> str:
        return f"{rate_text(self.refill, self.of, self.period_us)} leaky {number_text(self.capacity, self.of)}"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class LeakyQueue(Limit):
    """Requests leave evenly spaced, `refill` a `period_us`; up to `queue` units wait their turn.

    An admitted request carries the `delay` after which it may proceed.
    """

    queue: int
    refill: int
    period_us: int = field()  # pyright: ignore[reportIncompatibleMethodOverride] - a frozen field is read-only too
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    of: str
    algorithm: ClassVar[str] = "leaky_queue"

    def __init__(
        self,
        *,
        queue: Amount,
        refill: Amount,
        period: str | None = None,
        period_us: int | None = None,
        of: str = REQUESTS,
    ) -> None:
        of = read_unit(self, of)
        queue_units = read_count(self, "queue", queue, least=0, of=of)
        refill_units = read_count(self, "refill", refill, least=1, of=of)
        period_us = read_period_us(self, period, period_us)
        compiled = compile_bucket(self.algorithm, queue_units + 1, refill_units, period_us)
        if compiled is None:
            near_capacity, near_refill = nearest_bucket(queue_units + 1, refill_units, period_us)
            raise too_fine(self._with_counts(near_capacity - 1, near_refill, period_us, of))
        set_fields(self, queue=queue_units, refill=refill_units, period_us=period_us, compiled=compiled, of=of)

    def _with_counts(self, queue: int, refill: int, period_us: int, of: str) -> Limit:
        """A queue with counts in integers of its unit."""
        return LeakyQueue(
            queue=count_argument(queue, of), refill=count_argument(refill, of), period_us=period_us, of=of
        )

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
        queue = int(self.queue * share)
        refill, period_us = _scaled_rate(self, queue + 1, self.refill, share)
        return self._with_counts(queue, refill, period_us, self.of)

    def __repr__(self) -> str:
        return repr_of(self, self.period_us, queue=self.queue, refill=self.refill)

    def __str__(self) -> str:
        return f"{rate_text(self.refill, self.of, self.period_us)} queue {number_text(self.queue, self.of)}"


def _time_us(units: int, refill: int, period_us: int) -> int:
    """How long `units` take to flow in, rounded up."""
    return -(-units * period_us // refill)


def _scaled_rate(limit: Limit, capacity: int, refill: int, share: Fraction) -> tuple[int, int]:
    """(refill, period_us) of this share of a limit's rate, never more; a refill below one gets a longer period.

    A refill whose common divisor with the period is too small to fit this capacity is rounded down to one with the
    divisor of the limit's own refill: that fits wherever this limit does.
    """
    scaled, period_us = int(refill * share), limit.period_us
    if scaled and compile_bucket(limit.algorithm, capacity, scaled, period_us) is None:
        step = gcd(refill, period_us // limit.compiled.unit_us)
        scaled = scaled // step * step or scaled
    if scaled:
        return scaled, period_us
    grain_us = next(unit_us for unit_us in reversed(UNITS_US) if period_us >= unit_us)
    return 1, ceil(period_us / (refill * share) / grain_us) * grain_us
