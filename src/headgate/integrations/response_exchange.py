"""The exchange of frameworks that hand their responses over as objects with `headers`: Flask, Django and aiohttp.

No framework is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.http.server.exchange import Exchange

_TOLD = "_headgate_told"
"""What a response was told: a view may answer with the same one again."""


class ResponseExchange(Exchange):
    """An exchange that is told on a response."""

    def tell(self, response: Any) -> None:
        """Add what remains to a response; a field that the application wrote itself stays as it is."""
        headers = response.headers
        for name, value in getattr(response, _TOLD, ()):
            if headers.get(name) == value:
                del headers[name]
        told = []
        for name, value in self.fields():
            if name not in headers:
                headers[name] = value
                told.append((name, value))
        setattr(response, _TOLD, told)


def untold(response: Any, own: Callable[[Any], dict[str, Any]], *, always: bool = False) -> Any:
    """A response to tell on: one like it where it was told before, for it may still be on its way to another client.

    `own` gives the attributes that the other one does not share with it. It is another one `always` if that is asked.
    """
    if not (always or hasattr(response, _TOLD)):
        return response
    made = object.__new__(type(response))
    made.__dict__ = {**vars(response), **own(response)}
    return made
