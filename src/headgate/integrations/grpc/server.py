"""Interceptors of gRPC servers that limit calls, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any, NamedTuple, Unpack, cast

import grpc
from grpc import StatusCode, aio

from headgate.errors import ConfigError
from headgate.http.server.enforcer import Enforcer, PlaceOf
from headgate.http.server.exchange import Exchange, Judgement
from headgate.http.server.options import Options, Response, RouteOptions
from headgate.http.server.routes import LimitsOfRoute, RouteLimits
from headgate.integrations.grpc.calls import CallContext, GrpcRequest, outermost_of, refuse
from headgate.policy.gate import AnyPolicy, AsyncGate, Gate

Methods = Mapping[str, LimitsOfRoute | None]
"""Limits by "/package.Service/Method", or by "/package.Service/*" for each method of a service; None: not limited."""

Handler = Any
"""A `grpc.RpcMethodHandler`."""

_PLACES = "__headgate_judged__"
"""The attribute of a handler's function with the places where its calls are judged."""

_NOT_FOUND = "__headgate_not_found__"
"""The attribute that marks a function which answers for a method that does not exist."""

_METHOD = re.compile(r"/[^/]+/[^/]+")


class GrpcOptions(Options, total=False):
    """Options of an interceptor: `Options` and `scope`."""

    scope: str | Callable[..., str]
    """The calls that are counted together under `limits` [those of all methods that `methods` does not name]."""


class RateLimitInterceptor(grpc.ServerInterceptor):
    """Limits the calls of a threaded server, of all four kinds; a refused call never reaches its handler.

    Pass a `policy` (a file's path, its values, a Policy or a Gate), or `limits` for each client, or `methods`: the
    limits of each method, which counts by itself; `limits` are then for the others. A call is a POST of
    "/package.Service/Method", which is its `endpoint` too if there is such a method; metadata are its headers.
    A call may wait in its thread. Raises ConfigError or PolicyError.
    """

    def __init__(
        self,
        policy: AnyPolicy | Gate | None = None,
        *,
        methods: Methods | None = None,
        **options: Unpack[GrpcOptions],
    ) -> None:
        self._enforcers = _Enforcers(policy, methods, options, asynchronous=False)

    def intercept_service(self, continuation: Callable[[Any], Handler], handler_call_details: Any) -> Handler:
        original, method = continuation(handler_call_details), handler_call_details.method
        limited = self._enforcers.limited(self, method, original, _unknown)
        if limited is None:
            return original
        handler, endpoint, places, enforcer, counted_as = limited
        behavior = _behavior(handler)

        def passing(message: Any, context: Any) -> Any:
            exchange, request = _exchange_of(context), GrpcRequest(method, endpoint, message, context)

            def judge() -> Judgement:
                if not request.peer():
                    context.abort(StatusCode.CANCELLED, "the client is gone")  # raises; no client sees it
                return exchange.judge(enforcer, request, None, counted_as)

            return _passing(context, exchange, judge, exchange.end)

        return _replaced(handler, _sync(behavior, passing, streams=handler.response_streaming), places)

    def close(self) -> None:
        """Close the stores that were opened here; a server does not do it."""
        self._enforcers.close()


