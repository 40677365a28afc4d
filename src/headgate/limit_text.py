"""The text form of limits: `"10/second burst 100; 1000/hour"`. Parsing and printing are inverse.

    limits := limit (";" limit)*
    limit  := COUNT [OF] "concurrent" | COUNT [OF] ("/" | "per") [COUNT] UNIT [shape]
            | COUNT [OF] ("/" | "per") PERIOD "in" ZONE
    shape  := "fixed" | "log" | "counter" | ("bucket" | "burst" COUNT) ["stepwise"] | "leaky" COUNT | "queue" COUNT

A COUNT is decimal digits, which `_` may group; of money it may have a fraction. OF names what is counted, requests
where it is not there: any word but `headgate.amounts.RESERVED_WORDS`. A PERIOD of a time ZONE is a day, week, month
or year. Without a shape a limit is a sliding window: the log where its COUNT is at most `EXACT_UP_TO` or is money,
the counter above. The shapes are those of `headgate.algorithms.table`. An error points at the character where the text
stops making sense and says what would be right there.
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
"""How many limits one text may hold: each is a state to keep and to check on every request."""

_FRACTION = re.compile(r"[0-9][0-9_]*\.[0-9]+")
_FRACTION_OF = re.compile(rf"({_FRACTION.pattern})\s*({UNIT.pattern})")
_ZONE_WORD = "in"
_MULTIPLE = re.compile(r"[kmgtb]|e[0-9]+|mio|mill?|mn|bn|mrd", re.IGNORECASE)
"""What stands for thousands or more where it follows a digit. Taken for a unit, it would have a limit count what
nothing costs."""


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
    """The shapes of limits that are rates, or of those that are none, each with its kind of limit."""
    return [
        (algorithm.limit, shape)
        for algorithm in ALGORITHMS.values()
        for shape in algorithm.shapes
        if algorithm.limit.is_rate == of_rates
    ]


class _LimitReader(TextReader):
    words: tuple[str, ...] = ()
    """What may come next of the limit that was read last, which has its numbers already."""

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
                    wanted = f'{shape.meaning} after "{shape.word}", such as "{shape.word} {shape.example}"'
                    numbers[shape.number] = self._number(wanted, of)
                return self._build(start, self._ended(kind, shape), of, **numbers, period_us=period_us)
        begun = [
            f'"{shape.word}"' for _, shape in _shapes(of_rates=True) if shape.ending and self.is_word(shape.ending)
        ]
        if begun:
            self.fail(f'"{self.token.text}" comes after {" or ".join(begun)}, such as "10/minute burst 30 stepwise"')
        self.words = (*dict.fromkeys(shape.word for _, shape in _shapes(of_rates=True)), _ZONE_WORD)
        exact = isinstance(count, str) or is_exact(count, of)
        return self._build(start, SlidingLog if exact else SlidingWindow, of, limit=count, period_us=period_us)

    def _ended(self, kind: type[Limit], begun: Shape) -> type[Limit]:
        """The kind of limit whose shape begins alike and ends with the word that comes next; else this one."""
        endings = {
            shape.ending: other for other, shape in _shapes(of_rates=True) if shape.ending and shape.word == begun.word
        }
        ending = next(filter(self.take_word, endings), "")
        self.words = () if ending else tuple(endings)
        return endings.get(ending, kind)

    def _counted(self) -> tuple[int | str, str]:
        """How much of what: a number and a unit, requests where none is named."""
        found = _FRACTION_OF.match(self.text, self.token.position) if self.token.kind == "count" else None
        if found is not None and found[2].lower() not in RESERVED_WORDS:
            of = unit_named(found[2])
            if not is_money(of):
                self.fail(f"{of} are counted whole: a fraction is for money, such as 0.50 usd")
            self.go_on_at(found.end())
            return found[1], of
        count = self.count('a number such as 100 in "100/minute"')
        return count, self._unit()

    def _unit(self) -> str:
        """The unit that is named next; requests, and nothing read, where none is."""
        name = UNIT.match(self.text, self.token.position) if self.token.kind == "word" else None
        if name is not None and _MULTIPLE.fullmatch(name[0]) and not self.text[name.start() - 1].isspace():
            self.fail(f'write the number in full, such as 10000; a unit called "{name[0]}" has a space before it')
        if name is not None and name[0].lower() in SHORT_REQUESTS:
            self.fail(f'requests are called "{REQUESTS}", or nothing at all, not "{name[0]}"')
        if name is None or name[0].lower() in RESERVED_WORDS:
            return REQUESTS
        if len(name[0]) > LONGEST_UNIT:
            self.fail(f"the name of what is counted has at most {LONGEST_UNIT} characters")
        self.go_on_at(name.end())
        return unit_named(name[0])

    def _number(self, wanted: str, of: str) -> int | str:
        """The number that comes after a shape's word, in the unit of its limit."""
        fraction = _FRACTION.match(self.text, self.token.position) if is_money(of) else None
        if fraction is None:
            return self.count(wanted)
        self.go_on_at(fraction.end())
        return fraction[0]

    def _build(self, start: Token, kind: Callable[..., Limit], of: str, **numbers: Amount) -> Limit:
        """The limit of these numbers; what the value refuses is an error of the text at `start`."""
        unit = {} if of == REQUESTS else {"of": of}
        try:
            return kind(**numbers, **unit)
        except ConfigError as error:
            raise LimitSyntaxError(error.message, text=self.text, position=start.position) from error
