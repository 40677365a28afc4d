"""The prices of a model, in whole billionths of a dollar per million tokens: no number is a float."""

from __future__ import annotations

from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

from headgate.llm.usage import Usage

MILLION, THOUSAND = 10**6, 10**3


UNKNOWN_SEARCHES = 35 * 10**9
"""For a thousand web searches where their price is not known: the highest of any provider (Google), 2026."""


def dollars(billionths: int) -> Decimal:
    """Convert billionths of a dollar to a cost in `usd`, exactly."""
    return Decimal(billionths).scaleb(-9)


class Rate(NamedTuple):
    """Billionths per million tokens. A call with more input tokens than a step pays that step's rate for all tokens."""

    base: int
    steps: tuple[tuple[int, int], ...] = ()

    def at(self, input_tokens: int) -> int:
        """The rate of a call with this number of input tokens."""
        rate = self.base
        for start, step_rate in self.steps:
            if input_tokens > start:
                rate = step_rate
        return rate

    def dearest(self, other: Rate) -> Rate:
        """The higher of two rates at every number of tokens."""
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
    """The price of a model. `request` is for each call, in billionths, and `web_searches` for a thousand searches.

    `version` says where the price is from, for the books.
    """

    def cost(self, usage: Usage) -> int:
        """The cost of a call in billionths of a dollar, rounded up."""
        sent, output, read, written, hour, reasoning, searches, audio_in, audio_out, images = usage
        is_text = not (audio_in or audio_out or images)
        if is_text and not (read or written or reasoning or searches) and (rates := self._flat_rates) is not None:
            return self.request - (-(sent * rates[0] + output * rates[1]) // MILLION)
        million = (sent - read - written - audio_in) * self.input.at(sent)
        million += (output - reasoning - audio_out - images) * self.output.at(sent)
        if read or written:
            million += read * self.cache_read.at(sent) + (written - hour) * self.cache_write.at(sent)
            million += hour * self.cache_write_hour.at(sent)
        if reasoning:
            million += reasoning * self.reasoning.at(sent)
        if not is_text:
            million += audio_in * self.audio_input.at(sent)
            million += audio_out * self.audio_output.at(sent) + images * self.image_output.at(sent)
        fees = self.request - (-searches * self.web_searches // THOUSAND)
        return fees - (-million // MILLION)

    def most(self, input_tokens: int, output_tokens: int, web_searches: int = 0) -> int:
        """The most that a call with these tokens can cost: all input written to the cache, all output reasoning.

        If audio or images are dearer, all tokens are counted as those.
        """
        input_rate, output_rate = self._highest or self._most_rates(input_tokens)
        tokens = -(-(input_tokens * input_rate + output_tokens * output_rate) // MILLION) + self.request
        return tokens - (-web_searches * self.web_searches // THOUSAND) if web_searches else tokens

    @cached_property
    def _flat_rates(self) -> tuple[int, int] | None:
        """The rates of input and output, where these do not depend on the length of the input."""
        return None if self.input.steps or self.output.steps else (self.input.base, self.output.base)

    @cached_property
    def _highest(self) -> tuple[int, int] | None:
        """`_most_rates`, where these do not depend on the length of the input."""
        return None if any(rate.steps for rate in self._of_input + self._of_output) else self._most_rates(0)

    def _most_rates(self, input_tokens: int) -> tuple[int, int]:
        """The highest rates of input and of output for an input of this length."""
        input_rate = max([rate.at(input_tokens) for rate in self._of_input])
        return input_rate, max([rate.at(input_tokens) for rate in self._of_output])

    @cached_property
    def _of_input(self) -> tuple[Rate, ...]:
        """The rates that input tokens may have."""
        rates = (self.input, self.cache_read, self.cache_write, self.cache_write_hour, self.audio_input)
        return tuple(dict.fromkeys(rates))

    @cached_property
    def _of_output(self) -> tuple[Rate, ...]:
        """The rates that output tokens may have."""
        return tuple(dict.fromkeys((self.output, self.reasoning, self.audio_output, self.image_output)))

    def dearest(self, other: Price) -> Price:
        """The price with the higher one of each rate."""
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
    """Make a price; a part without a rate costs as much as the tokens that it is a part of."""
    input_rate, output_rate = _rate(input), _rate(output)
    write_rate = input_rate if cache_write is None else _rate(cache_write)
    return Price(
        input_rate,
        output_rate,
        input_rate if cache_read is None else _rate(cache_read),
        write_rate,
        write_rate if cache_write_hour is None else _rate(cache_write_hour),
        output_rate if reasoning is None else _rate(reasoning),
        input_rate if audio_input is None else _rate(audio_input),
        output_rate if audio_output is None else _rate(audio_output),
        output_rate if image_output is None else _rate(image_output),
        web_searches,
        request,
        version,
    )


def _rate(rate: int | Rate) -> Rate:
    return rate if isinstance(rate, Rate) else Rate(rate)
