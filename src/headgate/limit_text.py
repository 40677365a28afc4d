"""The text form of limits: `"10/second burst 100; 1000/hour"`. Parsing and printing are inverse.

    limits := limit (";" limit)*
    limit  := COUNT [OF] "concurrent" | COUNT [OF] ("/" | "per") [COUNT] UNIT [shape]
            | COUNT [OF] ("/" | "per") PERIOD "in" ZONE
    shape  := "fixed" | "log" | "counter" | ("bucket" | "burst" COUNT) ["stepwise"] | "leaky" COUNT | "queue" COUNT

A COUNT is decimal digits, which `_` may group; of money it may have a fraction. OF names the counted unit, by default
requests: any word except `headgate.amounts.RESERVED_WORDS`. A PERIOD of a time ZONE is a day, week, month
or year. Without a shape a limit is a sliding window: the log where its COUNT is at most `EXACT_UP_TO` or is money,
else the counter. The shapes are those of `headgate.algorithms.table`. An error points at the first character that is
wrong and states what would be right there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from headgate.algorithms.table import ALGORITHMS, Shape
from headgate.amounts import (
    LONGEST_UNIT,
    REQUESTS,
    RESERVED_WORDS,
    SHORT_REQUESTS,
    UNIT,
    Amount,
    is_money,
    unit_named,
)
from headgate.errors import ConfigError, LimitSyntaxError
from headgate.limits import CalendarWindow, Limit, SlidingLog, SlidingWindow, is_exact
from headgate.periods import TextReader, Token

MOST_LIMITS = 16
"""The most limits in one text: each has a state that is stored, and checked on every request."""

_FRACTION = re.compile(r"[0-9][0-9_]*\.[0-9]+")
_FRACTION_OF = re.compile(rf"({_FRACTION.pattern})\s*({UNIT.pattern})")
_SEPARATOR = re.compile(r"[.,'’][0-9]")
_CURRENCY = "$€£¥"
_ZONE_WORD = "in"
_MULTIPLE = re.compile(r"[kmgtb]|e[0-9]+|mio|mill?|mn|bn|mrd", re.IGNORECASE)
"""Means thousands or more where it follows a digit. As a unit it would make a limit that counts what nothing
costs."""


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Read one or more limits; raises `LimitSyntaxError` or `ConfigError`."""
    if not isinstance(text, str):
        raise ConfigError(f'limits are text such as "100/minute", or limit values, not {text!r}')
    return _parse(text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[Limit, ...]:
    reader = _LimitReader(text)
    limits = [reader.limit()]
    while reader.take_mark(";"):
        if reader.token.kind == "end":
            break
        if len(limits) == MOST_LIMITS:
            reader.fail(f"one text holds at most {MOST_LIMITS} limits")
        limits.append(reader.limit())
    reader.expect_end(f'";" and another limit{reader.or_a_word()}', reader.words)
    return tuple(limits)


def _shapes(*, of_rates: bool) -> list[tuple[type[Limit], Shape]]:
    """The shapes of limits that are rates, or of those that are not, each with its class."""
    return [
        (algorithm.limit, shape)
        for algorithm in ALGORITHMS.values()
        for shape in algorithm.shapes
        if algorithm.limit.is_rate == of_rates
    ]


class _LimitReader(TextReader):
    words: tuple[str, ...] = ()
    """The words that may follow in the limit that was read last, which has its numbers already."""

    def or_a_word(self) -> str:
        """Those words, as an alternative in a message."""
        if len(self.words) == 1:
            return f', or "{self.words[0]}"'
        return f", or one of {', '.join(self.words)}" if self.words else ""

    def limit(self) -> Limit:
        self.words = ()
        start = self.token
        count, of = self._counted()
        for kind, shape in _shapes(of_rates=False):
            if self.take_word(shape.word):
                return self._build(start, kind, of, **dict.fromkeys(shape.sets, count))
        if not (self.take_mark("/") or self.take_word("per")):
            self._fail_at_amount()
            words = ", ".join(f'"{shape.word}"' for _, shape in _shapes(of_rates=False))
            self.fail(f'"/" or "per" and a unit, or {words}, comes after the number')
        if period := self.calendar_period():
            return self._build(start, CalendarWindow, of, limit=count, period=period, zone=self.zone())
        period_us = self.period()
        if self.is_word(_ZONE_WORD):
            self.fail('"in" and a time zone come after a day, week, month or year: "1000/month in Europe/Zurich"')
        return self._rate(start, count, of, period_us)

    def _rate(self, start: Token, count: int | str, of: str, period_us: int) -> Limit:
        for kind, shape in _shapes(of_rates=True):
            if not shape.ending and self.take_word(shape.word):
                numbers: dict[str, Amount] = dict.fromkeys(shape.sets, count)
                if shape.number:
                    expected = f'{shape.meaning} after "{shape.word}", such as "{shape.word} {shape.example}"'
                    numbers[shape.number] = self._number(expected, of)
                return self._build(start, self._with_ending(kind, shape), of, **numbers, period_us=period_us)
        words_before = [
            f'"{shape.word}"' for _, shape in _shapes(of_rates=True) if shape.ending and self.is_word(shape.ending)
        ]
        if words_before:
            self.fail(
                f'"{self.token.text}" comes after {" or ".join(words_before)}, such as "10/minute burst 30 stepwise"'
            )
        self.words = (*dict.fromkeys(shape.word for _, shape in _shapes(of_rates=True)), _ZONE_WORD)
        exact = isinstance(count, str) or is_exact(count, of)
        return self._build(start, SlidingLog if exact else SlidingWindow, of, limit=count, period_us=period_us)

    def _with_ending(self, kind: type[Limit], shape: Shape) -> type[Limit]:
        """The class whose shape has the same word and ends with the word that is next; else `kind`."""
        endings = {
            other_shape.ending: other
            for other, other_shape in _shapes(of_rates=True)
            if other_shape.ending and other_shape.word == shape.word
        }
        ending = next(filter(self.take_word, endings), "")
        self.words = () if ending else tuple(endings)
        return endings.get(ending, kind)

    def _counted(self) -> tuple[int | str, str]:
        """Read a number and its unit, requests where none is named."""
        match = _FRACTION_OF.match(self.text, self.token.position) if self.token.kind == "count" else None
        if match is not None and match[2].lower() not in RESERVED_WORDS:
            of = unit_named(match[2])
            if not is_money(of):
                self.fail(f"{of} are counted whole: a fraction is for money, such as 0.50 usd")
            self.continue_at(match.end())
            return match[1], of
        self._fail_at_amount()
        count = self.count('a number such as 100 in "100/minute"')
        return count, self._unit()

    def _fail_at_amount(self) -> None:
        """Fail at a separator within a number, or at the symbol of a currency beside it, where one is next."""
        if _SEPARATOR.match(self.text, self.token.position):
            self.fail("a number is whole, such as 90000 or 90_000: a fraction is for money, such as 0.50 usd")
        if self.text[self.token.position : self.token.position + 1] in tuple(_CURRENCY):
            self.fail("money is a number with the name of its currency, such as 5 usd")

    def _unit(self) -> str:
        """Read the unit that is next; requests, and nothing is consumed, where none is."""
        name = UNIT.match(self.text, self.token.position) if self.token.kind == "word" else None
        if name is not None and _MULTIPLE.fullmatch(name[0]) and not self.text[name.start() - 1].isspace():
            self.fail(f'write the number in full, such as 10000; a unit called "{name[0]}" has a space before it')
        if name is not None and name[0].lower() in SHORT_REQUESTS:
            self.fail(f'requests are called "{REQUESTS}", or nothing at all, not "{name[0]}"')
        if name is None or name[0].lower() in RESERVED_WORDS:
            return REQUESTS
        if len(name[0]) > LONGEST_UNIT:
            self.fail(f"the name of what is counted has at most {LONGEST_UNIT} characters")
        self.continue_at(name.end())
        return unit_named(name[0])

    def _number(self, expected: str, of: str) -> int | str:
        """Read the number after a shape's word, in the unit of its limit."""
        fraction = _FRACTION.match(self.text, self.token.position) if is_money(of) else None
        if fraction is None:
            return self.count(expected)
        self.continue_at(fraction.end())
        return fraction[0]

    def _build(self, start: Token, kind: Callable[..., Limit], of: str, **numbers: Amount) -> Limit:
        """Make the limit with these numbers; invalid ones are an error of the text at `start`."""
        unit = {} if of == REQUESTS else {"of": of}
        try:
            return kind(**numbers, **unit)
        except ConfigError as error:
            raise LimitSyntaxError(error.message, text=self.text, position=start.position) from error
