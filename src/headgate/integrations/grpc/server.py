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

_JUDGED = "__headgate_judged__"
"""What judges the calls of a handler, and what it counts them under."""

_NOT_FOUND = "__headgate_not_found__"
"""Marks what answers for a method that is not there."""

_METHOD = re.compile(r"/[^/]+/[^/]+")


class GrpcOptions(Options, total=False):
    """Options of an interceptor: `Options`, and this."""

    scope: str | Callable[..., str]
    """What is counted together, under `limits` [all methods that `methods` does not name]."""


class RateLimitInterceptor(grpc.ServerInterceptor):
    """Limits the calls of a threaded server, of all four kinds; a refused one never reaches its handler.

    Give a `policy` (a file's path, its values, a Policy or a Gate), or `limits` for each client, or `methods`: the
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
        found, method = continuation(handler_call_details), handler_call_details.method
        limited = self._enforcers.limited(self, method, found, _unknown)
        if limited is None:
            return found
        handler, endpoint, judged, enforcer, counted_as = limited
        behavior = _behavior(handler)

        def passing(message: Any, context: Any) -> Any:
            exchange, request = _exchange_of(context), GrpcRequest(method, endpoint, message, context)

            def judge() -> Judgement:
                if not request.peer():
                    context.abort(StatusCode.CANCELLED, "the client is gone")  # raises; no client is told
                return exchange.judge(enforcer, request, None, counted_as)

            return _passing(context, exchange, judge, exchange.end)

        return _replaced(handler, _sync(behavior, passing, streams=handler.response_streaming), judged)

    def close(self) -> None:
        """Close the stores that were opened here; a server does not do it."""
        self._enforcers.close()


class AsyncRateLimitInterceptor(aio.ServerInterceptor):
    """`RateLimitInterceptor` for `grpc.aio`: handlers may be coroutine functions, async generators, or of threads."""

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
        found, method = await continuation(handler_call_details), handler_call_details.method
        limited = self._enforcers.limited(self, method, found, _unknown_async)
        if limited is None:
            return found
        handler, endpoint, judged, enforcer, counted_as = limited
        behavior, streams = _behavior(handler), handler.response_streaming

        def judging(message: Any, context: Any) -> tuple[Exchange, Coroutine[Any, Any, Judgement], GrpcRequest]:
            exchange, request = _exchange_of(context), GrpcRequest(method, endpoint, message, context)
            return exchange, exchange.judge_async(enforcer, request, None, counted_as), request

        def passing(message: Any, context: Any) -> Any:
            return _passing_async(context, *judging(message, context))

        if iscoroutinefunction(behavior):
            return _replaced(handler, _coroutine(behavior, passing), judged)
        if isasyncgenfunction(behavior):
            return _replaced(handler, _async_generator(behavior, passing), judged)
        # A handler of a thread: its limits are asked on the event loop.
        loop, called = asyncio.get_running_loop(), asyncio.current_task()

        def passing_in_thread(message: Any, context: Any) -> Any:
            exchange, judgement, request = judging(message, context)

            def judge() -> Judgement:
                judging = _while_called(called, judgement, request)
                return asyncio.run_coroutine_threadsafe(judging, loop).result()

            def end(response: Response) -> None:
                # Nothing waits for it: a generator that is dropped may end anywhere, on the event loop too.
                if exchange.settles and not loop.is_closed():
                    asyncio.run_coroutine_threadsafe(exchange.end_async(response), loop)

            return _passing(context, exchange, judge, end, partial(_is_leaving, called))

        return _replaced(handler, _sync(behavior, passing_in_thread, streams=streams), judged)

    async def aclose(self) -> None:
        """Close the stores that were opened here; a server does not do it."""
        await self._enforcers.aclose()


class _Limited(NamedTuple):
    """A handler that is limited, and what judges its calls."""

    handler: Handler
    endpoint: str
    judged: list[PlaceOf]
    enforcer: Enforcer
    counted_as: str


class _Enforcers:
    """What judges each method."""

    def __init__(self, policy: Any, methods: Methods | None, options: GrpcOptions, *, asynchronous: bool) -> None:
        told = dict(options)
        self._owner: Enforcer | RouteLimits
        self._rest: Enforcer | None
        self._methods: dict[str, Enforcer | None] = {}
        if policy is not None:
            if methods is not None:
                raise ConfigError("methods go with limits; a policy says it itself, by path")
            asked_by = f"{'Async' if asynchronous else ''}RateLimitInterceptor"
            self._owner = self._rest = Enforcer(policy, options, asynchronous=asynchronous, asked_by=asked_by)
            return
        limits = cast(Any, told.pop("limits", None))
        if limits is None and not methods:
            raise ConfigError("give a policy (a file, its values, or a gate), or limits, or those of methods")
        scoped = cast(RouteOptions, {"scope": told.pop("scope")} if "scope" in told else {})
        routes = self._owner = RouteLimits(cast(RouteOptions, told), asynchronous=asynchronous)
        self._rest = None if limits is None else routes.enforcer(limits, scoped)
        for method, own in (methods or {}).items():
            if not _METHOD.fullmatch(method):
                raise ConfigError(f'a method is "/package.Service/Method" or "/package.Service/*", not {method!r:.60}')
            self._methods[method] = None if own is None else routes.enforcer(own, {})

    def limited(self, by: object, method: str, handler: Handler | None, unknown: Callable[..., Any]) -> _Limited | None:
        """The handler of a method, `unknown` where there is none, and what judges it; None where it is not limited."""
        enforcer, place = self.of(method)
        if enforcer is None:
            return None
        endpoint = _endpoint(method, handler)
        handler = handler or grpc.stream_stream_rpc_method_handler(unknown)
        judged = _judged_by(by, enforcer, place or endpoint, _behavior(handler))
        return _Limited(handler, endpoint, judged, enforcer, judged[-1].counted_as)

    def of(self, method: str) -> tuple[Enforcer | None, str]:
        """What judges a method, None where it is not limited; and what it counts under, "" for the method itself."""
        for name in (method, f"{method.rpartition('/')[0]}/*") if self._methods else ():
            if name in self._methods:
                return self._methods[name], ""
        return self._rest, "*"

    def close(self) -> None:
        self._owner.close()

    async def aclose(self) -> None:
        await self._owner.aclose()


def _exchange_of(context: Any) -> Exchange:
    """The exchange of a call, which is one for all interceptors that it comes to."""
    outermost = outermost_of(context)
    return Exchange() if outermost is None else outermost.exchange


def _is_leaving(called: asyncio.Task[Any] | None) -> bool:
    """Whether the task of a call is at its end, or about to be, since its client is gone."""
    return called is None or called.done() or called.cancelling() > 0


async def _while_called(
    called: asyncio.Task[Any] | None, judging: Coroutine[Any, Any, Judgement], request: GrpcRequest
) -> Judgement:
    """What is judged of the call of a task; cancelled where that ends first, since its client is gone.

    From then on grpc.aio's context has no call any more: to ask it for the peer, or to abort, ends the process.
    """
    own = asyncio.current_task()
    if called is None or own is None or called.done() or not request.peer():
        judging.close()
        raise asyncio.CancelledError

    def leave(_: object) -> None:
        own.cancel()

    called.add_done_callback(leave)
    try:
        return await judging
    finally:
        called.remove_done_callback(leave)


@contextmanager
def _passing(
    context: Any,
    exchange: Exchange,
    judge: Callable[[], Judgement],
    end: Callable[[Response], None],
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[CallContext | None]:
    """Around a handler that runs in this thread; None for a call that is refused."""
    judgement = judge()
    own = CallContext(context, exchange)
    if judgement.refusal is not None:
        own.outermost.tell([])
        if not is_over():
            refuse(context, judgement.refusal, judgement.decision)  # raises, but not in a thread of an older grpc.aio
        yield None
        return
    own.outermost.tell(exchange.fields_of_passed())
    if own.outermost is not own:  # which ends the exchange
        yield own
        return
    failure: BaseException | None = None
    try:
        yield own
    except BaseException as error:
        failure = error
        raise
    finally:
        end(own.response(failure))


@asynccontextmanager
async def _passing_async(
    context: Any, exchange: Exchange, judging: Coroutine[Any, Any, Judgement], request: GrpcRequest
) -> AsyncIterator[CallContext]:
    """Around a handler that runs on the event loop."""
    if not request.peer():
        judging.close()
        raise asyncio.CancelledError  # as it is about to be
    judgement = await judging
    own = CallContext(context, exchange)
    if judgement.refusal is not None:
        own.outermost.tell([])
        await refuse(context, judgement.refusal, judgement.decision)
    own.outermost.tell(exchange.fields_of_passed())
    if own.outermost is not own:  # which ends the exchange
        yield own
        return
    failure: BaseException | None = None
    try:
        yield own
    except BaseException as error:
        failure = error
        raise
    finally:
        await exchange.end_async(own.response(failure))


def _sync(behavior: Callable[..., Any], passing: Callable[..., Any], *, streams: bool) -> Callable[..., Any]:
    """A handler of a thread, judged first."""

    def judged(message: Any, context: Any) -> Any:
        with passing(message, context) as own:
            return None if own is None else own.saw(behavior(message, own))

    def judged_stream(message: Any, context: Any) -> Iterator[Any]:
        with passing(message, context) as own:
            yield from () if own is None else map(own.saw, behavior(message, own))

    def judged_callback(message: Any, context: Any, send: Callable[[Any], None]) -> None:
        is_whole = False
        with ExitStack() as stack:
            own = stack.enter_context(passing(message, context))
            if own is None:
                return

            def sending(answer: Any) -> None:
                nonlocal is_whole
                is_whole = answer is None
                send(answer if is_whole else own.saw(answer))

            behavior(message, own, sending)
            flight = stack.pop_all()

        def end() -> None:
            left = None if is_whole else GeneratorExit()
            flight.__exit__(None if left is None else GeneratorExit, left, None)

        if context.add_callback(end) is False:  # gRPC calls it when all is sent, or the client is gone
            end()

    callback = getattr(behavior, "experimental_non_blocking", False)
    whole: Any = judged_callback if callback else judged_stream if streams else judged
    for name in ("experimental_non_blocking", "experimental_thread_pool"):
        if hasattr(behavior, name):
            setattr(whole, name, getattr(behavior, name))
    return cast(Callable[..., Any], whole)


def _coroutine(behavior: Callable[..., Any], passing: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that is a coroutine function, judged first; one that streams writes by itself, and returns None."""

    async def judged(message: Any, context: Any) -> Any:
        async with passing(message, context) as own:
            return own.saw(await behavior(message, own))

    return judged


