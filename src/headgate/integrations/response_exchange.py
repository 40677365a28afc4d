"""The exchange of frameworks whose responses are objects with `headers`: Flask, Django and aiohttp.

No framework is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.http.server.caching import NO_STORE, has_no_cache_field
from headgate.http.server.exchange import Exchange

_ADDED = "_headgate_added"
"""The attribute with the fields that were added to a response: a view may return the same response again."""


class ResponseExchange(Exchange):
    """An exchange whose result is written on a response object."""

    by_fallback = False
    """Whether a fallback answers: no cache may store that response, unless its headers say otherwise."""

    no_store = NO_STORE
    """The header field that forbids caches to store a response."""

    def add_fields(self, response: Any) -> None:
        """Add the rate limit fields to a response; a field that the application wrote itself stays as it is."""
        headers, added = response.headers, added_to(response)
        _remove(headers, added)
        added.clear()
        fields = self.fields()
        if self.by_fallback and has_no_cache_field([*headers.keys(), *(name for name, _ in fields)]):
            fields = [*fields, self.no_store]
        for name, value in fields:
            if name not in headers:
                added.append((name, value))  # before it is written: another thread may copy the response meanwhile
                headers[name] = value


def added_to(response: Any) -> list[tuple[str, str]]:
    """Return the fields that were added to a response."""
    added: list[tuple[str, str]] = vars(response).setdefault(_ADDED, [])
    return added


def claim(response: Any, added: list[tuple[str, str]]) -> bool:
    """Record `added` as the fields of a response; return False where fields were recorded for it before.

    Of several threads that claim one response at once, one succeeds.
    """
    return vars(response).setdefault(_ADDED, added) is added


def unclaimed(response: Any, own: Callable[[Any], dict[str, Any]], *, always: bool = False) -> Any:
    """Return a response that fields can be added to: the given one, or a copy where that was claimed before.

    A claimed response may still be on its way to another client. `own` returns the attributes that the copy does not
    share with it. With `always` a copy is made in any case. Of several threads that pass the same response at once,
    one gets the response itself.
    """
    if not always and claim(response, []):
        return response
    copied = object.__new__(type(response))
    copied.__dict__ = {**vars(response), **own(response)}
    _remove(copied.headers, vars(copied).pop(_ADDED, ()))
    return copied


def _remove(headers: Any, added: Sequence[tuple[str, str]]) -> None:
    """Delete the fields that were added, unless their value has changed since."""
    for name, value in added:
        if headers.get(name) == value:
            del headers[name]
