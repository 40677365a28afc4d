"""Exceptions that a framework answers: their responses say what those that are sent say, a fallback's above all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from headgate.http.server.caching import NO_STORE, has_no_cache_field
from headgate.http.server.options import Refusal, without_content

Raised = TypeVar("Raised", bound=Exception)


def error_with_fields(raised: Raised, refusal: Refusal) -> Raised:
    """An exception like one with `headers` that a fallback raised, whose headers also say what the refusal says.

    No cache stores its response, unless it says something itself.
    """
    fields = without_content(refusal)
    if has_no_cache_field([*(getattr(raised, "headers", None) or {}), *(name for name, _ in fields)]):
        fields = [*fields, NO_STORE]
    return with_fields(raised, fields)


def with_fields(raised: Raised, fields: Sequence[tuple[str, str]]) -> Raised:
    """An exception like one with `headers`, which also has these, but for those that it has itself.

    The given one is unchanged: it may be raised again.
    """
    kind: Any = type(raised)
    own: dict[str, str] = dict(getattr(raised, "headers", None) or {})
    names = {name.lower() for name in own}
    made: Raised = kind.__new__(kind, *raised.args)  # not by its `__init__`, which may ask for anything
    added = {name: value for name, value in fields if name.lower() not in names}
    vars(made).update(vars(raised), headers=own | added)
    return made
