"""The price by which a call is settled: that of what it got, as far as its answer tells."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.llm.call_size import CallSize
from headgate.llm.fallback_models import answering
from headgate.llm.known_calls import KnownCall
from headgate.llm.price import Price
from headgate.llm.terms import terms_got, terms_text


def true_price(
    known: KnownCall,
    size: CallSize,
    told: Mapping[str, str],
    by_model: object,
    at_us: int,
    held: Price | None,
) -> Price | None:
    """The price at the moment of admission, of what the call got by its answer, and of the model that answered.

    Where the call asked for something, or for one of several models, and its answer does not say whether it got that,
    or which: the dearest that can have applied, which is `held`. Where the price of what it got is not known, that
    which was held, and the price's version says so.
    """
    terms = terms_got(size.terms, told)
    model = answering(by_model, (known.model, *size.others)) if size.others else known.model
    if terms is None or model is None:
        return held
    price = known.price(at_us, terms, model)
    if price is None and held is not None and terms:
        return held._replace(version=f"{held.version}; not known of {terms_text(terms)}")
    return price or held
