"""Exceptions of a fallback that its framework answers: their responses say what the response of a fallback says."""

from __future__ import annotations

from typing import Any, TypeVar

from headgate.http.server.caching import NO_STORE, says_nothing
from headgate.http.server.options import Refusal, without_content

Raised = TypeVar("Raised", bound=Exception)


def telling_error(raised: Raised, refusal: Refusal) -> Raised:
    """An exception like one with `headers` that a fallback raised, whose headers also say what the refusal says.

    No cache stores its response, unless it says something itself. The given one is unchanged: it may be raised again.
    """
    kind: Any = type(raised)
    own: dict[str, str] = dict(getattr(raised, "headers", None) or {})
    names = {name.lower() for name in own}
    fields = [field for field in without_content(refusal) if field[0].lower() not in names]
    if says_nothing([*own, *(name for name, _ in fields)]):
        fields.append(NO_STORE)
    made: Raised = kind.__new__(kind, *raised.args)  # not by its `__init__`, which may ask for anything
    vars(made).update(vars(raised), headers=own | dict(fields))
    return made
