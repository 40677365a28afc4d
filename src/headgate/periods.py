"""Periods as numbers and as text, such as "minute" and "5 minutes", and the reader for texts of limits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from headgate.calendars import CALENDAR_PERIODS, check_zone
from headgate.errors import ConfigError, LimitSyntaxError
from headgate.units import LARGEST

LONGEST_TEXT = 4096

PERIODS_US = {
    "us": 1,
    "ms": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}

_SHORT_FORMS = {
    "us": ("µs", "usec", "usecs", "microsecond", "microseconds"),
    "ms": ("msec", "msecs", "millisecond", "milliseconds"),
    "second": ("s", "sec", "secs", "seconds"),
    "minute": ("m", "min", "mins", "minutes"),
    "hour": ("h", "hr", "hrs", "hours"),
    "day": ("d", "days"),
    "week": ("w", "wk", "wks", "weeks"),
}
_CALENDAR_SHORT_FORMS = {"month": ("mo", "months"), "year": ("y", "yr", "yrs", "years")}
_UNITS = {word: unit for unit, words in _SHORT_FORMS.items() for word in (unit, *words)}
_CALENDAR_UNITS = {word: unit for unit, words in _CALENDAR_SHORT_FORMS.items() for word in (unit, *words)}
_UNIT_NAMES = ", ".join(unit for unit in PERIODS_US if unit != "us")
_TOKEN = re.compile(r"\s*(?:(?P<count>[0-9][0-9_]*)|(?P<word>[^\W\d_]+)|(?P<mark>[/;])|(?P<end>$)|(?P<other>.))", re.S)
_ZONE = re.compile(r"\s*([^\s;]+)")


def period_text(period_us: int) -> tuple[int, str]:
    """A period as a count of the largest unit that divides it: 90_000_000 is (90, "second")."""
    for unit, unit_us in reversed(PERIODS_US.items()):
        if period_us % unit_us == 0:
            return period_us // unit_us, unit
    raise ConfigError(f"a period is a whole number of microseconds, not {period_us!r}")


def parse_period(text: str) -> int:
    """Read a period, "minute" or "5 minutes", as microseconds."""
    reader = TextReader(text)
    period_us = reader.period()
    reader.expect_end('nothing more: a period is a number and a unit, such as "5 minutes"')
    return period_us


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a number, a mark, or the end of a text."""

    kind: str
    text: str
    position: int


class TextReader:
    """Reads a text in one pass, one token ahead. Raises LimitSyntaxError with the position of invalid text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.next_position = 0
        if len(text) > LONGEST_TEXT:
            raise LimitSyntaxError(f"the text of limits has at most {LONGEST_TEXT} characters", text=text, position=0)
        self.token = self._read()

    def period(self) -> int:
        """Read a period, in microseconds."""
        number = self.count("") if self.token.kind == "count" else 1
        unit = self.token
        if unit.text == ".":
            self.fail('the number of a period is whole: half a second is "500 ms"')
        name = _UNITS.get(unit.text.lower()) if unit.kind == "word" else None
        if name is None and unit.text.lower() in _CALENDAR_UNITS:
            self.fail(f"a {_CALENDAR_UNITS[unit.text.lower()]} has no length of its own: units are {_UNIT_NAMES}")
        if name is None:
            self.fail(f"units are {_UNIT_NAMES}{_suggestion(unit.text, (*_UNITS, *_CALENDAR_UNITS))}")
        if number == 0:
            self.fail("a period is at least 1")
        period_us = number * PERIODS_US[name]
        if period_us > LARGEST:
            self.fail(f"a period is at most {LARGEST} microseconds, about 142 years")
        self._advance()
        return period_us

    def calendar_period(self) -> str | None:
        """Read a day, week, month or year that "in" and a time zone follow, else nothing; return its name."""
        unit, position = self.token, self.next_position
        word = unit.text.lower()
        name = _CALENDAR_UNITS.get(word, _UNITS.get(word)) if unit.kind == "word" else None
        if name not in CALENDAR_PERIODS:
            return None
        self._advance()
        if self.take_word("in"):
            return name
        if name in _CALENDAR_SHORT_FORMS:
            self.fail(
                f'expected a time zone after "{name}", as in "{name} in Europe/Zurich"; other units are {_UNIT_NAMES}'
            )
        self.token, self.next_position = unit, position
        return None

    def zone(self) -> str:
        """Read the name of a time zone."""
        match = _ZONE.match(self.text, self.token.position)
        if match is None:
            self.fail('expected a time zone such as "Europe/Zurich" after "in"')
        try:
            name = check_zone(match[1])
        except ConfigError as error:
            raise LimitSyntaxError(error.message, text=self.text, position=self.token.position) from error
        self.next_position = match.end()
        self._advance()
        return name

    def count(self, expected: str) -> int:
        """Read a whole number; `expected` describes it in the error."""
        token = self.token
        if token.kind != "count":
            self.fail(f"expected {expected}")
        digits = token.text.replace("_", "")
        if len(digits.lstrip("0")) > len(str(LARGEST)) or int(digits) > LARGEST:
            self.fail(f"numbers go up to {LARGEST} (2**52)")
        self._advance()
        return int(digits)

    def is_word(self, word: str) -> bool:
        """Whether this word is next; it is not consumed."""
        return self.token.kind == "word" and self.token.text.lower() == word

    def take_word(self, word: str) -> bool:
        """Whether this word is next; then it is consumed."""
        return self._take("word", word)

    def take_mark(self, mark: str) -> bool:
        """Whether this mark is next; then it is consumed."""
        return self._take("mark", mark)

    def continue_at(self, position: int) -> None:
        """Continue at this character."""
        self.next_position = position
        self._advance()

    def expect_end(self, expected: str, known: Iterable[str] = ()) -> None:
        """Fail unless the text ends here; `known` are words that the message may suggest."""
        if self.token.kind != "end":
            self.fail(f"expected {expected}{_suggestion(self.token.text, known)}")

    def fail(self, reason: str) -> NoReturn:
        """Raise LimitSyntaxError at the next token."""
        raise LimitSyntaxError(reason, text=self.text, position=self.token.position)

    def _take(self, kind: str, text: str) -> bool:
        if self.token.kind != kind or self.token.text.lower() != text:
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        self.token = self._read()

    def _read(self) -> Token:
        match = _TOKEN.match(self.text, self.next_position)
        if match is None or match.lastgroup is None:  # only trailing white space is left
            return Token("end", "", len(self.text))
        self.next_position = match.end()
        return Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.lower(), known, n=1, cutoff=0.7)
    return f'; did you mean "{close[0]}"?' if close else ""