class AsyncRateLimitInterceptor(aio.ServerInterceptor):
    """`RateLimitInterceptor` for `grpc.aio`: handlers are coroutine functions, async generators or plain functions."""

    def __init__(
        self,
        policy: AnyPolicy | AsyncGate | None = None,
        *,
        methods: Methods | None = None,
        **options: Unpack[GrpcOptions],
    ) -> None:
        self._enforcers = _Enforcers(policy, methods, options, asynchronous=True)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        original, method = await continuation(handler_call_details), handler_call_details.method
        limited = self._enforcers.limited(self, method, original, _unknown_async)
        if limited is None:
            return original
        handler, endpoint, places, enforcer, counted_as = limited
        behavior, streams = _behavior(handler), handler.response_streaming

        def judging(message: Any, context: Any) -> tuple[Exchange, Coroutine[Any, Any, Judgement], GrpcRequest]:
            exchange, request = _exchange_of(context), GrpcRequest(method, endpoint, message, context)
            return exchange, exchange.judge_async(enforcer, request, None, counted_as), request

        def passing(message: Any, context: Any) -> Any:
            return _passing_async(context, *judging(message, context))

        if iscoroutinefunction(behavior):
            return _replaced(handler, _coroutine(behavior, passing), places)
        if isasyncgenfunction(behavior):
            return _replaced(handler, _async_generator(behavior, passing), places)
        # A handler that runs in a thread: its limits are judged on the event loop.
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def passing_in_thread(message: Any, context: Any) -> Any:
            exchange, judgement, request = judging(message, context)

            def judge() -> Judgement:
                judging = _while_running(task, judgement, request)
                return asyncio.run_coroutine_threadsafe(judging, loop).result()

            return _passing(context, exchange, judge, partial(end, exchange), partial(_is_leaving, task))

        def end(exchange: Exchange, response: Response) -> None:
            # It is not awaited: a generator that is dropped may end anywhere, on the event loop too.
            if exchange.settles and not loop.is_closed():
                asyncio.run_coroutine_threadsafe(exchange.end_async(response), loop)

        if streams:
            behavior = _ending_with_task(behavior, task, loop, end)
        return _replaced(handler, _sync(behavior, passing_in_thread, streams=streams), places)

    async def aclose(self) -> None:
        """Close the stores that were opened here; a server does not do it."""
        await self._enforcers.aclose()


class _Limited(NamedTuple):
    """A handler that is limited, and the enforcer of its calls."""

    handler: Handler
    endpoint: str
    places: list[PlaceOf]
    enforcer: Enforcer
    counted_as: str


class _Enforcers:
    """The enforcer of each method."""

    def __init__(self, policy: Any, methods: Methods | None, options: GrpcOptions, *, asynchronous: bool) -> None:
        defaults = dict(options)
        self._owner: Enforcer | RouteLimits
        self._rest: Enforcer | None
        self._methods: dict[str, Enforcer | None] = {}
        if policy is not None:
            if methods is not None:
                raise ConfigError("methods go with limits; a policy defines them itself, by path")
            owner_name = f"{'Async' if asynchronous else ''}RateLimitInterceptor"
            self._owner = self._rest = Enforcer(policy, options, asynchronous=asynchronous, owner_name=owner_name)
            return
        limits = cast(Any, defaults.pop("limits", None))
        if limits is None and not methods:
            raise ConfigError("give a policy (a file, its values, or a gate), or limits, or those of methods")
        scoped = cast(RouteOptions, {"scope": defaults.pop("scope")} if "scope" in defaults else {})
        routes = self._owner = RouteLimits(cast(RouteOptions, defaults), asynchronous=asynchronous)
        self._rest = None if limits is None else routes.enforcer(limits, scoped)
        for method, own in (methods or {}).items():
            if not _METHOD.fullmatch(method):
                raise ConfigError(f'a method is "/package.Service/Method" or "/package.Service/*", not {method!r:.60}')
            self._methods[method] = None if own is None else routes.enforcer(own, {})

    def limited(
        self, place_id: object, method: str, handler: Handler | None, unknown: Callable[..., Any]
    ) -> _Limited | None:
        """Return the handler of a method with its enforcer; `unknown` handles a method that does not exist.

        None where the method is not limited.
        """
        enforcer, place = self.of(method)
        if enforcer is None:
            return None
        endpoint = _endpoint(method, handler)
        handler = handler or grpc.stream_stream_rpc_method_handler(unknown)
        places = _places_from(place_id, enforcer, place or endpoint, _behavior(handler))
        return _Limited(handler, endpoint, places, enforcer, places[-1].counted_as)

    def of(self, method: str) -> tuple[Enforcer | None, str]:
        """Return (the enforcer of a method, None where it is not limited; the name it counts under, "" for its own)."""
        for name in (method, f"{method.rpartition('/')[0]}/*") if self._methods else ():
            if name in self._methods:
                return self._methods[name], ""
        return self._rest, "*"

    def close(self) -> None:
        self._owner.close()

    async def aclose(self) -> None:
        await self._owner.aclose()


