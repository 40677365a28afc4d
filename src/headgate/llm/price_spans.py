"""The prices of one gate: those of its book, or what a model without one is said to cost, and how long each holds."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from headgate.clock import since_epoch_us, utc_moment
from headgate.llm.model_prices import Span
from headgate.llm.price import Price
from headgate.llm.prices import PriceBook
from headgate.llm.terms import Terms


class PriceSpan(NamedTuple):
    """What a model costs at each moment from a start on, before an end, in microseconds since the epoch."""

    start_us: int
    end_us: int
    price: Price | None


class PriceSpans:
    """The prices of one gate. `unknown` is what models cost that the book does not know; None where that is not said.

    Calls last for `lease_us` at the most, or settle by the price that they began with.
    """

    def __init__(self, book: PriceBook, lease_us: int, unknown: Price | None) -> None:
        self._book = book
        self._lease = timedelta(microseconds=lease_us)
        self._unknown = unknown

    def span(self, model: str, at_us: int) -> PriceSpan:
        """The price of a model at a moment, and how long it holds."""
        return self._known(self._book.span(model, utc_moment(at_us)))

    def dearest_span(self, model: str, at_us: int) -> PriceSpan:
        """The highest price that can apply to calls that begin at a moment, and for how long others may begin so."""
        return self._known(self._book.dearest_span(model, utc_moment(at_us), self._lease))

    def price(self, model: str, at_us: int, terms: Terms) -> Price | None:
        """The price of terms at a moment.

        Where it is not known: what is said to cost what is unknown, and at least the usual price.
        """
        at, unknown = utc_moment(at_us), self._unknown
        known = self._book.price(model, at, terms)
        if known is not None or unknown is None:
            return known
        usual = self._book.price(model, at)
        return unknown if usual is None else usual.dearest(unknown)

    def dearest(self, model: str, at_us: int, terms: Terms) -> Price | None:
        """The highest price that can apply until the lease of a call ends: the usual one, or that of what it asks for.

        None where one of them is not known, and nothing is said of what is unknown.
        """
        at = utc_moment(at_us)
        usual = self._book.dearest(model, at, self._lease)
        if usual is None:
            return self._unknown
        other = self._book.dearest(model, at, self._lease, terms) or self._unknown
        return other if other is None or other is usual else usual.dearest(other)

    def _known(self, span: Span) -> PriceSpan:
        return PriceSpan(since_epoch_us(span.start), since_epoch_us(span.end), span.price or self._unknown)
