"""gRPC servers that keep to limits: an interceptor for threads, and one for asyncio.

    server = grpc.server(ThreadPoolExecutor(16), interceptors=[RateLimitInterceptor(limits="100/minute")])
    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(policy="policy.yaml")])

A call is judged where its handler would begin: there its peer is known, and a call that waits, waits in its own
thread or task. Source: the gRPC core concepts; gRFC A6 for server pushback.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any, Unpack, cast

from headgate.errors import ConfigError, MissingExtraError
from headgate.http.server.enforcer import Answer, Front, Judged, judge, judge_async
from headgate.http.server.options import AnyPolicy, Options, Response, RouteOptions
from headgate.http.server.routes import LimitsOfRoute, RouteLimits
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.request import Request

try:
    import grpc
    from grpc import StatusCode, aio

    from headgate.integrations.grpc_calls import CallContext, GrpcRequest, refuse
except ModuleNotFoundError as error:
    raise MissingExtraError("the interceptors for gRPC", extra="grpc") from error

Methods = Mapping[str, LimitsOfRoute | None]
"""Limits by "/package.Service/Method", or by "/package.Service/*" for each method of a service; None: not limited."""

Settle = Callable[[Request, Answer, Response], None]
Handler = Any
"""A `grpc.RpcMethodHandler`."""

_JUDGED = "__headgate_judged__"
"""What judges the calls of a handler, and what it counts them under."""

_NOT_FOUND = "__headgate_not_found__"
"""Marks what answers for a method that is not there."""

_METHOD = re.compile(r"/[^/]+/[^/]+")


class GrpcOptions(Options, total=False):
    """What an interceptor may be told: `Options`, and this."""

    scope: str | Callable[..., str]
    """What is counted together, under `limits` [all methods that `methods` does not name]."""


class RateLimitInterceptor(grpc.ServerInterceptor):
    """Judges the calls of a server with threads, of all four kinds; one that is refused never reaches its handler.

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
        self._fronts = _Fronts(policy, methods, options, asynchronous=False)

    def intercept_service(self, continuation: Callable[[Any], Handler], handler_call_details: Any) -> Handler:
        handler, method = continuation(handler_call_details), handler_call_details.method
        front, place = self._fronts.of(method)
        if front is None:
            return handler
        endpoint = _endpoint(method, handler)
        handler = handler or grpc.stream_stream_rpc_method_handler(_unknown)
        behavior = _behavior(handler)

        settle = front.settle if front.settles else None
        judged = _judged_by(self, front, place or endpoint, behavior)
        counted_as = judged[-1].counted_as

        def passing(message: Any, context: Any) -> Any:
            request = GrpcRequest(method, endpoint, message, context)
            request.counted_as = counted_as
            return _passing(request, partial(judge, front), settle)

        return _replaced(handler, _sync(behavior, passing, streams=handler.response_streaming), judged)

    def close(self) -> None:
        """Close the stores that were opened here; a server does not do it."""
        self._fronts.close()


class AsyncRateLimitInterceptor(aio.ServerInterceptor):
    """`RateLimitInterceptor` for `grpc.aio`: handlers may be coroutine functions, async generators, or of threads."""

    def __init__(
        self,
        policy: AnyPolicy | AsyncGate | None = None,
        *,
        methods: Methods | None = None,
        **options: Unpack[GrpcOptions],
    ) -> None:
        self._fronts = _Fronts(policy, methods, options, asynchronous=True)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        front, place = self._fronts.of(method)
        if front is None:
            return handler
        endpoint = _endpoint(method, handler)
        handler = handler or grpc.stream_stream_rpc_method_handler(_unknown_async)
        behavior, streams = _behavior(handler), handler.response_streaming
        judged = _judged_by(self, front, place or endpoint, behavior)
        counted_as = judged[-1].counted_as

        def request_of(message: Any, context: Any) -> GrpcRequest:
            request = GrpcRequest(method, endpoint, message, context)
            request.counted_as = counted_as
            return request

        def passing(message: Any, context: Any) -> Any:
            return _passing_async(request_of(message, context), front)

        if iscoroutinefunction(behavior):
            return _replaced(handler, _coroutine(behavior, passing), judged)
        if isasyncgenfunction(behavior):
            return _replaced(handler, _async_generator(behavior, passing), judged)
        # A handler of a thread: its limits are asked on the event loop.
        loop = asyncio.get_running_loop()

        def ask(request: Request) -> Answer:
            return asyncio.run_coroutine_threadsafe(judge_async(front, request), loop).result()

        def settle(request: Request, answer: Answer, response: Response) -> None:
            # Nobody waits for it: a generator that is dropped may end anywhere, on the event loop too.
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(front.settle_async(request, answer, response), loop)

        def passing_in_thread(message: Any, context: Any) -> Any:
            return _passing(request_of(message, context), ask, settle if front.settles else None)

        return _replaced(handler, _sync(behavior, passing_in_thread, streams=streams), judged)

    async def aclose(self) -> None:
        """Close the stores that were opened here; a server does not do it."""
        await self._fronts.aclose()


