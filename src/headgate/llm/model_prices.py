"""The prices of one model of `genai-prices`, by time: compiled when they are first needed, and cached.

A price holds between two borders in time. A compiled price is used again for times between the same borders.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from decimal import ROUND_CEILING, Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.llm.price import UNKNOWN_SEARCHES, Price, Rate, price_of
from headgate.llm.terms import Terms
from headgate.money import NANO

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

_KEYS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_hour": "cache_write_1h_mtok",
    "reasoning": "output_reasoning_mtok",
    "audio_input": "input_audio_mtok",
    "audio_output": "output_audio_mtok",
    "image_output": "output_image_mtok",
}
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_DAY = timedelta(days=1)
_MOST_LEASES = 16


class Span(NamedTuple):
    """The price for all times from a start on, before an end."""

    start: datetime
    end: datetime
    price: Price | None


UNKNOWN = Span(FIRST, LAST, None)
"""The span of a price that is not known."""


class ModelPrices:
    """The prices of a model; `version` says where they are from."""

    def __init__(self, model_info: ModelInfo, version: str) -> None:
        self._model_info = model_info
        self._version = version
        constraints = [price.constraint for price in model_info.prices] if isinstance(model_info.prices, list) else []
        variants = model_info.price_variants or []
        constraints += [variant.constraint for variant in variants]
        dates = {each for constraint in constraints if (each := getattr(constraint, "start_date", None)) is not None}
        self._dates = sorted(datetime.combine(date, time(), UTC) for date in dates)
        self._times = {
            each
            for constraint in constraints
            for name in ("start_time", "end_time")
            if (each := getattr(constraint, name, None)) is not None
        }
        self._variants = [(tuple(sorted(variant.when.items())), variant.constraint) for variant in variants]
        self._spans: dict[Terms, Span] = {}
        self._dearest: dict[tuple[Terms, timedelta], Span] = {}

    def span(self, at: datetime, terms: Terms) -> Span:
        """The price at a time with a time zone; None where the model is not priced by tokens, or it is not known."""
        span = self._spans.get(terms)
        if span is not None and span.start <= at < span.end:
            return span
        if terms and not any(when == terms for when, _ in self._variants):
            return UNKNOWN  # not cached: clients may send anything
        span = self._spans[terms] = Span(*self._borders_around(at), self._compile(at, terms))
        return span

    def dearest_span(self, at: datetime, lease: timedelta, terms: Terms) -> Span:
        """The highest price that can apply from a time until a lease ends."""
        span = self._dearest.get((terms, lease))
        if span is not None and span.start <= at < span.end:
            return span
        if terms and not any(when == terms for when, _ in self._variants):
            return UNKNOWN
        start, end = self._borders_around(at)
        until_start, until_end = self._borders_around(at + lease)
        start = start if until_start == FIRST else max(start, until_start - lease)
        end = end if until_end == LAST else min(end, until_end - lease)
        prices = [self.span(each_time, terms).price for each_time in self._times_between(at, at + lease)]
        known_prices = [price for price in prices if price is not None]
        price = reduce(Price.dearest, known_prices) if len(known_prices) == len(prices) else None
        if len(self._dearest) >= _MOST_LEASES:
            self._dearest.clear()
        span = self._dearest[terms, lease] = Span(start, end, price)
        return span

    def _borders_around(self, at: datetime) -> tuple[datetime, datetime]:
        """The last border up to a time, and the first one after it."""
        today = _midnight(at)
        borders = [*self._dates, *self._daily(today - _DAY), *self._daily(today), *self._daily(today + _DAY)]
        return (
            max((border for border in borders if border <= at), default=FIRST),
            min((border for border in borders if border > at), default=LAST),
        )

    def _times_between(self, start: datetime, end: datetime) -> set[datetime]:
        """Times from `start` to `end`, among them one at which each price of that period applies."""
        dates = [date for date in self._dates if start < date <= end]
        borders = [
            border
            for date in (_midnight(start), *dates)
            for days in range(3)
            for border in self._daily(date + days * _DAY)
        ]
        return {start, end, *dates, *(border for border in borders if start < border <= end)}

    def _daily(self, midnight: datetime) -> Iterator[datetime]:
        """The borders of a day whose midnight, UTC, is given."""
        for each in self._times:
            if each.tzinfo is None:
                yield datetime.combine(midnight, each, UTC)
            else:
                yield datetime.combine(midnight, each).astimezone(UTC)

    def _compile(self, at: datetime, terms: Terms) -> Price | None:
        if terms and not any(
            when == terms and (constraint is None or constraint.active(at)) for when, constraint in self._variants
        ):
            return None  # not known at that time
        prices = self._model_info.get_prices(at, dict(terms))
        rates: dict[str, Rate] = {}
        for name, key in _KEYS.items():
            rate = getattr(prices, key)
            if rate is not None:
                rates[name] = _rate(rate)
        if "input" not in rates:
            return None
        searches, requests = prices.web_searches_kcount, prices.requests_kcount
        return price_of(
            rates.pop("input"),
            rates.pop("output", Rate(0)),
            **rates,
            web_searches=UNKNOWN_SEARCHES if searches is None else _rate(searches).base,
            request=0 if requests is None else -(-_rate(requests).base // 1000),
            version=self._version,
        )


def _midnight(at: datetime) -> datetime:
    return datetime.combine(at.astimezone(UTC), time(), UTC)


def _rate(rate: Any) -> Rate:
    if isinstance(rate, Decimal):
        return Rate(_billionths(rate))
    return Rate(_billionths(rate.base), tuple((tier.start, _billionths(tier.price)) for tier in rate.tiers))


def _billionths(dollars: Decimal) -> int:
    return int((dollars * NANO).to_integral_value(ROUND_CEILING))
