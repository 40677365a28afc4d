"""The exchange of a Django request: stored on the request, reported and ended with its response, sync and async.

A request may be judged in a thread and answered on an event loop, or the other way round.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from typing import Any

import django.core.exceptions as failures  # type: ignore[import-untyped]
from asgiref.sync import async_to_sync, sync_to_async
from django.http import Http404  # type: ignore[import-untyped]
from django.http.response import ResponseHeaders  # type: ignore[import-untyped]

from headgate.errors import StoreError
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.exchange import Judgement, Step
from headgate.http.server.options import Refusal, Response
from headgate.http.server.web_gates import NOWHERE
from headgate.integrations.django.request import DjangoRequest, environ_of
from headgate.integrations.django.routing import route_of
from headgate.integrations.django.sent import Sent, counted
from headgate.integrations.response_exchange import ResponseExchange, added_to, claim, unclaimed
from headgate.waiting.departure import Departure


class DjangoExchange(ResponseExchange):
    """The exchange of one request, stored in its attribute `_headgate`."""

    no_store = ("Cache-Control", "no-store, private")
    """Caches of earlier releases of Django ignore `no-store`, but not `private`."""

    # The fields of a request that passes natively are written without a judgement; `resumed` makes one for the rest.
    _passed: tuple[Enforcer, tuple[Any, list[tuple[str, str]], Any], int] | None = None
    """The native decision of the site's limits: (their enforcer, (decision, fields, key), time of the request in us).

    None where a judgement has it.
    """

    departure: Departure | None = None
    """Signals to the threads of a request on ASGI that its client is gone."""

    def judge_site(self, enforcer: Enforcer, request: Any) -> Refusal | None:
        """Return the refusal by the site's limits, None where the request passes; they are the first limits judged."""
        outcome: Any = None
        charge: tuple[Any, int] | None = None
        gate = enforcer.web_gate
        environ = gate and environ_of(request)
        if environ is not None:
            requested_us = enforcer.clock.now_us() if enforcer.keeps_charges else 0
            try:
                decided = gate.decide_view(environ, route_of(request) if gate.distinguishes_endpoints else NOWHERE)
            except StoreError as error:
                decided, outcome = None, error
            if decided is not None:
                outcome, fields, key = decided
                if fields is not None:
                    self._passed = (enforcer, decided, requested_us)
                    return None
                charge = (key, requested_us) if enforcer.keeps_charges else None
        judgement = self.judge(enforcer, DjangoRequest(request), decided=outcome)
        judgement.charge = charge
        return judgement.refusal

    def resumed(self) -> DjangoExchange:
        """Return this exchange with a judgement for the native decision, for other limits and `add_fields`."""
        # Should several threads call this for one request, `pop` returns the decision to one of them.
        passed = None if self._passed is None else vars(self).pop("_passed", None)
        if passed is not None:
            enforcer, (decision, fields, key), requested_us = passed
            judgement = Judgement()
            judgement.enforcer, judgement.decision, judgement.fields = enforcer, decision, fields
            judgement.charge = (key, requested_us) if enforcer.keeps_charges else None
            judgement.has_passed = True
            self._judgements = (judgement, *self._judgements)
        return self

    def do(self, step: Step) -> None:
        """Do a step in this thread; one that was judged on an event loop, on the loop that waits for this thread."""
        if step.judgement.enforcer.asynchronous:
            async_to_sync(super().do_async)(step)
        else:
            super().do(step)

    async def do_async(self, step: Step) -> None:
        """Do a step on the event loop; one that was judged in a thread, in a thread."""
        if step.judgement.enforcer.asynchronous:
            await super().do_async(step)
        else:
            await sync_to_async(super().do)(step)

    def add_fields(self, response: Any) -> None:
        """Add the fields for this client: a cache that stores the response does not store them."""
        super().add_fields(response)
        keep_from_caches(response, added_to(response))

    def finish(self, request: Any, response: Any) -> Any:
        """Add the fields to the response, and end the exchange with it; return the response to send."""
        passed = self._passed
        if passed is not None or not self._judgements:
            if _added_at_once(response, [] if passed is None else passed[1][1]):
                return response
            self.resumed()
        if not hasattr(response, "headers"):
            self.end(Response(500, {}, 0))  # Django raises for an object that is no response
            return response
        response = unclaimed(response, _own)
        self.add_fields(response)
        if self.settles and not self._ends_later(request, response):
            self.end(Sent(request, response).whole())
        return response

    async def finish_async(self, request: Any, response: Any) -> Any:
        """`finish` on an event loop."""
        if not hasattr(response, "headers"):
            await self.end_async(Response(500, {}, 0))
            return response
        response = unclaimed(response, _own)
        self.add_fields(response)
        if self.settles and not self._ends_later(request, response):
            await self.end_async(Sent(request, response).whole())
        return response

    def fail(self, error: BaseException) -> None:
        """End without a response: of the one that Django makes of an error only the status is known here."""
        self.end(Response(_status_of(error), {}, 0))

    async def fail_async(self, error: BaseException) -> None:
        """`fail` on an event loop."""
        await self.end_async(Response(_status_of(error), {}, 0))

    def _ends_later(self, request: Any, response: Any) -> bool:
        """Return whether the exchange ends after this, and have it end then.

        A stream ends it when it is closed, a template when it is rendered, a request in flight when it is sent.
        """
        if response.streaming:
            parts = counted(response, self, Sent(request, response))
            response.streaming_content = parts
            self._end_with(request, parts.finish)
            return True
        if self.holds and hasattr(response, "_resource_closers"):
            # The server closes a response once it is sent, or cannot be sent.
            sent = Sent(request, response)
            response._resource_closers = _Closers(response._resource_closers)
            response._resource_closers.append(lambda: self.end(sent.whole()))
            self._end_with(request, lambda: self.end(sent.whole()))
            return True
        if not getattr(response, "is_rendered", True):
            response.add_post_render_callback(lambda rendered: self.end(Sent(request, rendered).whole()))
            return True
        return False

    def _end_with(self, request: Any, end: Callable[[], None]) -> None:
        """Have `end` called when Django closes a request that is held, whichever response is sent.

        Outer middlewares may replace the response, as to If-None-Match, and then nothing closes the first one.
        """
        in_a_thread = any(not judgement.enforcer.asynchronous for judgement in self._judgements)
        if not self.holds or (in_a_thread and hasattr(request, "scope")):
            # A response made in a thread is dropped where the client is gone, and so must this exchange be.
            vars(request).pop("_headgate", None)
            return
        close = request.close

        def close_and_end() -> None:
            vars(request).pop("close", None)  # else the request refers to itself after it has ended
            try:
                close()
            finally:
                end()

        request.close = close_and_end


