"""The price at which a call is settled, from the terms and the model that its answer reports, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.llm.call_size import CallSize
from headgate.llm.fallback_models import answering
from headgate.llm.known_calls import KnownCall
from headgate.llm.price import Price
from headgate.llm.terms import applied_terms, terms_text
from headgate.llm.usage import Usage


class PriceReport(NamedTuple):
    """What an answer reports that decides its price.

    `terms` are the reported terms, `model` is the model that answered (of a stream, a tuple of all names that it
    reports), and `additional` is the usage of iterations outside the message, each with its model.
    """

    terms: Mapping[str, str]
    model: object = None
    additional: tuple[tuple[str, Usage], ...] = ()


EMPTY_PRICE_REPORT = PriceReport({})


def true_price(
    known: KnownCall,
    size: CallSize,
    report: PriceReport,
    at_us: int,
    held: Price | None,
) -> Price | None:
    """The price, at the time of admission, of the terms that the answer reports and of the model that answered.

    If the call requested terms, or named several models, and the answer does not report which of them applied, the
    result is the dearest price that can have applied, which is `held`. If the price of the reported terms is not known,
    it is the price that was held, and its version says so.
    """
    if not (report.terms or size.terms or size.others):  # nearly all
        return known.price(at_us, ()) or held
    terms = applied_terms(size.terms, report.terms)
    model = answering(report.model, (known.model, *size.others)) if size.others else known.model
    if terms is None or model is None:
        return held
    price = known.price(at_us, terms, model)
    if price is None and held is not None and terms:
        return held._replace(version=f"{held.version}; not known of {terms_text(terms)}")
    return price or held


def true_cost(
    known: KnownCall, size: CallSize, report: PriceReport, at_us: int, price: Price | None, usage: Usage
) -> int:
    """The cost of a call at its `true_price`, 0 where that is not known.

    An additional iteration is a prompt of its own. It has the price of its own model, if that is known.
    """
    if price is None:
        return 0
    if not report.additional:
        return price.cost(usage)
    terms, cost, rest = applied_terms(size.terms, report.terms) or (), 0, usage
    for model, used in report.additional:
        other = model and (known.price(at_us, terms, model) or known.price(at_us, (), model))
        cost += (other or price)._replace(request=0).cost(used)
        rest = Usage(*(max(0, total - part) for total, part in zip(rest, used, strict=True)))
    return cost + price.cost(rest)