def _async_generator(behavior: Callable[..., Any], passing: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that is an async generator, judged first."""

    async def judged(message: Any, context: Any) -> AsyncIterator[Any]:
        # Where the client is gone, the handler is in flight until it has cleaned up.
        async with passing(message, context) as own, aclosing(behavior(message, own)) as answers:
            async for answer in answers:
                yield own.saw(answer)

    return judged


def _behavior(handler: Handler) -> Callable[..., Any]:
    """The function of a handler, of which it has one of four."""
    either = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    return cast(Callable[..., Any], either)


def _endpoint(method: str, handler: Handler | None) -> str:
    """The method, "" where there is none: nor behind another interceptor, which answers for it."""
    return "" if handler is None or getattr(_behavior(handler), _NOT_FOUND, False) else method


def _judged_by(by: object, enforcer: Enforcer, counted_as: str, behavior: Callable[..., Any]) -> list[PlaceOf]:
    """What judges a call from the handler outwards, this limit the last, and what each counts it under."""
    inner: list[PlaceOf] = getattr(behavior, _JUDGED, [])
    return [*inner, PlaceOf(enforcer, by, enforcer.apart(counted_as, by, inner))]


def _replaced(handler: Handler, behavior: Callable[..., Any], judged: list[PlaceOf]) -> Handler:
    """A handler of the same kind with another function."""
    setattr(behavior, _JUDGED, judged)
    if _behavior(handler) in (_unknown, _unknown_async) or getattr(_behavior(handler), _NOT_FOUND, False):
        setattr(behavior, _NOT_FOUND, True)
    asks = "stream" if handler.request_streaming else "unary"
    answers = "stream" if handler.response_streaming else "unary"
    make = getattr(grpc, f"{asks}_{answers}_rpc_method_handler")
    return make(behavior, handler.request_deserializer, handler.response_serializer)


def _unknown(messages: Any, context: Any) -> Any:
    """Answers for a method that is not there, in gRPC's own words."""
    context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")


async def _unknown_async(messages: Any, context: Any) -> None:
    await context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")