class _Fronts:
    """What judges each method."""

    def __init__(self, policy: Any, methods: Methods | None, options: GrpcOptions, *, asynchronous: bool) -> None:
        told = dict(options)
        self._owner: Front | RouteLimits
        self._rest: Front | None
        self._methods: dict[str, Front | None] = {}
        if policy is not None:
            if methods is not None:
                raise ConfigError("methods go with limits; a policy says it itself, by path")
            self._owner = self._rest = Front(policy, options, asynchronous=asynchronous)
            return
        limits = cast(Any, told.pop("limits", None))
        if limits is None and not methods:
            raise ConfigError("give a policy (a file, its values, or a gate), or limits, or those of methods")
        scoped = cast(RouteOptions, {"scope": told.pop("scope")} if "scope" in told else {})
        routes = self._owner = RouteLimits(cast(RouteOptions, told), asynchronous=asynchronous)
        self._rest = None if limits is None else routes.front(limits, scoped)
        for method, own in (methods or {}).items():
            if not _METHOD.fullmatch(method):
                raise ConfigError(f'a method is "/package.Service/Method" or "/package.Service/*", not {method!r:.60}')
            self._methods[method] = None if own is None else routes.front(own, {})

    def of(self, method: str) -> tuple[Front | None, str]:
        """What judges a method, None where it is not limited; and what it counts under, "" for the method itself."""
        for name in (method, f"{method.rpartition('/')[0]}/*") if self._methods else ():
            if name in self._methods:
                return self._methods[name], ""
        return self._rest, "*"

    def close(self) -> None:
        self._owner.close()

    async def aclose(self) -> None:
        await self._owner.aclose()


@contextmanager
def _passing(
    request: GrpcRequest, ask: Callable[[Request], Answer], settle: Settle | None
) -> Iterator[CallContext | None]:
    """Around a handler that runs in this thread; None for a call that is refused."""
    answer = ask(request)
    if answer.refusal is not None:
        refuse(request.context, answer)  # raises, but not in a thread of an older grpc.aio
        yield None
        return
    context = CallContext(request.context, answer.fields)
    failure: BaseException | None = None
    try:
        yield context
    except BaseException as error:
        failure = error
        raise
    finally:
        if settle is not None:
            settle(request, answer, context.response(failure))


@asynccontextmanager
async def _passing_async(request: GrpcRequest, front: Front) -> AsyncIterator[CallContext]:
    """Around a handler that runs on the event loop."""
    answer = await judge_async(front, request)
    if answer.refusal is not None:
        await refuse(request.context, answer)
    context = CallContext(request.context, answer.fields)
    failure: BaseException | None = None
    try:
        yield context
    except BaseException as error:
        failure = error
        raise
    finally:
        if front.settles:  # also where the client is gone and the task is cancelled
            await asyncio.shield(front.settle_async(request, answer, context.response(failure)))


def _sync(behavior: Callable[..., Any], passing: Callable[..., Any], *, streams: bool) -> Callable[..., Any]:
    """A handler of a thread, judged first."""

    def judged(message: Any, context: Any) -> Any:
        with passing(message, context) as own:
            return None if own is None else own.saw(behavior(message, own))

    def judged_stream(message: Any, context: Any) -> Iterator[Any]:
        with passing(message, context) as own:
            yield from () if own is None else map(own.saw, behavior(message, own))

    def judged_callback(message: Any, context: Any, send: Callable[[Any], None]) -> Any:
        with passing(message, context) as own:
            return behavior(message, own, send)

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
        async with passing(message, context) as own:
            async for answer in behavior(message, own):
                yield own.saw(answer)

    return judged


def _behavior(handler: Handler) -> Callable[..., Any]:
    """The function of a handler, of which it has one of four."""
    either = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    return cast(Callable[..., Any], either)


def _endpoint(method: str, handler: Handler | None) -> str:
    """The method, "" where there is none: nor behind another interceptor, which answers for it."""
    return "" if handler is None or getattr(_behavior(handler), _NOT_FOUND, False) else method


def _judged_by(by: object, front: Front, counted_as: str, behavior: Callable[..., Any]) -> list[Judged]:
    """What judges a call from the handler outwards, this limit the last, and what each counts it under."""
    inner: list[Judged] = getattr(behavior, _JUDGED, [])
    return [*inner, Judged(front, by, front.apart(counted_as, by, inner))]


def _replaced(handler: Handler, behavior: Callable[..., Any], judged: list[Judged]) -> Handler:
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
