"""The exchange of a Flask request: stored on the request, reported and ended with its response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import flask

from headgate.http.server.counted_parts import CountedParts
from headgate.http.server.options import Response
from headgate.integrations.response_exchange import ResponseExchange, added_to, claim, unclaimed

_EXCHANGE = "_headgate_exchange"
"""The attribute of a request that holds its exchange until all functions after the request have seen the response.

It is not stored in the environ: an application may call itself, or another one, with a copy of that.
"""


class FlaskExchange(ResponseExchange):
    """The exchange of the request of this thread."""

    _added: list[tuple[str, str]] | None = None
    """The fields that were added to the response which the functions after the request get."""

    def finish(self, response: flask.Response) -> flask.Response:
        """Add the fields to the response.

        Flask calls this again where another function after the request fails, and the answer is 500.
        """
        if not self.settles:
            _remove()
        # An exchange that ends when the server closes the response would end with each request that shares it.
        response = unclaimed(response, _own, always=self.holds)
        self.add_fields(response)
        self._added = added_to(response)
        return response

    def end_by(self, response: flask.Response) -> None:
        """End by the response that is sent: at once where its body is known, else when the server closes it."""
        status, headers = response.status_code, {name.lower(): value for name, value in response.headers.items()}
        if flask.request.method == "HEAD" or status in (204, 304):
            self._end_whole(response, Response(status, headers, 0))
        elif response.is_sequence:
            self._end_whole(response, Response(status, headers, sum(map(len, response.iter_encoded()))))
        else:
            response.response = CountedParts(
                cast(Iterable[Any], response.response),
                lambda body_bytes: self.end(Response(status, headers, body_bytes)),
            )

    def _end_whole(self, response: flask.Response, seen: Response) -> None:
        """End with a body of known length; a request in flight ends once the server has sent it."""
        # A function after the request may have replaced the response by one that other requests share.
        is_own = claim(response, []) or added_to(response) is self._added
        if self.holds and is_own and not response.direct_passthrough:
            response.call_on_close(lambda: self.end(seen))
        else:
            self.end(seen)


def _own(response: flask.Response) -> dict[str, Any]:
    """Return what a response does not share with its copy: its headers, and the functions called when it is closed."""
    return {"headers": type(response.headers)(response.headers), "_on_close": [*response._on_close]}


def current_exchange() -> FlaskExchange:
    """Return the exchange of this thread's request, a new one where this is its first limit."""
    attributes = _attributes()
    exchange: FlaskExchange | None = attributes.get(_EXCHANGE)
    if exchange is None:
        exchange = attributes[_EXCHANGE] = FlaskExchange()
        flask.after_this_request(exchange.finish)
    return exchange


def leave_to_response(app: flask.Flask, response: flask.Response, **_: object) -> None:
    """Let the response of a request end its exchange, now that nothing can replace the response."""
    exchange = _remove()
    if exchange is not None and exchange.settles:
        exchange.end_by(response)


def end_failed(app: flask.Flask, exc: BaseException | None = None, **_: object) -> None:
    """End the exchange of a request that failed, where no response ends it."""
    exchange = _remove()
    if exchange is not None and exc is not None:
        exchange.end(Response(500, {}, 0))


def _remove() -> FlaskExchange | None:
    """Return the exchange of this thread's request, and remove it there: it refers to the request."""
    exchange: FlaskExchange | None = _attributes().pop(_EXCHANGE, None)
    return exchange


def _attributes() -> dict[str, Any]:
    """Return the attributes of this thread's request."""
    proxy = cast(Any, flask.request)
    attributes: dict[str, Any] = vars(proxy._get_current_object())
    return attributes