def _exchange_of(context: Any) -> Exchange:
    """Return the exchange of a call; all its interceptors share one."""
    outermost = outermost_of(context)
    return Exchange() if outermost is None else outermost.exchange


def _is_leaving(task: asyncio.Task[Any] | None) -> bool:
    """Whether the task of a call has ended, or is about to, since its client is gone."""
    return task is None or task.done() or task.cancelling() > 0


async def _while_running(
    task: asyncio.Task[Any] | None, judging: Coroutine[Any, Any, Judgement], request: GrpcRequest
) -> Judgement:
    """Judge the call of a task; cancelled where the task ends first, since its client is gone.

    From then on the context of grpc.aio has no call any more: to ask it for the peer, or to abort, ends the process.
    """
    waiter = asyncio.current_task()
    if task is None or waiter is None or task.done() or not request.peer():
        judging.close()
        raise asyncio.CancelledError

    def leave(_: object) -> None:
        waiter.cancel()

    task.add_done_callback(leave)
    try:
        return await judging
    finally:
        task.remove_done_callback(leave)


@contextmanager
def _passing(
    context: Any,
    exchange: Exchange,
    judge: Callable[[], Judgement],
    end: Callable[[Response], None],
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[CallContext | None]:
    """Judge a call around its handler, which runs in this thread; yields None for a call that is refused."""
    judgement = judge()
    wrapped = CallContext(context, exchange)
    if judgement.refusal is not None:
        wrapped.outermost.set_fields([])
        if not is_over():
            refuse(context, judgement.refusal, judgement.decision)  # raises, but not in a thread of an older grpc.aio
        yield None
        return
    wrapped.outermost.set_fields(exchange.fields_of_passed())
    if wrapped.outermost is not wrapped:  # the outermost ends the exchange
        yield wrapped
        return
    failure: BaseException | None = None
    try:
        yield wrapped
    except BaseException as error:
        failure = error
        raise
    finally:
        end(wrapped.response(failure))


@asynccontextmanager
async def _passing_async(
    context: Any, exchange: Exchange, judging: Coroutine[Any, Any, Judgement], request: GrpcRequest
) -> AsyncIterator[CallContext]:
    """Judge a call around its handler, which runs on the event loop."""
    if not request.peer():
        judging.close()
        raise asyncio.CancelledError  # the task is about to be cancelled
    judgement = await judging
    wrapped = CallContext(context, exchange)
    if judgement.refusal is not None:
        wrapped.outermost.set_fields([])
        await refuse(context, judgement.refusal, judgement.decision)
    wrapped.outermost.set_fields(exchange.fields_of_passed())
    if wrapped.outermost is not wrapped:  # the outermost ends the exchange
        yield wrapped
        return
    failure: BaseException | None = None
    try:
        yield wrapped
    except BaseException as error:
        failure = error
        raise
    finally:
        await exchange.end_async(wrapped.response(failure))


def _sync(behavior: Callable[..., Any], passing: Callable[..., Any], *, streams: bool) -> Callable[..., Any]:
    """Return a handler that runs in a thread and is judged first."""

    def judged(message: Any, context: Any) -> Any:
        with passing(message, context) as wrapped:
            return None if wrapped is None else wrapped.count(behavior(message, wrapped))

    def judged_stream(message: Any, context: Any) -> Iterator[Any]:
        with passing(message, context) as wrapped:
            yield from () if wrapped is None else map(wrapped.count, behavior(message, wrapped))

    def judged_callback(message: Any, context: Any, send: Callable[[Any], None]) -> None:
        is_whole = False
        with ExitStack() as stack:
            wrapped = stack.enter_context(passing(message, context))
            if wrapped is None:
                return

            def sending(answer: Any) -> None:
                nonlocal is_whole
                is_whole = answer is None
                send(answer if is_whole else wrapped.count(answer))

            behavior(message, wrapped, sending)
            flight = stack.pop_all()

        def end() -> None:
            abandoned = None if is_whole else GeneratorExit()
            flight.__exit__(None if abandoned is None else GeneratorExit, abandoned, None)

        if context.add_callback(end) is False:  # gRPC calls it when all is sent, or the client is gone
            end()

    callback = getattr(behavior, "experimental_non_blocking", False)
    wrapper: Any = judged_callback if callback else judged_stream if streams else judged
    for name in ("experimental_non_blocking", "experimental_thread_pool"):
        if hasattr(behavior, name):
            setattr(wrapper, name, getattr(behavior, name))
    return cast(Callable[..., Any], wrapper)


def _ending_with_task(
    behavior: Callable[..., Any],
    task: asyncio.Task[Any] | None,
    loop: asyncio.AbstractEventLoop,
    end: Callable[[Exchange, Response], None],
) -> Callable[..., Any]:
    """Return a handler that answers with a stream in a thread of grpc.aio, and whose call ends with its task.

    Once the client is gone, gRPC resumes the stream no more: it would never end where it waits for gRPC.
    """

    def answering(message: Any, wrapped: CallContext) -> Iterator[Any]:
        waits, is_outermost = False, wrapped.outermost is wrapped

        def end_if_waiting(_: object) -> None:
            if waits:
                end(wrapped.exchange, wrapped.response(GeneratorExit()))

        if task is not None and is_outermost:
            loop.call_soon_threadsafe(task.add_done_callback, end_if_waiting)
        answers = behavior(message, wrapped)
        for answer in answers:
            waits = True  # before the task is asked, which may end at any moment
            if is_outermost and _is_leaving(task):
                if hasattr(answers, "close"):
                    answers.close()
                end(wrapped.exchange, wrapped.response(GeneratorExit()))
                return
            yield answer
            waits = False

    return answering


def _coroutine(behavior: Callable[..., Any], passing: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that is judged first; a handler that streams writes by itself, and returns None."""

    async def judged(message: Any, context: Any) -> Any:
        async with passing(message, context) as wrapped:
            return wrapped.count(await behavior(message, wrapped))

    return judged


def _async_generator(behavior: Callable[..., Any], passing: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that is an async generator and is judged first."""

    async def judged(message: Any, context: Any) -> AsyncIterator[Any]:
        # Once the client is gone, the call is in flight until its handler has cleaned up.
        async with passing(message, context) as wrapped, aclosing(behavior(message, wrapped)) as answers:
            async for answer in answers:
                yield wrapped.count(answer)

    return judged


def _behavior(handler: Handler) -> Callable[..., Any]:
    """Return the function of a handler: one of its four attributes."""
    function = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    return cast(Callable[..., Any], function)


def _endpoint(method: str, handler: Handler | None) -> str:
    """Return the method, "" where it does not exist, though an inner interceptor may have a handler for it."""
    return "" if handler is None or getattr(_behavior(handler), _NOT_FOUND, False) else method


def _places_from(place_id: object, enforcer: Enforcer, counted_as: str, behavior: Callable[..., Any]) -> list[PlaceOf]:
    """Return the places where a call is judged, from the handler outwards: this limit is the last."""
    inner: list[PlaceOf] = getattr(behavior, _PLACES, [])
    return [*inner, PlaceOf(enforcer, place_id, enforcer.counter_name(counted_as, place_id, inner))]


def _replaced(handler: Handler, behavior: Callable[..., Any], places: list[PlaceOf]) -> Handler:
    """Return a handler of the same kind with another function."""
    setattr(behavior, _PLACES, places)
    if _behavior(handler) in (_unknown, _unknown_async) or getattr(_behavior(handler), _NOT_FOUND, False):
        setattr(behavior, _NOT_FOUND, True)
    requests = "stream" if handler.request_streaming else "unary"
    responses = "stream" if handler.response_streaming else "unary"
    make = getattr(grpc, f"{requests}_{responses}_rpc_method_handler")
    return make(behavior, handler.request_deserializer, handler.response_serializer)


def _unknown(messages: Any, context: Any) -> Any:
    """Answer for a method that does not exist, with gRPC's own message."""
    context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")


async def _unknown_async(messages: Any, context: Any) -> None:
    await context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")
