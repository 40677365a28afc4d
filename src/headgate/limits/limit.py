"""What all limits share, and how their numbers are read and written."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar

from headgate.errors import ConfigError, brief_number
from headgate.keys import whole_number
from headgate.periods import parse_period, period_text
from headgate.units import LARGEST, CompiledLimit


class Limit:
    """What all limits share. `algorithm` is the name the vectors use."""

    __slots__ = ()
    algorithm: ClassVar[str]
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


def rate_text(count: int, period_us: int) -> str:
    """A rate as it is written: `100/minute`, `5 per 30 seconds`."""
    number, unit = period_text(period_us)
    if number == 1:
        return f"{count}/{unit}"
    plural = unit if unit in ("us", "ms") else unit + "s"
    return f"{count} per {number} {plural}"


def period_argument(period_us: int) -> str:
    """A period as an argument of a limit's class."""
    number, unit = period_text(period_us)
    return f'period="{unit}"' if number == 1 else f"period_us={period_us}"


def whole(limit: Limit, name: str, value: object, *, least: int) -> int:
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


def set_fields(value: Limit, /, **fields: object) -> None:
    """Fill the fields of a frozen limit, once, from its own `__init__`."""
    for name, field_value in fields.items():
        object.__setattr__(value, name, field_value)