_STORED_AS = {"RateLimit-Policy": "ratelimit-policy", "RateLimit": "ratelimit"}
"""The keys in Django's headers of the fields that the native core writes; their text is plain ASCII: no check."""


def _added_at_once(response: Any, fields: list[tuple[str, str]]) -> bool:
    """Add the fields of the native core as `unclaimed` and `add_fields` do, if no more is needed; else do nothing.

    That is the case for a response that is not claimed and has no such fields of its own. Return whether it was.
    """
    try:
        headers = response.headers
    except AttributeError:
        return False
    if type(headers) is not ResponseHeaders:
        return False
    store = headers._store
    if "ratelimit" in store or "ratelimit-policy" in store or not claim(response, fields):
        return False
    if fields:
        headers._headgate_added = fields  # pyright: ignore[reportAttributeAccessIssue]  # for _reduce
        for field in fields:
            store[_STORED_AS[field[0]]] = field
    return True


def keep_from_caches(response: Any, added: Sequence[tuple[str, str]]) -> None:
    """Have caches store the response without the fields that were added for its client."""
    if added and type(response.headers) is ResponseHeaders:
        response.headers._headgate_added = added  # pyright: ignore[reportAttributeAccessIssue]  # for _reduce


def _reduce(headers: ResponseHeaders) -> Any:
    """Reduce headers to pickle them, as Django's caches do: without the fields that were added for one client."""
    added = getattr(headers, "_headgate_added", None)
    if added is None:
        return headers.__reduce_ex__(4)
    return ResponseHeaders, ({name: value for name, value in headers.items() if (name, value) not in added},)


# A class of our own would have to be made for every response, though few are stored by a cache.
copyreg.pickle(ResponseHeaders, _reduce)


class _Closers(list[Any]):
    """The functions that a server calls when a response is sent; a cache that pickles them stores none."""

    def __reduce__(self) -> tuple[type[list[Any]], tuple[()]]:
        return list, ()


def _own(response: Any) -> dict[str, Any]:
    """Return what a response does not share with its copy: its headers, and the objects closed with it."""
    return {"headers": own_headers(response), "_resource_closers": []}


def own_headers(response: Any) -> ResponseHeaders:
    """Return a copy of a response's headers."""
    headers = object.__new__(ResponseHeaders)
    headers._store = dict(response.headers._store)  # one operation: another thread may be adding to them
    return headers


def opened(request: Any) -> tuple[DjangoExchange, bool]:
    """Return the exchange of a request, and whether it begins here: then the caller ends it."""
    exchange = begun(request)
    if exchange is not None:
        return exchange, False
    exchange = request._headgate = DjangoExchange()
    return exchange, True


def begun(request: Any) -> DjangoExchange | None:
    """Return the exchange of a request, None where none has begun."""
    exchange: DjangoExchange | None = getattr(request, "_headgate", None)
    return None if exchange is None else exchange.resumed()


def _status_of(error: BaseException) -> int:
    """Return the status that Django answers with when a view raises this error."""
    if isinstance(error, Http404):
        return 404
    if isinstance(error, failures.PermissionDenied):
        return 403
    return 400 if isinstance(error, (failures.BadRequest, failures.SuspiciousOperation)) else 500
