"""The exchange of a request of Django: kept on it, told and ended with its response, in both colours.

A request may be judged in a thread and answered on an event loop, and the other way about.
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
from headgate.integrations.response_exchange import ResponseExchange, first_told, told_on, untold
from headgate.waiting.departure import Departure


class DjangoExchange(ResponseExchange):
    """The exchange of one request, whose `_headgate` it is."""

    no_store = ("Cache-Control", "no-store, private")
    """Caches of earlier releases of Django ignore `no-store`, but not `private`."""

    # A request that passes natively needs no judgement to be told: one is made where there is more to do.
    _passed: tuple[Enforcer, tuple[Any, list[tuple[str, str]], Any], int] | None = None
    """What the limits of the site decided natively: (their enforcer, (decision, fields, key), when they were asked).

    None where a judgement says it.
    """

    departure: Departure | None = None
    """What tells the threads of a request on ASGI that its client is gone."""

    def judge_site(self, enforcer: Enforcer, request: Any) -> Refusal | None:
        """Why the limits of the site refuse a request, None where it passes; no other limit is asked before them."""
        came: Any = None
        charge: tuple[Any, int] | None = None
        gate = enforcer.web_gate
        environ = gate and environ_of(request)
        if environ is not None:
            asked_us = enforcer.clock.now_us() if enforcer.keeps_charges else 0
            try:
                decided = gate.ask_view(environ, route_of(request) if gate.tells_endpoints_apart else NOWHERE)
            except StoreError as error:
                decided, came = None, error
            if decided is not None:
                came, fields, key = decided
                if fields is not None:
                    self._passed = (enforcer, decided, asked_us)
                    return None
                charge = (key, asked_us) if enforcer.keeps_charges else None
        judgement = self.judge(enforcer, DjangoRequest(request), decided=came)
        judgement.charge = charge
        return judgement.refusal

    def resumed(self) -> DjangoExchange:
        """This exchange, for what needs the judgements: other limits, and responses that are told in another way."""
        # `pop` gives it to one thread, should several ask with one request.
        passed = None if self._passed is None else vars(self).pop("_passed", None)
        if passed is not None:
            enforcer, (decision, fields, key), asked_us = passed
            judgement = Judgement()
            judgement.enforcer, judgement.decision, judgement.told = enforcer, decision, fields
            judgement.charge = (key, asked_us) if enforcer.keeps_charges else None
            judgement.has_passed = True
            self._judged = (judgement, *self._judged)
        return self

    def do(self, step: Step) -> None:
        """Do it in this thread; what was judged on an event loop, on the loop that waits for this thread."""
        if step.judgement.enforcer.asynchronous:
            async_to_sync(super().do_async)(step)
        else:
            super().do(step)

    async def do_async(self, step: Step) -> None:
        """Do it on the event loop; what was judged in a thread, in one."""
        if step.judgement.enforcer.asynchronous:
            await super().do_async(step)
        else:
            await sync_to_async(super().do)(step)

    def tell(self, response: Any) -> None:
        """Add what remains, for the client that asked: a cache which keeps the response does not keep that."""
        super().tell(response)
        keep_from_caches(response, told_on(response))

    def finish(self, request: Any, response: Any) -> Any:
        """Tell on the response what remains, and end with it; gives what is to be sent."""
        passed = self._passed
        if passed is not None or not self._judged:
            if _could_tell(response, [] if passed is None else passed[1][1]):
                return response
            self.resumed()
        if not hasattr(response, "headers"):
            self.end(Response(500, {}, 0))  # Django says that this is no response
            return response
        response = untold(response, _own)
        self.tell(response)
        if self.settles and not self._ends_later(request, response):
            self.end(Sent(request, response).whole())
        return response

    async def finish_async(self, request: Any, response: Any) -> Any:
        """`finish` on an event loop."""
        if not hasattr(response, "headers"):
            await self.end_async(Response(500, {}, 0))
            return response
        response = untold(response, _own)
        self.tell(response)
        if self.settles and not self._ends_later(request, response):
            await self.end_async(Sent(request, response).whole())
        return response

    def fail(self, error: BaseException) -> None:
        """End without a response: nothing here sees what Django makes of an error but its status."""
        self.end(Response(_status_of(error), {}, 0))

    async def fail_async(self, error: BaseException) -> None:
        """`fail` on an event loop."""
        await self.end_async(Response(_status_of(error), {}, 0))

    def _ends_later(self, request: Any, response: Any) -> bool:
        """Whether a response ends later: a stream when it is closed, a template when it is rendered."""
        if response.streaming:
            parts = counted(response, self, Sent(request, response))
            response.streaming_content = parts
            self._end_with(request, parts.finish)
            return True
        if self.holds and hasattr(response, "_resource_closers"):
            # The server closes a response once it is sent, or cannot be.
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
        """Have `end` called when Django closes a request that is held, which it does with whatever response is sent.

        Middlewares further out may answer with another response, as to If-None-Match, and nothing closes the first.
        """
        in_a_thread = any(not judgement.enforcer.asynchronous for judgement in self._judged)
        if not self.holds or (in_a_thread and hasattr(request, "scope")):
            # What a thread answers is dropped where the client is gone, and so must this exchange be.
            vars(request).pop("_headgate", None)
            return
        close = request.close

        def close_and_end() -> None:
            vars(request).pop("close", None)  # nothing is to keep a request that has ended
            try:
                close()
            finally:
                end()

        request.close = close_and_end


_STORED_AS = {"RateLimit-Policy": "ratelimit-policy", "RateLimit": "ratelimit"}
"""Where Django's headers have the fields that the native core writes, whose text needs no check: it is plain ASCII."""


