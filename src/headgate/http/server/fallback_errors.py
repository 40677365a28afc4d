"""Exceptions that a framework turns into responses, mainly those of a fallback: they get the rate limit fields, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from headgate.http.server.caching import NO_STORE, has_no_cache_field
from headgate.http.server.options import Refusal, without_content

Raised = TypeVar("Raised", bound=Exception)


def error_with_fields(raised: Raised, refusal: Refusal) -> Raised:
    """Return a copy of an exception with `headers` that a fallback raised, with the refusal's fields in its headers.

    No cache may store its response, unless its headers say otherwise.
    """
    fields = without_content(refusal)
    if has_no_cache_field([*(getattr(raised, "headers", None) or {}), *(name for name, _ in fields)]):
        fields = [*fields, NO_STORE]
    return with_fields(raised, fields)


def with_fields(raised: Raised, fields: Sequence[tuple[str, str]]) -> Raised:
    """Return a copy of an exception with `headers` that also has these fields, except those that it has itself.

    The passed exception is unchanged: it may be raised again.
    """
    kind: Any = type(raised)
    own: dict[str, str] = dict(getattr(raised, "headers", None) or {})
    names = {name.lower() for name in own}
    copied: Raised = kind.__new__(kind, *raised.args)  # not by its `__init__`, which may ask for anything
    added = {name: value for name, value in fields if name.lower() not in names}
    vars(copied).update(vars(raised), headers=own | added)
    return copied
