"""The price by which a call is settled, that of what it got as far as its answer tells, and what it cost by that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.llm.call_size import CallSize
from headgate.llm.fallback_models import answering
from headgate.llm.known_calls import KnownCall
from headgate.llm.price import Price
from headgate.llm.terms import terms_got, terms_text
from headgate.llm.usage import Usage


class ToldOfPrice(NamedTuple):
    """What an answer tells of its price: what it got, the model that answered (of a stream, a tuple of all that it
    tells), and what was made beside a message, each with its model.
    """

    terms: Mapping[str, str]
    model: object = None
    beside: tuple[tuple[str, Usage], ...] = ()


NOTHING_TOLD = ToldOfPrice({})


def true_price(
    known: KnownCall,
    size: CallSize,
    told: ToldOfPrice,
    at_us: int,
    held: Price | None,
) -> Price | None:
    """The price at the moment of admission, of what the call got by its answer, and of the model that answered.

    Where the call asked for something, or for one of several models, and its answer does not say whether it got that,
    or which: the dearest that can have applied, which is `held`. Where the price of what it got is not known, that
    which was held, and the price's version says so.
    """
    if not (told.terms or size.terms or size.others):  # nearly all
        return known.price(at_us, ()) or held
    terms = terms_got(size.terms, told.terms)
    model = answering(told.model, (known.model, *size.others)) if size.others else known.model
    if terms is None or model is None:
        return held
    price = known.price(at_us, terms, model)
    if price is None and held is not None and terms:
        return held._replace(version=f"{held.version}; not known of {terms_text(terms)}")
    return price or held


def true_cost(
    known: KnownCall, size: CallSize, told: ToldOfPrice, at_us: int, price: Price | None, usage: Usage
) -> int:
    """What a call cost at its `true_price`, 0 where that is not known.

    What was made beside a message is a prompt of its own, at the price of its own model, if that is known.
    """
    if price is None:
        return 0
    if not told.beside:
        return price.cost(usage)
    terms, cost, own = terms_got(size.terms, told.terms) or (), 0, usage
    for model, used in told.beside:
        other = model and (known.price(at_us, terms, model) or known.price(at_us, (), model))
        cost += (other or price)._replace(request=0).cost(used)
        own = Usage(*(max(0, whole - part) for whole, part in zip(own, used, strict=True)))
    return cost + price.cost(own)
