"""The prices of one gate: those of its book, or the configured price of unknown models, and how long each holds."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from headgate.clock import since_epoch_us, utc_moment
from headgate.llm.model_prices import Span
from headgate.llm.price import Price
from headgate.llm.prices import PriceBook
from headgate.llm.terms import Terms


class PriceSpan(NamedTuple):
    """The price of a model at all times from a start on, before an end, in microseconds since the epoch."""

    start_us: int
    end_us: int
    price: Price | None


class PriceSpans:
    """The prices of one gate. `unknown` is the price of models that are not in the book; None where it is not set.

    Calls last for at most `lease_us`, or are settled by the price with which they began.
    """

    def __init__(self, book: PriceBook, lease_us: int, unknown: Price | None) -> None:
        self._book = book
        self._lease = timedelta(microseconds=lease_us)
        self._unknown = unknown

    def span(self, model: str, at_us: int) -> PriceSpan:
        """The price of a model at a time, and how long it holds."""
        return self._price_span(self._book.span(model, utc_moment(at_us)))

    def dearest_span(self, model: str, at_us: int) -> PriceSpan:
        """The highest price that can apply to a call that begins at a time, and when calls may begin with it."""
        return self._price_span(self._book.dearest_span(model, utc_moment(at_us), self._lease))

    def price(self, model: str, at_us: int, terms: Terms) -> Price | None:
        """The price of terms at a time.

        Where it is not known, it is the price of unknown models, and at least the usual price.
        """
        at, unknown = utc_moment(at_us), self._unknown
        price = self._book.price(model, at, terms)
        if price is not None or unknown is None:
            return price
        usual = self._book.price(model, at)
        return unknown if usual is None else usual.dearest(unknown)

    def dearest(self, model: str, at_us: int, terms: Terms) -> Price | None:
        """The highest price that can apply until the lease of a call ends: the usual one, or that of its terms.

        None where one of them is not known, and no price of unknown models is set.
        """
        at = utc_moment(at_us)
        usual = self._book.dearest(model, at, self._lease)
        if usual is None:
            return self._unknown
        other = self._book.dearest(model, at, self._lease, terms) or self._unknown
        return other if other is None or other is usual else usual.dearest(other)

    def _price_span(self, span: Span) -> PriceSpan:
        return PriceSpan(since_epoch_us(span.start), since_epoch_us(span.end), span.price or self._unknown)
