"""What changes the price of a call beside its tokens: what its body asks for, and what its answer says that it got.

`models.toml` says which fields these are, and which of their values are usual. Any other value has a price of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.errors import ArgumentError
from headgate.llm.model_table import usual_values
from headgate.llm.usage import field_of

Terms = tuple[tuple[str, str], ...]
"""Fields with their values, in the order of the names, without those that are usual; () for the usual price."""

BATCH = ("processing", "batch")
"""What is sent together with much else, to be answered within a day; no field of a body says so, its caller does."""

_TIER = "service_tier"


def unusual(told: Mapping[str, str]) -> Terms:
    """The terms among what was told."""
    usual = usual_values()
    return tuple(sorted((name, value) for name, value in told.items() if value and value not in usual.get(name, ())))


def terms_asked(body: Mapping[str, Any], processing: object = None) -> Terms:
    """What a body asks for, and its caller says besides: that the call is one of a "batch". Raises ArgumentError."""
    fields = usual_values()
    if processing is None and body.keys().isdisjoint(fields):
        return ()
    told = {name: value for name in fields if isinstance(value := body.get(name), str) and name != BATCH[0]}
    if processing is not None:
        if processing != BATCH[1]:
            raise ArgumentError(f'processing of a call is "batch", or left out, not {str(processing)[:40]!r}')
        told[BATCH[0]] = BATCH[1]
    return unusual(told)


def terms_told(told: Any) -> dict[str, str]:
    """What an answer, or its usage, says that a call got: usual values, too."""
    found = {}
    for name in usual_values():
        value = field_of(told, name)
        if isinstance(value, str) and value and name != BATCH[0]:
            found[name] = value
    if found.get(_TIER) == BATCH[1]:  # as Anthropic's answers call it
        del found[_TIER]
        found[BATCH[0]] = BATCH[1]
    return found


def terms_got(asked: Terms, told: Mapping[str, str]) -> Terms | None:
    """What a call got; None where it asked for something and its answer does not say whether it got that."""
    if not asked:
        return unusual(told) if told else ()
    if any(name not in told for name, value in asked if (name, value) != BATCH):
        return None
    return unusual({**told, BATCH[0]: BATCH[1]} if BATCH in asked else told)


def terms_text(terms: Terms) -> str:
    """`speed=fast`, several with a space between."""
    return " ".join(f"{name}={value[:40]}" for name, value in terms)
