"""The text form of limits: `"10/second burst 100; 1000/hour"`. Parsing and printing are inverse.

    limits := limit (";" limit)*
    limit  := COUNT "concurrent" | COUNT ("/" | "per") [COUNT] UNIT [shape]
    shape  := "fixed" | "log" | "counter" | "bucket" | "burst" COUNT | "leaky" COUNT | "queue" COUNT

A COUNT is decimal digits, which `_` may group. Without a shape a limit is a sliding window: the log where
its COUNT is at most `EXACT_UP_TO`, the counter above. The shapes are those of `headgate.algorithms.table`. An
error points at the character where the text stops making sense and says what would be right there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from headgate.algorithms.table import ALGORITHMS, Shape
from headgate.errors import ConfigError, LimitSyntaxError
from headgate.limits import EXACT_UP_TO, Limit, SlidingLog, SlidingWindow
from headgate.periods import TextReader, Token

MOST_LIMITS = 16
"""How many limits one text may hold: each is a state to keep and to check on every request."""


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
    words = [shape.word for _, shape in _shapes(of_rates=True)]
    reader.expect_end(f'";" and another limit, or one of {", ".join(words)}', words)
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
    def limit(self) -> Limit:
        start = self.token
        count = self.count('a number such as 100 in "100/minute"')
        for kind, shape in _shapes(of_rates=False):
            if self.take_word(shape.word):
                return self._build(start, kind, **dict.fromkeys(shape.sets, count))
        if not (self.take_mark("/") or self.take_word("per")):
            words = ", ".join(f'"{shape.word}"' for _, shape in _shapes(of_rates=False))
            self.fail(f'"/" or "per" and a unit, or {words}, comes after the number')
        return self._rate(start, count, self.period())

    def _rate(self, start: Token, count: int, period_us: int) -> Limit:
        for kind, shape in _shapes(of_rates=True):
            if self.take_word(shape.word):
                numbers = dict.fromkeys(shape.sets, count)
                if shape.number:
                    wanted = f'{shape.meaning} after "{shape.word}", such as "{shape.word} {shape.example}"'
                    numbers[shape.number] = self.count(wanted)
                return self._build(start, kind, **numbers, period_us=period_us)
        kind = SlidingLog if count <= EXACT_UP_TO else SlidingWindow
        return self._build(start, kind, limit=count, period_us=period_us)

    def _build(self, start: Token, kind: Callable[..., Limit], **numbers: int) -> Limit:
        """The limit of these numbers; what the value refuses is an error of the text at `start`."""
        try:
            return kind(**numbers)
        except ConfigError as error:
            raise LimitSyntaxError(error.message, text=self.text, position=start.position) from error
