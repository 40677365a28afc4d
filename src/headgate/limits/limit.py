"""The base of all limits, and functions that read and write their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import ClassVar

from headgate.amounts import REQUESTS, check_limit_amount, check_unit, is_money, number_text
from headgate.errors import ArgumentError, ConfigError
from headgate.periods import parse_period, period_text
from headgate.units import CompiledLimit


class Limit:
    """The base class of all limits. `algorithm` is the name in the vectors.

    `of` is the unit that a limit counts, see `headgate.amounts`. Its numbers are integers of that unit, of money
    in billionths.
    """

    __slots__ = ()
    algorithm: ClassVar[str]
    of: str = REQUESTS
    is_rate: ClassVar[bool] = True
    """Whether it counts requests within a period, so that waiting helps; else it counts those in flight."""

    on_the_clock: ClassVar[bool] = False
    """Whether all units are back at one moment of the clock, which is the same for all keys."""

    @property
    def family(self) -> str:
        """The family: a limit that replaces another one of its family takes over its states."""
        return self.algorithm

    @property
    def quota(self) -> int:
        """The greatest cost that can ever pass at one instant (`q` of the RateLimit-Policy header)."""
        raise TypeError(f"{type(self).__name__} is not a limit")

    @property
    def period_name(self) -> str:
        """Its period as one word, which distinguishes limits of one name: `second`, `5minutes`."""
        number, unit = period_text(self.period_us)
        return unit if number == 1 else f"{number}{_plural(unit)}"

    @property
    def window_us(self) -> int:
        """The time in which its whole quota returns, in microseconds: q/w is the sustained rate. 0 for no rate."""
        return self.period_us

    def life_us(self, cost: int) -> int:
        """How long one request of this cost counts at most, in microseconds, rounded up."""
        return self.period_us

    def border_us(self, near_us: int) -> int:
        """The moment nearest to `near_us` at which all units are back; `near_us` itself for limits not on the clock.

        A wait is stated from the moment of a decision. A caller that adds it to a later moment, or to that of another
        clock, gets the exact border by this.
        """
        return near_us

    def scaled(self, share: Fraction) -> Limit:
        """A limit with at most this share of this one, which may be above 1.

        It admits at least one unit where this limit admits any.
        """
        return self

    @property
    def period_us(self) -> int:
        """The period of a rate, in microseconds; raises ConfigError for a limit that is no rate."""
        raise self._no_rate()

    @property
    def compiled(self) -> CompiledLimit:
        """The integers that a transition computes with."""
        raise self._no_rate()

    def check_rate(self) -> None:
        """Raise ConfigError for a limit that is no rate, where only rates can be used."""
        if not self.is_rate:
            raise self._no_rate()

    def _no_rate(self) -> ConfigError:
        return ConfigError(f'"{self}" counts {self.of} in flight, which end: here a rate is needed, such as 20/second')


def check_rates(limits: Iterable[Limit]) -> None:
    """Raise ConfigError for the first of these limits that is no rate."""
    for limit in limits:
        limit.check_rate()


def check_hits(limits: Iterable[Limit]) -> None:
    """Raise ArgumentError for the first of these limits that is no rate, where a hit would never end."""
    for limit in limits:
        if not limit.is_rate:
            raise never_ends(limit)


def never_ends(limit: object) -> ArgumentError:
    """The error of a hit under a limit that counts what is in flight: nothing would free its place."""
    return ArgumentError(f'"{limit}" counts what is in flight, and a hit never ends: reserve, and commit at the end')


def units_of(limits: Iterable[Limit]) -> tuple[str, ...]:
    """The distinct units that limits count, in the order of the limits."""
    return tuple(dict.fromkeys(limit.of for limit in limits))


def groups_of(limits: Iterable[Limit]) -> tuple[str, ...]:
    """The unit of each group of limits of one key: in the order of names, however the limits are written.

    A store remembers an amount of a hold for each group, and no units: limiters that settle it have to agree on them.
    """
    return tuple(sorted({limit.of for limit in limits}))


def count_text(count: int, of: str) -> str:
    """A number of a limit as the text before a rate: `100`, `900 tokens`."""
    number = number_text(count, of)
    return number if of == REQUESTS else f"{number} {of}"


def rate_text(count: int, of: str, period_us: int) -> str:
    """A rate as text: `100/minute`, `900 tokens/minute`, `5 per 30 seconds`."""
    number, unit = period_text(period_us)
    if number == 1:
        return f"{count_text(count, of)}/{unit}"
    return f"{count_text(count, of)} per {number} {_plural(unit)}"


def _plural(unit: str) -> str:
    return unit if unit in ("us", "ms") else unit + "s"


def count_argument(count: int, of: str) -> int | str:
    """A number of a limit as an argument of its class: of money text, as an int means whole units of the currency."""
    return number_text(count, of) if is_money(of) else count


def period_argument(period_us: int) -> str:
    """A period as an argument of a limit's class."""
    number, unit = period_text(period_us)
    return f'period="{unit}"' if number == 1 else f"period_us={period_us}"


