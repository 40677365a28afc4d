"""The terms of a call: fields that change its price besides its tokens, as its body requests and its answer reports.

`models.toml` lists these fields and their usual values. Any other value has a price of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.errors import ArgumentError
from headgate.llm.model_table import usual_values
from headgate.llm.usage import field_of

Terms = tuple[tuple[str, str], ...]
"""Fields with their values, ordered by name, without usual values; () for the usual price."""

BATCH = ("processing", "batch")
"""The term of a call that is sent in a batch, to be answered within a day. The caller states it, no field of a body."""

_TIER = "service_tier"


def unusual(fields: Mapping[str, str]) -> Terms:
    """The terms among fields: those with unusual values."""
    usual = usual_values()
    return tuple(sorted((name, value) for name, value in fields.items() if value and value not in usual.get(name, ())))


def requested_terms(body: Mapping[str, Any], processing: object = None) -> Terms:
    """The terms that a body requests, and `processing`, by which the caller states a "batch". Raises ArgumentError."""
    names = usual_values()
    if processing is None and body.keys().isdisjoint(names):
        return ()
    requested = {name: value for name in names if isinstance(value := body.get(name), str) and name != BATCH[0]}
    if processing is not None:
        if processing != BATCH[1]:
            raise ArgumentError(f'processing of a call is "batch", or left out, not {str(processing)[:40]!r}')
        requested[BATCH[0]] = BATCH[1]
    return unusual(requested)


def reported_terms(fields: Any) -> dict[str, str]:
    """The terms that an answer, or its usage, reports for a call, including usual values."""
    reported = {}
    for name in usual_values():
        value = field_of(fields, name)
        if isinstance(value, str) and value and name != BATCH[0]:
            reported[name] = value
    if reported.get(_TIER) == BATCH[1]:  # where Anthropic's answers report it
        del reported[_TIER]
        reported[BATCH[0]] = BATCH[1]
    return reported


def applied_terms(requested: Terms, reported: Mapping[str, str]) -> Terms | None:
    """The terms that applied to a call; None if the answer does not report on all requested terms."""
    if not requested:
        return unusual(reported) if reported else ()
    if any(name not in reported for name, value in requested if (name, value) != BATCH):
        return None
    return unusual({**reported, BATCH[0]: BATCH[1]} if BATCH in requested else reported)


def terms_text(terms: Terms) -> str:
    """The terms as text such as `speed=fast`, several separated by a space."""
    return " ".join(f"{name}={value[:40]}" for name, value in terms)
