"""The exchange of a request of Flask: kept by it, told and ended with its response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import flask

from headgate.http.server.counted_parts import CountedParts
from headgate.http.server.options import Response
from headgate.integrations.response_exchange import ResponseExchange, first_told, told_on, untold

_KEPT = "_headgate_exchange"
"""Where a request keeps its exchange until its response is made: until all functions of its kind have seen that.

Not its environ: an application may ask itself, or another one, with a copy of that.
"""


class FlaskExchange(ResponseExchange):
    """The exchange of the request of this thread."""

    _told: list[tuple[str, str]] | None = None
    """What the response was told that functions after the request are given."""

    def finish(self, response: flask.Response) -> flask.Response:
        """Tell. Flask calls it again where another function of its kind fails, and 500 is answered."""
        if not self.settles:
            _leave()
        # What ends when the server closes it would end with each request that has the same response.
        response = untold(response, _own, always=self.holds)
        self.tell(response)
        self._told = told_on(response)
        return response

    def end_by(self, response: flask.Response) -> None:
        """End by the response that is sent: at once where its body is known, else when the server is done with it."""
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

    def _end_whole(self, response: flask.Response, said: Response) -> None:
        """End with a body that is known: what is in flight once the server has sent it."""
        # A function after the request may have put one in its place that other requests have, too.
        is_own = first_told(response, []) or told_on(response) is self._told
        if self.holds and is_own and not response.direct_passthrough:
            response.call_on_close(lambda: self.end(said))
        else:
            self.end(said)


def _own(response: flask.Response) -> dict[str, Any]:
    """What a response does not share with one like it: its headers, and what its server closes with it."""
    return {"headers": type(response.headers)(response.headers), "_on_close": [*response._on_close]}


def current_exchange() -> FlaskExchange:
    """The exchange of the request of this thread, a new one if its first limit is asked now."""
    kept = _kept()
    exchange: FlaskExchange | None = kept.get(_KEPT)
    if exchange is None:
        exchange = kept[_KEPT] = FlaskExchange()
        flask.after_this_request(exchange.finish)
    return exchange


def leave_to_response(app: flask.Flask, response: flask.Response, **_: object) -> None:
    """Let the response of a request end it, now that nothing can put another one in its place."""
    exchange = _leave()
    if exchange is not None and exchange.settles:
        exchange.end_by(response)


def end_failed(app: flask.Flask, exc: BaseException | None = None, **_: object) -> None:
    """End what a request that failed was charged, where no response will."""
    exchange = _leave()
    if exchange is not None and exc is not None:
        exchange.end(Response(500, {}, 0))


def _leave() -> FlaskExchange | None:
    """The exchange of the request of this thread, which keeps it no longer: it refers to the request."""
    exchange: FlaskExchange | None = _kept().pop(_KEPT, None)
    return exchange


def _kept() -> dict[str, Any]:
    """What the request of this thread keeps."""
    proxy = cast(Any, flask.request)
    kept: dict[str, Any] = vars(proxy._get_current_object())
    return kept