def repr_of(limit: Limit, period_us: int | None, texts: Mapping[str, str] | None = None, /, **counts: int) -> str:
    """The `repr` of a limit: its class with its arguments, numbers before texts."""
    arguments = [f"{name}={_literal(count_argument(count, limit.of))}" for name, count in counts.items()]
    arguments += [f"{name}={_literal(text)}" for name, text in (texts or {}).items()]
    if period_us is not None:
        arguments.append(period_argument(period_us))
    if limit.of != REQUESTS:
        arguments.append(f'of="{limit.of}"')
    return f"{type(limit).__name__}({', '.join(arguments)})"


def read_unit(limit: Limit, of: object) -> str:
    """The unit that a limit counts; raises ConfigError."""
    try:
        return check_unit(of)
    except ConfigError as error:
        raise ConfigError(f"{type(limit).__name__}: of: {error.message}") from None


def read_count(limit: Limit, name: str, value: object, *, least: int, of: str = REQUESTS) -> int:
    """Read a number in [least, 2**52], whole, or of money in billionths; raises ConfigError for anything else."""
    return check_limit_amount(type(limit).__name__, name, value, of, least=least)


def read_period_us(limit: Limit, period: str | None, period_us: int | None) -> int:
    """Read the period, passed as text or as a number, in microseconds."""
    kind = type(limit).__name__
    if (period is None) == (period_us is None):
        raise ConfigError(f'{kind}: give one of period (such as "minute" or "5 minutes") and period_us')
    if period is None:
        return read_count(limit, "period_us", period_us, least=1)
    if not isinstance(period, str):
        raise ConfigError(f'{kind}: period must be text such as "minute" or "5 minutes", not {period!r}')
    return read_count(limit, "period_us", parse_period(period), least=1)


def too_fine(nearest: Limit) -> ConfigError:
    """The error for numbers that fit no unit of time, with the nearest limit that fits."""
    return ConfigError(
        "these numbers are too fine for exact arithmetic (capacity or limit times period passes 2**52); "
        f'the nearest limit that fits is "{nearest}"'
    )


def too_large_a_counter(count: int, nearest: Limit) -> ConfigError:
    """The error for a counter of more money than fits, with alternatives that fit."""
    rate = rate_text(count, nearest.of, nearest.period_us)
    return ConfigError(
        f'a sliding window counter multiplies its limit, in billionths, by its period: "{nearest}" is the largest; '
        f'write "{rate}", which remembers each request, or "{rate} fixed"'
    )


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def set_fields(value: Limit, /, **fields: object) -> None:
    """Set the fields of a frozen limit, once, in its `__init__`."""
    for name, field_value in fields.items():
        object.__setattr__(value, name, field_value)
