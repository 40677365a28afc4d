"""The text form of limits: `"10/second burst 100; 1000/hour"`. Parsing and printing are inverse.

    limits := limit (";" limit)*
    limit  := COUNT "concurrent" | COUNT ("/" | "per") [COUNT] UNIT [shape]
    shape  := "fixed" | "log" | "counter" | "bucket" | "burst" COUNT | "leaky" COUNT | "queue" COUNT

A COUNT is decimal digits, which `_` may group. Without a shape a limit is a sliding window: the log where
its COUNT is at most `EXACT_UP_TO`, the counter above. An error points at the character where the text
stops making sense and says what would be right there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import NoReturn

from headgate.errors import ConfigError, LimitSyntaxError
from headgate.limits import (
    EXACT_UP_TO,
    PERIODS_US,
    Concurrent,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.units import LARGEST

LONGEST_TEXT = 4096
MOST_LIMITS = 16
"""How many limits one text may hold: each is a state to keep and to check on every request."""

_SHORT_FORMS = {
    "us": ("µs", "usec", "usecs", "microsecond", "microseconds"),
    "ms": ("msec", "msecs", "millisecond", "milliseconds"),
    "second": ("s", "sec", "secs", "seconds"),
    "minute": ("m", "min", "mins", "minutes"),
    "hour": ("h", "hr", "hrs", "hours"),
    "day": ("d", "days"),
    "week": ("w", "wk", "wks", "weeks"),
}
_UNITS = {word: unit for unit, words in _SHORT_FORMS.items() for word in (unit, *words)}
_SHAPES = ("fixed", "log", "counter", "bucket", "burst", "leaky", "queue")
_UNIT_NAMES = ", ".join(unit for unit in PERIODS_US if unit != "us")
_TOKEN = re.compile(r"\s*(?:(?P<count>[0-9][0-9_]*)|(?P<word>[^\W\d_]+)|(?P<mark>[/;])|(?P<end>$)|(?P<other>.))", re.S)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Read one or more limits; raises `LimitSyntaxError` or `ConfigError`."""
    if not isinstance(text, str):
        raise ConfigError(f'limits are text such as "100/minute", or limit values, not {text!r}')
    return _parse(text)


def parse_period(text: str) -> int:
    """Read a period, "minute" or "5 minutes", as microseconds."""
    reader = _Reader(text)
    period_us = reader.period()
    reader.expect_end('nothing more: a period is a number and a unit, such as "5 minutes"')
    return period_us


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[Limit, ...]:
    reader = _Reader(text)
    limits = [reader.limit()]
    while reader.take_mark(";"):
        if reader.token.kind == "end":
            break
        if len(limits) == MOST_LIMITS:
            reader.fail(f"one text holds at most {MOST_LIMITS} limits")
        limits.append(reader.limit())
    reader.expect_end(f'";" and another limit, or one of {", ".join(_SHAPES)}')
    return tuple(limits)


class _Reader:
    """One pass over a text, one token ahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.next_position = 0
        if len(text) > LONGEST_TEXT:
            raise LimitSyntaxError(f"the text of limits has at most {LONGEST_TEXT} characters", text=text, position=0)
        self.token = self._read()

    def limit(self) -> Limit:
        start = self.token
        count = self.count('a number such as 100 in "100/minute"')
        if self.take_word("concurrent"):
            return self._build(start, Concurrent, limit=count)
        if not (self.take_mark("/") or self.take_word("per")):
            self.fail('"/" or "per" and a unit, or "concurrent", comes after the number')
        period_us = self.period()
        return self._shape(start, count, period_us)

    def period(self) -> int:
        number = self.count("") if self.token.kind == "count" else 1
        unit = self.token
        name = _UNITS.get(unit.text.lower()) if unit.kind == "word" else None
        if name is None:
            self.fail(f"units are {_UNIT_NAMES}{_suggestion(unit.text, _UNITS)}")
        if number == 0:
            self.fail("a period is at least 1")
        period_us = number * PERIODS_US[name]
        if period_us > LARGEST:
            self.fail(f"a period is at most {LARGEST} microseconds, about 142 years")
        self._advance()
        return period_us

    def count(self, wanted: str) -> int:
        token = self.token
        if token.kind != "count":
            self.fail(f"expected {wanted}")
        digits = token.text.replace("_", "")
        if len(digits.lstrip("0")) > len(str(LARGEST)) or int(digits) > LARGEST:
            self.fail(f"numbers go up to {LARGEST} (2**52)")
        self._advance()
        return int(digits)

    def take_word(self, word: str) -> bool:
        return self._take("word", word)

    def take_mark(self, mark: str) -> bool:
        return self._take("mark", mark)

    def expect_end(self, wanted: str) -> None:
        if self.token.kind != "end":
            self.fail(f"expected {wanted}{_suggestion(self.token.text, _SHAPES)}")

    def fail(self, reason: str) -> NoReturn:
        raise LimitSyntaxError(reason, text=self.text, position=self.token.position)

    def _shape(self, start: _Token, count: int, period_us: int) -> Limit:
        if self.take_word("fixed"):
            return self._build(start, FixedWindow, limit=count, period_us=period_us)
        if self.take_word("log"):
            return self._build(start, SlidingLog, limit=count, period_us=period_us)
        if self.take_word("counter"):
            return self._build(start, SlidingWindow, limit=count, period_us=period_us)
        if self.take_word("bucket"):
            return self._build(start, TokenBucket, capacity=count, refill=count, period_us=period_us)
        if self.take_word("burst"):
            capacity = self.count('the capacity after "burst", such as "burst 100"')
            return self._build(start, TokenBucket, capacity=capacity, refill=count, period_us=period_us)
        if self.take_word("leaky"):
            capacity = self.count('the capacity after "leaky", such as "leaky 200"')
            return self._build(start, LeakyBucket, capacity=capacity, refill=count, period_us=period_us)
        if self.take_word("queue"):
            queue = self.count('how many may wait after "queue", such as "queue 200"')
            return self._build(start, LeakyQueue, queue=queue, refill=count, period_us=period_us)
        kind = SlidingLog if count <= EXACT_UP_TO else SlidingWindow
        return self._build(start, kind, limit=count, period_us=period_us)

    def _build(self, start: _Token, kind: Callable[..., Limit], **numbers: int) -> Limit:
        """The limit of these numbers; what the value refuses is an error of the text at `start`."""
        try:
            return kind(**numbers)
        except ConfigError as error:
            raise LimitSyntaxError(error.message, text=self.text, position=start.position) from error

    def _take(self, kind: str, text: str) -> bool:
        if self.token.kind != kind or self.token.text.lower() != text:
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        self.token = self._read()

    def _read(self) -> _Token:
        match = _TOKEN.match(self.text, self.next_position)
        if match is None or match.lastgroup is None:  # only trailing white space is left
            return _Token("end", "", len(self.text))
        self.next_position = match.end()
        return _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.lower(), known, n=1, cutoff=0.7)
    return f'; did you mean "{close[0]}"?' if close else ""
