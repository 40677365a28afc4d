"""Streams of threaded handlers in grpc.aio whose client leaves: gRPC does not end them, yet their calls end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

import grpc
import pytest

from headgate.http.server.options import Response
from headgate.integrations.grpc import AsyncRateLimitInterceptor


class DaemonThreads(Executor):
    """A thread for each call, which may wait for gRPC forever."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            with suppress(BaseException):
                future.set_result(fn(*args, **kwargs))

        threading.Thread(target=run, daemon=True).start()
        return future


class Watcher(grpc.aio.ServerInterceptor):
    """Calls a function once the task of a call has ended."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if handler_call_details.method == "/shop.Shop/Slow":
            task.add_done_callback(lambda _: self._call())
        return await continuation(handler_call_details)


class Streams:
    """Handlers that answer with streams."""

    def __init__(self) -> None:
        self.has_left, self.ended = threading.Event(), threading.Event()

    def endless(self, message: bytes, context: Any) -> Iterator[bytes]:
        while True:
            yield b"more" * 10_000

    def slow(self, message: bytes, context: Any) -> Iterator[bytes]:
        try:
            yield b"first"
            assert self.has_left.wait(10)
            yield b"second"
            raise AssertionError("resumed although the client has left")
        finally:
            self.ended.set()

    def handlers(self) -> dict[str, Any]:
        return {
            "Endless": grpc.unary_stream_rpc_method_handler(self.endless),
            "Slow": grpc.unary_stream_rpc_method_handler(self.slow),
            "Read": grpc.unary_unary_rpc_method_handler(lambda message, context: message),
        }


@pytest.mark.parametrize("interceptors", [1, 2])
@pytest.mark.parametrize("method", ["Endless", "Slow"])
def test_a_call_ends_when_its_client_leaves(method: str, interceptors: int) -> None:
    statuses: list[tuple[str, int]] = []
    streams = Streams()

    def counts(call: Any, response: Response) -> bool:
        statuses.append((call.path, response.status))
        return True

    async def main() -> None:
        limits = [AsyncRateLimitInterceptor(limits="1 concurrent", counts=counts) for _ in range(interceptors)]
        threads: Any = DaemonThreads()
        server = grpc.aio.server(threads, interceptors=[Watcher(streams.has_left.set), *limits])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Shop", streams.handlers()),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            read: Any = channel.unary_unary("/shop.Shop/Read")
            call: Any = channel.unary_stream(f"/shop.Shop/{method}")
            stream = call(b"")
            await stream.read()
            with pytest.raises(grpc.aio.AioRpcError):
                await read(b"")
            stream.cancel()
            while not statuses:
                with suppress(grpc.aio.AioRpcError):
                    await read(b"while the client leaves")
            assert await read(b"after") == b"after"
        await server.stop(0)

    asyncio.run(asyncio.wait_for(main(), 30))
    cancelled = grpc.StatusCode.CANCELLED.value[0]
    assert [status for path, status in statuses if path == f"/shop.Shop/{method}"] == [cancelled] * interceptors
    assert method == "Endless" or streams.ended.wait(10)
