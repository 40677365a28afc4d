"""The exchange of frameworks that hand their responses over as objects with `headers`: Flask, Django and aiohttp.

No framework is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.http.server.caching import NO_STORE, says_nothing
from headgate.http.server.exchange import Exchange

_TOLD = "_headgate_told"
"""What a response was told: a view may answer with the same one again."""


class ResponseExchange(Exchange):
    """An exchange that is told on a response."""

    by_fallback = False
    """Whether a fallback answers: no cache stores that, unless it says something itself."""

    no_store = NO_STORE
    """What says that to caches."""

    def tell(self, response: Any) -> None:
        """Add what remains to a response; a field that the application wrote itself stays as it is."""
        headers, told = response.headers, told_on(response)
        _take_back(headers, told)
        told.clear()
        fields = self.fields()
        if self.by_fallback and says_nothing([*headers.keys(), *(name for name, _ in fields)]):
            fields = [*fields, self.no_store]
        for name, value in fields:
            if name not in headers:
                told.append((name, value))  # before it is written: another thread may copy the response meanwhile
                headers[name] = value


def told_on(response: Any) -> list[tuple[str, str]]:
    """The fields that a response was told."""
    told: list[tuple[str, str]] = vars(response).setdefault(_TOLD, [])
    return told


def first_told(response: Any, told: list[tuple[str, str]]) -> bool:
    """Whether a response was told nothing before: then these are what it was told, in whichever thread comes first."""
    return vars(response).setdefault(_TOLD, told) is told


def untold(response: Any, own: Callable[[Any], dict[str, Any]], *, always: bool = False) -> Any:
    """A response to tell on: one like it where it was told before, for it may still be on its way to another client.

    `own` gives the attributes that the other one does not share with it. It is another one `always` if that is asked.
    Of several threads that ask for the same response at once, one is given that.
    """
    if not always and first_told(response, []):
        return response
    made = object.__new__(type(response))
    made.__dict__ = {**vars(response), **own(response)}
    _take_back(made.headers, vars(made).pop(_TOLD, ()))
    return made


def _take_back(headers: Any, told: Sequence[tuple[str, str]]) -> None:
    """Delete what was told, unless it was changed since."""
    for name, value in told:
        if headers.get(name) == value:
            del headers[name]
