"""What all limits share, and how their numbers are read and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import ClassVar

from headgate.amounts import REQUESTS, check_limit_amount, check_unit, is_money, number_text
from headgate.errors import ArgumentError, ConfigError
from headgate.periods import parse_period, period_text
from headgate.units import CompiledLimit


class Limit:
    """What all limits share. `algorithm` is the name the vectors use.

    `of` is the unit that a limit counts, see `headgate.amounts`. Its numbers are integers of that unit, of money
    in billionths.
    """

    __slots__ = ()
    algorithm: ClassVar[str]
    of: str = REQUESTS
    is_rate: ClassVar[bool] = True
    """Whether it counts requests within a period, so that waiting helps; else it counts those in flight."""

    on_the_clock: ClassVar[bool] = False
    """Whether all that was used is back at one moment of the clock, the same for all keys."""

    @property
    def family(self) -> str:
        """Limits of one family take over each other's states when one is changed into another."""
        return self.algorithm

    @property
    def quota(self) -> int:
        """The greatest cost that can ever pass at one instant (`q` of the RateLimit-Policy header)."""
        raise TypeError(f"{type(self).__name__} is not a limit")

    @property
    def period_name(self) -> str:
        """Its period in a word, which distinguishes limits of one name: `second`, `5minutes`."""
        number, unit = period_text(self.period_us)
        return unit if number == 1 else f"{number}{_plural(unit)}"

    @property
    def window_us(self) -> int:
        """The time in which its whole quota comes back, in microseconds: q/w is the sustained rate. 0 for no rate."""
        return self.period_us

    def life_us(self, cost: int) -> int:
        """How long one request of this cost counts at the most, in microseconds, rounded up."""
        return self.period_us

    def border_us(self, near_us: int) -> int:
        """The moment of the clock nearest to `near_us` at which all is back; of no limit on the clock `near_us` itself.

        A wait is told from the moment of a decision. A caller that adds it to a later moment, or to that of another
        clock, meets the border by this though not to the microsecond.
        """
        return near_us

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
    """The units that limits count, each once, in their order."""
    return tuple(dict.fromkeys(limit.of for limit in limits))


def groups_of(limits: Iterable[Limit]) -> tuple[str, ...]:
    """The unit of each group that limits of one key are decided in: by name, in whatever order the limits are written.

    A store remembers of a hold an amount for each group, and no units: limiters that settle it have to agree on them.
    """
    return tuple(sorted({limit.of for limit in limits}))


def count_text(count: int, of: str) -> str:
    """A number of a limit as it is written before a rate: `100`, `900 tokens`."""
    number = number_text(count, of)
    return number if of == REQUESTS else f"{number} {of}"


def rate_text(count: int, of: str, period_us: int) -> str:
    """A rate as it is written: `100/minute`, `900 tokens/minute`, `5 per 30 seconds`."""
    number, unit = period_text(period_us)
    if number == 1:
        return f"{count_text(count, of)}/{unit}"
    return f"{count_text(count, of)} per {number} {_plural(unit)}"


def _plural(unit: str) -> str:
    return unit if unit in ("us", "ms") else unit + "s"


def count_argument(count: int, of: str) -> int | str:
    """A number of a limit as its class takes it: of money text, since an int there is whole units of the currency."""
    return number_text(count, of) if is_money(of) else count


def period_argument(period_us: int) -> str:
    """A period as an argument of a limit's class."""
    number, unit = period_text(period_us)
    return f'period="{unit}"' if number == 1 else f"period_us={period_us}"


def shown_as(limit: Limit, period_us: int | None, told: Mapping[str, str] | None = None, /, **counts: int) -> str:
    """A limit as it is made: its class with its arguments, numbers before words."""
    words = [f"{name}={_literal(count_argument(count, limit.of))}" for name, count in counts.items()]
    words += [f"{name}={_literal(word)}" for name, word in (told or {}).items()]
    if period_us is not None:
        words.append(period_argument(period_us))
    if limit.of != REQUESTS:
        words.append(f'of="{limit.of}"')
    return f"{type(limit).__name__}({', '.join(words)})"


def read_unit(limit: Limit, of: object) -> str:
    """The unit that a limit counts; raises ConfigError."""
    try:
        return check_unit(of)
    except ConfigError as error:
        raise ConfigError(f"{type(limit).__name__}: of: {error.message}") from None


def whole(limit: Limit, name: str, value: object, *, least: int, of: str = REQUESTS) -> int:
    """`value` in [least, 2**52], a whole number, or of money in billionths; else a ConfigError."""
    return check_limit_amount(type(limit).__name__, name, value, of, least=least)


def read_period_us(limit: Limit, period: str | None, period_us: int | None) -> int:
    """The period that was given as text or as a number, in microseconds."""
    kind = type(limit).__name__
    if (period is None) == (period_us is None):
        raise ConfigError(f'{kind}: give one of period (such as "minute" or "5 minutes") and period_us')
    if period is None:
        return whole(limit, "period_us", period_us, least=1)
    if not isinstance(period, str):
        raise ConfigError(f'{kind}: period must be text such as "minute" or "5 minutes", not {period!r}')
    return whole(limit, "period_us", parse_period(period), least=1)


def too_fine(nearest: Limit) -> ConfigError:
    """The error of numbers that no unit of time fits, with the nearest limit that one does."""
    return ConfigError(
        "these numbers are too fine for exact arithmetic (capacity or limit times period passes 2**52); "
        f'the nearest limit that fits is "{nearest}"'
    )


def too_large_a_counter(count: int, nearest: Limit) -> ConfigError:
    """The error of a counter of more money than fits, with the limits that would do instead."""
    rate = rate_text(count, nearest.of, nearest.period_us)
    return ConfigError(
        f'a sliding window counter multiplies its limit, in billionths, by its period: "{nearest}" is the largest; '
        f'write "{rate}", which remembers each request, or "{rate} fixed"'
    )


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def set_fields(value: Limit, /, **fields: object) -> None:
    """Fill the fields of a frozen limit, once, from its own `__init__`."""
    for name, field_value in fields.items():
        object.__setattr__(value, name, field_value)