def _could_tell(response: Any, fields: list[tuple[str, str]]) -> bool:
    """Do what `untold` and `tell` do with fields of the native core, where that is but to add them.

    That is a response that was told nothing before and has no such fields of its own; any other is left as it is.
    """
    try:
        headers = response.headers
    except AttributeError:
        return False
    if type(headers) is not ResponseHeaders:
        return False
    store = headers._store
    if "ratelimit" in store or "ratelimit-policy" in store or not first_told(response, fields):
        return False
    if fields:
        headers._headgate_told = fields  # pyright: ignore[reportAttributeAccessIssue]  # for _reduced
        for field in fields:
            store[_STORED_AS[field[0]]] = field
    return True


def keep_from_caches(response: Any, told: Sequence[tuple[str, str]]) -> None:
    """Have these fields of a response be for its client alone."""
    if told and type(response.headers) is ResponseHeaders:
        response.headers._headgate_told = told  # pyright: ignore[reportAttributeAccessIssue]  # for _reduced


def _reduced(headers: ResponseHeaders) -> Any:
    """What a pickle of headers keeps, as caches of Django do: the fields for all clients."""
    told = getattr(headers, "_headgate_told", None)
    if told is None:
        return headers.__reduce_ex__(4)
    return ResponseHeaders, ({name: value for name, value in headers.items() if (name, value) not in told},)


# Headers of a class of our own would be made for every response, for the sake of the few that are kept.
copyreg.pickle(ResponseHeaders, _reduced)


class _Closers(list[Any]):
    """What a server calls when a response is sent: nothing for a cache to keep."""

    def __reduce__(self) -> tuple[type[list[Any]], tuple[()]]:
        return list, ()


def _own(response: Any) -> dict[str, Any]:
    """What a response does not share with one like it: its headers, and what its server closes with it."""
    return {"headers": own_headers(response), "_resource_closers": []}


def own_headers(response: Any) -> ResponseHeaders:
    """Headers as those of a response, which another one is to have."""
    headers = object.__new__(ResponseHeaders)
    headers._store = dict(response.headers._store)  # at once: another thread may be telling on them
    return headers


def opened(request: Any) -> tuple[DjangoExchange, bool]:
    """The exchange of a request, and whether it begins here: else what began it ends it."""
    exchange = begun(request)
    if exchange is not None:
        return exchange, False
    exchange = request._headgate = DjangoExchange()
    return exchange, True


def begun(request: Any) -> DjangoExchange | None:
    """The exchange of a request that something began; None where nothing did."""
    exchange: DjangoExchange | None = getattr(request, "_headgate", None)
    return None if exchange is None else exchange.resumed()


def _status_of(error: BaseException) -> int:
    """What Django answers when a view raises this."""
    if isinstance(error, Http404):
        return 404
    if isinstance(error, failures.PermissionDenied):
        return 403
    return 400 if isinstance(error, (failures.BadRequest, failures.SuspiciousOperation)) else 500
