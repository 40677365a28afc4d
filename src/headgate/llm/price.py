"""What tokens of a model cost, in whole billionths of a dollar for a million tokens: nothing is ever a float."""

from __future__ import annotations

from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

from headgate.llm.usage import Usage

MILLION, THOUSAND = 10**6, 10**3


UNKNOWN_SEARCHES = 35 * 10**9
"""For a thousand searches of the web where their price is not known: the highest of any provider (Google), 2026."""


def dollars(billionths: int) -> Decimal:
    """Billionths of a dollar as a cost in `usd` is given, exactly."""
    return Decimal(billionths).scaleb(-9)


class Rate(NamedTuple):
    """Billionths for a million tokens. Above the tokens of input of a step, all tokens of a call cost its rate."""

    base: int
    steps: tuple[tuple[int, int], ...] = ()

    def at(self, input_tokens: int) -> int:
        """The rate of a call with so many tokens of input."""
        rate = self.base
        for start, later in self.steps:
            if input_tokens > start:
                rate = later
        return rate

    def dearest(self, other: Rate) -> Rate:
        """At every number of tokens the higher of two rates."""
        starts = sorted({start for start, _ in (*self.steps, *other.steps)})
        return Rate(
            max(self.base, other.base),
            tuple((start, max(self.at(start + 1), other.at(start + 1))) for start in starts),
        )


class _Rates(NamedTuple):
    input: Rate
    output: Rate
    cache_read: Rate
    cache_write: Rate
    cache_write_hour: Rate
    reasoning: Rate
    audio_input: Rate
    audio_output: Rate
    image_output: Rate
    web_searches: int
    request: int
    version: str


class Price(_Rates):
    """What a model costs. `request` is for each call, in billionths, and `web_searches` for a thousand of them.

    `version` tells where the price is from, for the books.
    """

    def cost(self, usage: Usage) -> int:
        """What a call cost in billionths of a dollar, rounded up."""
        at, made, read, written, hour, thought, searches, heard, spoken, drawn = usage
        is_text = not (heard or spoken or drawn)
        if is_text and not (read or written or thought or searches) and (one := self._one) is not None:
            return self.request - (-(at * one[0] + made * one[1]) // MILLION)
        million = (at - read - written - heard) * self.input.at(at)
        million += (made - thought - spoken - drawn) * self.output.at(at)
        if read or written:
            million += read * self.cache_read.at(at) + (written - hour) * self.cache_write.at(at)
            million += hour * self.cache_write_hour.at(at)
        if thought:
            million += thought * self.reasoning.at(at)
        if not is_text:
            million += heard * self.audio_input.at(at)
            million += spoken * self.audio_output.at(at) + drawn * self.image_output.at(at)
        fees = self.request - (-searches * self.web_searches // THOUSAND)
        return fees - (-million // MILLION)

    def most(self, input_tokens: int, output_tokens: int, web_searches: int = 0) -> int:
        """The most that a call with so many tokens can cost: all input written to the cache, all output reasoning.

        Or all of it audio, or images, if these are dearer.
        """
        sent, made = self._highest or self._most_rates(input_tokens)
        tokens = -(-(input_tokens * sent + output_tokens * made) // MILLION) + self.request
        return tokens - (-web_searches * self.web_searches // THOUSAND) if web_searches else tokens

    @cached_property
    def _one(self) -> tuple[int, int] | None:
        """The rates of input and output, where these are the same however long the input is."""
        return None if self.input.steps or self.output.steps else (self.input.base, self.output.base)

    @cached_property
    def _highest(self) -> tuple[int, int] | None:
        """`_most_rates`, where these are the same however long the input is."""
        return None if any(rate.steps for rate in self._of_input + self._of_output) else self._most_rates(0)

    def _most_rates(self, input_tokens: int) -> tuple[int, int]:
        """The highest rates of input and of output that so long an input can have."""
        sent = max([rate.at(input_tokens) for rate in self._of_input])
        return sent, max([rate.at(input_tokens) for rate in self._of_output])

    @cached_property
    def _of_input(self) -> tuple[Rate, ...]:
        """What tokens of input may cost."""
        rates = (self.input, self.cache_read, self.cache_write, self.cache_write_hour, self.audio_input)
        return tuple(dict.fromkeys(rates))

    @cached_property
    def _of_output(self) -> tuple[Rate, ...]:
        """What tokens of output may cost."""
        return tuple(dict.fromkeys((self.output, self.reasoning, self.audio_output, self.image_output)))

    def dearest(self, other: Price) -> Price:
        """Of each rate the higher of two prices."""
        return Price(
            self.input.dearest(other.input),
            self.output.dearest(other.output),
            self.cache_read.dearest(other.cache_read),
            self.cache_write.dearest(other.cache_write),
            self.cache_write_hour.dearest(other.cache_write_hour),
            self.reasoning.dearest(other.reasoning),
            self.audio_input.dearest(other.audio_input),
            self.audio_output.dearest(other.audio_output),
            self.image_output.dearest(other.image_output),
            max(self.web_searches, other.web_searches),
            max(self.request, other.request),
            " or ".join(dict.fromkeys([self.version, other.version])),
        )


def price_of(
    input: int | Rate,
    output: int | Rate,
    *,
    cache_read: int | Rate | None = None,
    cache_write: int | Rate | None = None,
    cache_write_hour: int | Rate | None = None,
    reasoning: int | Rate | None = None,
    audio_input: int | Rate | None = None,
    audio_output: int | Rate | None = None,
    image_output: int | Rate | None = None,
    web_searches: int = 0,
    request: int = 0,
    version: str,
) -> Price:
    """A price; what is not told costs what the tokens cost that it is a part of."""
    sent, made = _rate(input), _rate(output)
    written = sent if cache_write is None else _rate(cache_write)
    return Price(
        sent,
        made,
        sent if cache_read is None else _rate(cache_read),
        written,
        written if cache_write_hour is None else _rate(cache_write_hour),
        made if reasoning is None else _rate(reasoning),
        sent if audio_input is None else _rate(audio_input),
        made if audio_output is None else _rate(audio_output),
        made if image_output is None else _rate(image_output),
        web_searches,
        request,
        version,
    )


def _rate(told: int | Rate) -> Rate:
    return told if isinstance(told, Rate) else Rate(told)
