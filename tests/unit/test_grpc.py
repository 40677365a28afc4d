"""The interceptors in real gRPC servers on the loopback interface, threaded and asyncio, with gRPC clients."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from broken_store import NO_REDIS, BrokenStore
from headgate import AsyncGate, ConfigError, Gate, MemoryStore, MissingExtraError
from headgate.decision import Decision
from headgate.http.keys import api_key, header
from headgate.http.server.options import Refusal, Response
from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from headgate.integrations.grpc.calls import address_of, metadata_of
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import parse_list
from until import until

COLOURS = ["threads", "asyncio", "asyncio, handlers of threads"]
KINDS = ["Read", "List", "Save", "Talk"]
POLICY = {
    "version": 1,
    "identities": {"user": {"header": "x-user"}},
    "rules": [
        {"name": "read", "match": {"method": "POST", "path": "/shop.Shop/Read"}, "by": ["user"], "limits": "2/minute"},
        {"name": "each", "match": {"path": "/shop.Shop/List"}, "by": ["endpoint", "ip"], "limits": "1/minute"},
    ],
}


class Handlers:
    """Handlers on raw bytes, of every kind, for threads."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        self.threads: set[int] = set()
        self.cancelled = threading.Event()

    def _begin(self, name: str) -> None:
        self.reached[name] += 1
        self.threads.add(threading.get_ident())

    def read(self, message: bytes, context: Any) -> bytes:
        self._begin("Read")
        return b"read " + message

    def list(self, message: bytes, context: Any) -> Iterator[bytes]:
        self._begin("List")
        yield from (b"one", b"two", b"three")

    def save(self, messages: Iterator[bytes], context: Any) -> bytes:
        self._begin("Save")
        return b"+".join(messages)

    def talk(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._begin("Talk")
        for message in messages:
            yield message.upper()

    def own(self, message: bytes, context: Any) -> bytes:
        context.send_initial_metadata((("x-first", "1"),))
        context.set_trailing_metadata((("x-last", "2"), ("ratelimit", '"mine";r=1'), ("x-bin", b"\x00")))
        return b"own"

    def fail(self, message: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("x-last", "2"),))
        context.abort(StatusCode.NOT_FOUND, "nothing of that name")
        raise AssertionError("abort raises")

    def status(self, message: bytes, context: Any) -> bytes:
        context.set_code(StatusCode.ALREADY_EXISTS)
        context.set_details("it is there")
        return b""

    def crash(self, message: bytes, context: Any) -> bytes:
        raise ValueError("a fault of the handler")

    def endless(self, message: bytes, context: Any) -> Iterator[bytes]:
        try:
            while True:
                yield b"more"
        finally:
            self.cancelled.set()

    def generic(self) -> Any:
        kinds: dict[str, Any] = {
            "Read": grpc.unary_unary_rpc_method_handler(self.read),
            "List": grpc.unary_stream_rpc_method_handler(self.list),
            "Save": grpc.stream_unary_rpc_method_handler(self.save),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk),
            "Own": grpc.unary_unary_rpc_method_handler(self.own),
            "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "Status": grpc.unary_unary_rpc_method_handler(self.status),
            "Crash": grpc.unary_unary_rpc_method_handler(self.crash),
            "Endless": grpc.unary_stream_rpc_method_handler(self.endless),
        }
        return grpc.method_handlers_generic_handler("shop.Shop", kinds)


class AsyncHandlers(Handlers):
    """The same handlers for asyncio: coroutine functions, async generators, and one that writes directly."""

    async def read(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        return super().read(message, context)

    async def list(self, message: bytes, context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]
        for part in super().list(message, context):
            yield part

    async def save(self, messages: AsyncIterator[bytes], context: Any) -> bytes:  # type: ignore[override]
        self._begin("Save")
        return b"+".join([message async for message in messages])

    async def talk(self, messages: AsyncIterator[bytes], context: Any) -> None:  # type: ignore[override]
        self._begin("Talk")
        async for message in messages:
            await context.write(message.upper())

    async def own(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        await context.send_initial_metadata((("x-first", "1"),))
        context.set_trailing_metadata((("x-last", "2"), ("ratelimit", '"mine";r=1'), ("x-bin", b"\x00")))
        return b"own"

    async def fail(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        await context.abort(StatusCode.NOT_FOUND, "nothing of that name", (("x-last", "2"),))
        raise AssertionError("abort raises")

    async def status(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        return super().status(message, context)

    async def crash(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        raise ValueError("a fault of the handler")

    async def endless(self, message: bytes, context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]
        try:
            while True:
                yield b"more"
                await asyncio.sleep(0)
        finally:
            self.cancelled.set()


class Server:
    """A server of one kind, threaded or asyncio, with an interceptor."""

    def __init__(self, colour: str, policy: Any = None, *, address: str = "127.0.0.1:0", **options: Any) -> None:
        self.handlers = AsyncHandlers() if colour == "asyncio" else Handlers()
        self.address = address
        self.interceptor: Any
        self.loop: asyncio.AbstractEventLoop | None = None
        if colour == "threads":
            self.interceptor = RateLimitInterceptor(policy, **options)
            self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self.handlers.generic()],
                                       interceptors=[self.interceptor])  # fmt: skip
            self._bind(self._server)
            self._server.start()
            return
        self.interceptor = AsyncRateLimitInterceptor(policy, **options)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(10)

    def _bind(self, server: Any) -> None:
        port = server.add_insecure_port(self.address)
        if not self.address.startswith("unix"):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"

    async def _serve(self) -> None:
        pool = ThreadPoolExecutor(8)
        server = grpc.aio.server(pool, interceptors=[self.interceptor])
        server.add_generic_rpc_handlers((self.handlers.generic(),))
        self._bind(server)
        await server.start()
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._stop.wait()
        await server.stop(None)
        await asyncio.to_thread(pool.shutdown)  # a thread that ends a stream still needs the loop
        await self.interceptor.aclose()

    def stop(self) -> None:
        if self.loop is None:
            self._server.stop(None).wait(10)
            self.interceptor.close()
        else:
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)


class CallResult:
    """The messages, status and metadata with which a call ended."""

    def __init__(self, call: Any, messages: list[bytes]) -> None:
        self.messages = messages
        self.code: StatusCode = call.code()
        self.details: str = call.details()
        self.first = dict(call.initial_metadata())
        self.last: dict[str, Any] = {}
        for key, value in call.trailing_metadata():
            assert key not in self.last, f"{key} is sent twice"
            self.last[key] = value


class Client:
    """Calls a server's methods by name."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def call(self, method: str, *messages: bytes, **metadata: str) -> CallResult:
        path = method if "/" in method else f"/shop.Shop/{method}"
        kind = path.rpartition("/")[2]
        request_metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        stub_kinds = {
            "List": "unary_stream",
            "Endless": "unary_stream",
            "Save": "stream_unary",
            "Talk": "stream_stream",
        }
        stub = getattr(self.channel, stub_kinds.get(kind, "unary_unary"))(path)
        body: Any = iter(messages or (b"a", b"b")) if kind in ("Save", "Talk") else (messages or (b"a",))[0]
        try:
            if kind in ("List", "Talk"):
                stream = stub(body, metadata=request_metadata, timeout=20)
                received: list[bytes] = []
                with suppress(grpc.RpcError):
                    received.extend(stream)
                return CallResult(stream, received)
            response, call = stub.with_call(body, metadata=request_metadata, timeout=20)
            return CallResult(call, [response])
        except grpc.RpcError as error:
            return CallResult(error, [])

    def codes(self, *methods: str, **metadata: str) -> list[str]:
        return [self.call(method, **metadata).code.name for method in methods]


@contextmanager
def serving(
    colour: str, policy: Any = None, *, service_config: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[Server, Client]]:
    options.setdefault("clock", ManualClock()) if not isinstance(policy, Gate | AsyncGate) else None
    server = Server(colour, policy, **options)
    channel_options = [("grpc.service_config", json.dumps(service_config))] if service_config else []
    # A separate channel: gRPC shares connections of channels with the same options.
    with grpc.insecure_channel(
        server.address, options=[("grpc.use_local_subchannel_pool", 1), *channel_options]
    ) as channel:
        try:
            yield server, Client(channel)
        finally:
            server.stop()


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_every_kind_are_limited_and_report_the_remaining_units(colour: str, kind: str) -> None:
    with serving(colour, limits="2/minute") as (server, client):
        results = [client.call(kind) for _ in range(3)]
        assert [result.code.name for result in results] == ["OK", "OK", "RESOURCE_EXHAUSTED"]
        assert server.handlers.reached == {kind: 2}, "a call that is refused does not reach its handler"
        messages = {"Read": [b"read a"], "List": [b"one", b"two", b"three"], "Save": [b"a+b"], "Talk": [b"A", b"B"]}
        assert [result.messages for result in results] == [messages[kind], messages[kind], []]
        for remaining, result in zip((1, 0, 0), results, strict=True):
            [(name, parameters)] = parse_list(result.last["ratelimit"])
            assert (name, parameters["r"]) == ("default", remaining)
            assert result.last["ratelimit-policy"] == '"default";q=2;w=60'


def test_all_methods_count_together_for_each_client(colour: str) -> None:
    with serving(colour, limits="2/minute", key=header("X-User")) as (_, client):
        assert client.codes("Read", "List", "Save", x_user="a") == ["OK", "OK", "RESOURCE_EXHAUSTED"]
        assert client.codes("Talk", x_user="b") == ["OK"]


def test_a_refusal_has_the_exact_time_to_retry(colour: str) -> None:
    clock = ManualClock()
    with serving(colour, limits="2/minute bucket", cost=2, clock=clock) as (_, client):
        client.call("Read")
        clock.advance(500_000)
        refused = client.call("Read")
        assert refused.details == "over the limit of 2/minute bucket; retry in 60 s"
        assert refused.last["retry-after"] == "60"
        assert refused.last["grpc-retry-pushback-ms"] == "59500"
        assert not any(name.startswith("content") for name in refused.last)
        clock.advance(59_499_999)
        assert client.codes("Read") == ["RESOURCE_EXHAUSTED"]
        clock.advance(1)
        assert client.codes("Read") == ["OK"]


def test_the_refusal_of_a_call_that_can_never_pass_tells_the_client_not_to_retry(colour: str) -> None:
    with serving(colour, limits="2/minute", cost=3) as (_, client):
        refused = client.call("Read")
        assert refused.code is StatusCode.RESOURCE_EXHAUSTED
        assert "retry-after" not in refused.last
        assert refused.last["grpc-retry-pushback-ms"] == "-1"


def test_clients_with_automatic_retries_do_not_retry_a_call_that_can_never_pass(colour: str) -> None:
    policy = {"maxAttempts": 4, "initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1,
              "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}  # fmt: skip
    config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}]}
    decisions: list[bool] = []

    def record(request: Request, decision: Decision) -> None:
        decisions.append(decision.allowed)

    with serving(colour, limits="1/minute", cost=2, on_decision=record, service_config=config) as (_, client):
        assert client.codes("Read") == ["RESOURCE_EXHAUSTED"]
        assert decisions == [False]


def test_metadata_and_status_of_the_handler_stay(colour: str) -> None:
    with serving(colour, limits="9/minute") as (_, client):
        own = client.call("Own")
        assert (own.code.name, own.messages, own.first["x-first"]) == ("OK", [b"own"], "1")
        assert (own.last["x-last"], own.last["x-bin"]) == ("2", b"\x00")
        assert own.last["ratelimit"] == '"mine";r=1', "the handler's own word stands"
        assert own.last["ratelimit-policy"] == '"default";q=9;w=60'
        failed = client.call("Fail")
        assert (failed.code, failed.details) == (StatusCode.NOT_FOUND, "nothing of that name")
        assert failed.last["x-last"] == "2"
        status = client.call("Status")
        assert (status.code, status.details) == (StatusCode.ALREADY_EXISTS, "it is there")
        for result in (failed, status):
            assert "ratelimit" in result.last


def test_a_call_whose_handler_raises_has_the_fields_too(colour: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving(colour, limits="9/minute") as (_, client):
        crashed = client.call("Crash")
    assert crashed.code is StatusCode.UNKNOWN and "ratelimit" in crashed.last
    assert "a fault of the handler" in caplog.text


def test_methods_can_have_their_own_limits_and_count_apart(colour: str) -> None:
    methods: dict[str, Any] = {
        "/shop.Shop/Read": "1/minute",
        "/shop.Shop/Talk": None,
        "/shop.Shop/*": "2/minute",
        "/shop.Admin/*": "1/minute",
    }
    with serving(colour, methods=methods) as (_, client):
        assert client.codes("Read", "Read") == ["OK", "RESOURCE_EXHAUSTED"]
        assert client.codes("List", "List", "List") == ["OK", "OK", "RESOURCE_EXHAUSTED"]
        assert client.codes("Save", "Save", "Save") == ["OK", "OK", "RESOURCE_EXHAUSTED"]
        assert client.codes(*["Talk"] * 5) == ["OK"] * 5
        assert "ratelimit" not in client.call("Talk").last
        assert client.codes(*["/shop.Other/Read"] * 5) == ["UNIMPLEMENTED"] * 5, "nothing limits the others"


def test_limits_apply_to_the_methods_that_are_not_named(colour: str) -> None:
    with serving(colour, limits="2/minute", methods={"/shop.Shop/Read": "1/minute"}) as (_, client):
        assert client.codes("Read", "Read") == ["OK", "RESOURCE_EXHAUSTED"]
        assert client.codes("List", "Save", "Talk") == ["OK", "OK", "RESOURCE_EXHAUSTED"]


def test_limits_can_be_a_function_of_the_method(colour: str) -> None:
    limits = {"/shop.Shop/Read": "1/minute", "/shop.Shop/List": "2/minute"}
    with serving(colour, limits=lambda call: limits.get(call.endpoint), scope=lambda call: call.endpoint) as (
        _,
        client,
    ):
        assert client.codes("Read", "Read", "List", "List", "List") == [
            "OK", "RESOURCE_EXHAUSTED", "OK", "OK", "RESOURCE_EXHAUSTED",
        ]  # fmt: skip
        assert client.codes(*["Save"] * 5) == ["OK"] * 5


def test_unknown_methods_are_counted_and_are_no_keys(colour: str) -> None:
    with serving(colour, limits="2/minute") as (_, client):
        assert client.codes("Nothing", "/no.Service/At", "Nothing") == [
            "UNIMPLEMENTED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED",
        ]  # fmt: skip
    with serving(colour, methods={"/shop.Shop/*": "2/minute"}) as (_, client):
        invented = [f"Nothing{number}" for number in range(3)]
        assert client.codes(*invented) == ["UNIMPLEMENTED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"]
        assert client.call("Read").code is StatusCode.OK
    with serving(colour, limits="9/minute") as (_, client):
        unknown = client.call("Nothing")
        assert (unknown.details, "ratelimit" in unknown.last) == ("Method not found!", True)
        assert client.call("/shop.Shop/Missing/List").code is StatusCode.UNIMPLEMENTED, "of a client that streams"


def test_a_policy_matches_methods_as_paths_and_metadata_as_headers(colour: str) -> None:
    with serving(colour, POLICY) as (_, client):
        assert client.codes(*["Read"] * 3, x_user="a") == ["OK", "OK", "RESOURCE_EXHAUSTED"]
        assert client.codes("Read", x_user="b") == ["OK"]
        assert client.codes("List", "List") == ["OK", "RESOURCE_EXHAUSTED"]
        free = client.call("Save")
        assert (free.code, "ratelimit" in free.last) == (StatusCode.OK, False)


def test_a_gate_is_used_and_not_closed(colour: str) -> None:
    gate: Any = Gate(POLICY) if colour == "threads" else AsyncGate(POLICY)
    with serving(colour, gate) as (_, client):
        assert client.codes(*["Read"] * 3, x_user="a") == ["OK", "OK", "RESOURCE_EXHAUSTED"]
    assert gate.stats().keys == 1


def test_a_policy_with_methods_raises_at_once() -> None:
    with pytest.raises(ConfigError, match="methods go with limits"):
        RateLimitInterceptor(POLICY, methods={"/a/b": "1/minute"})


def test_only_trusted_proxies_can_set_the_address_of_the_client(colour: str) -> None:
    with serving(colour, limits="1/minute", trusted_proxies=["127.0.0.0/8"]) as (_, client):
        metadata = {"x_forwarded_for": "1.2.3.4, 203.0.113.7"}
        assert client.codes("Read", **metadata) == ["OK"]
        assert client.codes("Read", x_forwarded_for="9.9.9.9, 203.0.113.7") == ["RESOURCE_EXHAUSTED"]
        assert client.codes("Read", x_forwarded_for="203.0.113.8") == ["OK"]
    with serving(colour, limits="1/minute") as (_, client):
        assert client.codes("Read", x_forwarded_for="203.0.113.7") == ["OK"]
        assert client.codes("Read", x_forwarded_for="203.0.113.8") == ["RESOURCE_EXHAUSTED"]


@pytest.mark.parametrize("address", ["[::1]:0", "unix"])
def test_peers_of_ipv6_and_of_unix_sockets_are_clients(colour: str, address: str, tmp_path: Path) -> None:
    addresses: list[str] = []
    listen_address = address if address != "unix" else f"unix:{tmp_path}/server"
    with serving(
        colour,
        limits="1/minute",
        address=listen_address,
        on_decision=lambda call, decision: addresses.append(call.client_ip),
    ) as (_, client):
        assert client.codes("Read", "Read") == ["OK", "RESOURCE_EXHAUSTED"]
    assert addresses == (["::1"] * 2 if address != "unix" else [""] * 2)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:203.0.113.9:5123", "203.0.113.9"),
        ("ipv6:[2001:db8::1]:5123", "2001:db8::1"),
        ("ipv6:%5B2001:db8::1%5D:5123", "2001:db8::1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5123", "fe80::1%eth0"),
        ("unix:/run/server", ""),
        ("unix:", ""),
        ("unix-abstract:server", ""),
        ("vsock:3:5123", "vsock:3:5123"),
    ],
)
def test_a_peer_is_an_address(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_metadata_have_no_fields_that_grpc_does_not_allow() -> None:
    fields = [("RateLimit", '"a";r=1'), ("Content-Type", "x"), ("X-Über", "x"), ("X-A", "é"), ("grpc-status", "0"),
              ("X-Bin", "a"), ("a-bin", "a")]  # fmt: skip
    assert metadata_of(fields) == (("ratelimit", '"a";r=1'),)


def test_costs_and_exemptions_are_functions_of_the_call(colour: str) -> None:
    options: dict[str, Any] = {
        "cost": lambda call: len(call.message) if call.endpoint.endswith("/Read") else 1,
        "exempt": lambda call: "x-probe" in call.headers,
    }
    with serving(colour, limits="10/minute", **options) as (_, client):
        assert client.call("Read", b"a" * 9).code is StatusCode.OK
        assert client.call("Read", b"a" * 2).code is StatusCode.RESOURCE_EXHAUSTED
        assert client.codes(*["Read"] * 3, x_probe="1") == ["OK"] * 3


def test_a_refusal_can_be_customized(colour: str) -> None:
    def other(request: Request, decision: Decision, usual: Refusal) -> Refusal | None:
        if request.endpoint.endswith("/List"):
            return None
        return Refusal(403, [("X-Why", "spent"), ("Content-Type", "text/plain")], b"your quota is spent")

    with serving(colour, limits="1/minute", refusal=other) as (_, client):
        client.call("Read")
        refused = client.call("Read")
        assert (refused.code, refused.details) == (StatusCode.PERMISSION_DENIED, "your quota is spent")
        assert refused.last["x-why"] == "spent"
        assert client.call("List").code is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("body", [b"", b"slow down", b"[]", b'{"detail":7}'])
def test_a_refusal_may_keep_the_headers_of_a_problem_and_have_another_body(colour: str, body: bytes) -> None:
    with serving(colour, limits="1/minute", refusal=lambda request, decision, usual: usual._replace(body=body)) as (
        _,
        client,
    ):
        client.call("Read")
        refused = client.call("Read")
        assert (refused.code, refused.details) == (StatusCode.RESOURCE_EXHAUSTED, body.decode())


def test_a_call_can_wait_for_units_and_a_queue_spaces_calls(colour: str) -> None:
    lines: dict[str, dict[str, Any]] = {"15/15s bucket": {"wait": 16.0, "cost": 15}, "1/15s queue 5": {}}
    for limits, options in lines.items():
        clock = ManualClock()
        before = clock.now_us()
        with serving(colour, limits=limits, clock=clock, **options) as (_, client):
            assert client.codes("Read", "List") == ["OK", "OK"]
        assert clock.now_us() - before == 15_000_000


def test_a_call_whose_deadline_is_before_its_turn_is_refused_and_consumes_nothing(colour: str) -> None:
    clock = ManualClock()
    with serving(colour, limits="1/hour bucket", wait=3601.0, clock=clock) as (_, client):
        before = clock.now_us()
        assert client.codes("Read", "Read", "List") == ["OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
        assert clock.now_us() == before
        waiting: Any = client.channel.unary_unary("/shop.Shop/Read")
        assert waiting(b"a") == b"read a"  # it waits as long as it has to
        assert clock.now_us() - before == 3600_000_000


def test_a_store_that_fails_never_causes_a_429(colour: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate"):
        with serving(colour, limits="1/minute", store=BrokenStore()) as (_, client):
            passed = client.call("Read")
        with serving(colour, limits="1/minute", store=BrokenStore(), on_store_error="closed") as (_, client):
            refused = client.call("Read")
    assert (passed.code, passed.last["x-ratelimit-degraded"]) == (StatusCode.OK, "open")
    assert (refused.code, refused.last["x-ratelimit-degraded"]) == (StatusCode.UNAVAILABLE, "closed")
    assert refused.details.startswith("the rate limiter's store does not answer")
    assert refused.last["grpc-retry-pushback-ms"] == "1000"
    assert "no server is there" in caplog.text


@pytest.mark.parametrize(("choice", "code"), [("open", StatusCode.OK), ("closed", StatusCode.UNAVAILABLE)])
def test_without_redis_the_option_chooses_the_status(colour: str, choice: str, code: StatusCode) -> None:
    with serving(colour, limits="1/minute", store=NO_REDIS, on_store_error=choice) as (_, client):
        result = client.call("Read")
    assert (result.code, result.last["x-ratelimit-degraded"]) == (code, choice)


def test_no_headers_means_no_metadata(colour: str) -> None:
    with serving(colour, limits="9/minute", headers="none") as (_, client):
        result = client.call("Read")
        assert (result.code, result.last) == (StatusCode.OK, {})


# Calls that count by their status.


def test_counts_receives_the_status_and_the_size_of_the_messages(colour: str, caplog: pytest.LogCaptureFixture) -> None:
    counted: dict[str, Response] = {}

    def count(request: Request, response: Response) -> bool:
        counted[request.path.rpartition("/")[2]] = response
        return True

    with serving(colour, limits="99/minute", counts=count) as (_, client):
        client.codes("Read", "List", "Save", "Talk", "Own", "Fail", "Status", "Crash", "Nothing")
    assert {name: response.status for name, response in counted.items()} == {
        "Read": 0, "List": 0, "Save": 0, "Talk": 0, "Own": 0, "Fail": 5, "Status": 6, "Crash": 2, "Nothing": 12,
    }  # fmt: skip
    assert [counted[name].body_bytes for name in KINDS] == [6, 11, 3, 2]
    assert counted["Own"].headers == {"x-last": "2", "ratelimit": '"mine";r=1'}


@pytest.mark.parametrize("colour", COLOURS[:2])
def test_a_stream_that_a_client_cancels_is_settled(colour: str) -> None:
    """`test_grpc_threaded_streams.py` has those of threaded handlers in asyncio, which gRPC never ends."""
    counted: list[int] = []
    settled = threading.Event()

    def count(request: Request, response: Response) -> bool:
        counted.append(response.status)
        settled.set()
        return True

    with serving(colour, limits="9/minute", counts=count) as (server, client):
        stream = client.channel.unary_stream("/shop.Shop/Endless")(b"", timeout=20)
        assert next(stream) == b"more"
        stream.cancel()
        assert server.handlers.cancelled.wait(10) and settled.wait(10)
    assert counted == [1]


def test_a_stream_that_a_client_cancels_is_in_flight_until_its_handler_has_cleaned_up() -> None:
    async def main() -> None:
        cleaning, clean = asyncio.Event(), asyncio.Event()

        async def endless(message: bytes, context: Any) -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"more"
            finally:
                cleaning.set()
                await clean.wait()

        async def read(message: bytes, context: Any) -> bytes:
            return message

        handlers: dict[str, Any] = {
            "Endless": grpc.unary_stream_rpc_method_handler(endless),
            "Read": grpc.unary_unary_rpc_method_handler(read),
        }
        server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(limits="1 concurrent")])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Shop", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call_read: Any = channel.unary_unary("/shop.Shop/Read")
            call_endless: Any = channel.unary_stream("/shop.Shop/Endless")
            stream = call_endless(b"")
            assert await stream.read() == b"more"
            stream.cancel()
            await cleaning.wait()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call_read(b"")
            assert refused.value.code() is StatusCode.RESOURCE_EXHAUSTED
            clean.set()
            while True:
                with suppress(grpc.aio.AioRpcError):
                    assert await call_read(b"again") == b"again"
                    break
        await server.stop(0)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_charge_of_a_call_that_does_not_count_is_returned(colour: str) -> None:
    """A response to an abort can arrive before the charge is settled, so the last ones can be late."""
    with serving(colour, limits="4/minute", counts=lambda request, response: response.status != 5) as (_, client):
        assert client.codes(*["Fail"] * 9) == ["NOT_FOUND"] * 9
        assert client.codes(*["Read"] * 3) == ["OK"] * 3
        assert "RESOURCE_EXHAUSTED" in client.codes(*["Read"] * 2)


# Many calls at once.


def test_exactly_the_limit_passes_when_more_calls_arrive_at_once(colour: str) -> None:
    with serving(colour, limits="20/minute") as (server, client), ThreadPoolExecutor(8) as pool:
        codes = Counter(pool.map(lambda number: client.call(KINDS[number % 4]).code.name, range(60)))
        assert codes == {"OK": 20, "RESOURCE_EXHAUSTED": 40}
        assert sum(server.handlers.reached.values()) == 20


def test_threaded_handlers_run_in_threads_and_asyncio_handlers_on_the_loop() -> None:
    with serving("asyncio", limits="99/minute") as (server, client):
        client.codes(*KINDS)
        assert len(server.handlers.threads) == 1
    with serving("asyncio, handlers of threads", limits="99/minute") as (server, client):
        client.codes(*KINDS)
        assert server.handlers.threads and server._thread.ident not in server.handlers.threads


def test_a_handler_that_responds_by_a_callback_is_limited() -> None:
    """The Watch method of grpcio-health-checking does so."""

    def watch(message: bytes, context: Any, send: Callable[[Any], None]) -> None:
        send(b"serving")
        send(None)

    behavior: Any = watch
    behavior.experimental_non_blocking = True
    handler: Any = grpc.unary_stream_rpc_method_handler(behavior)
    generic = grpc.method_handlers_generic_handler("a.Health", {"List": handler})
    interceptor = RateLimitInterceptor(limits="1/minute", clock=ManualClock())
    server = grpc.server(ThreadPoolExecutor(2), handlers=[generic], interceptors=[interceptor])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            client = Client(channel)
            results = [client.call("/a.Health/List") for _ in range(2)]
    finally:
        server.stop(None).wait(10)
    assert [result.code.name for result in results] == ["OK", "RESOURCE_EXHAUSTED"]
    assert results[0].messages == [b"serving"] and "ratelimit" in results[0].last


def test_the_decision_on_a_call_of_a_threaded_handler_ends_when_its_client_cancels() -> None:
    started, ended = threading.Event(), threading.Event()

    async def exempt(call: Any) -> bool:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return False

    with serving("asyncio, handlers of threads", limits="1/minute", exempt=exempt) as (server, client):
        call: Any = client.channel.unary_unary("/shop.Shop/Read").future(b"a")
        assert started.wait(10)
        call.cancel()
        assert ended.wait(10)
    assert not server.handlers.reached


def test_calls_whose_clients_have_cancelled_already_are_counted_for_no_other_client(colour: str) -> None:
    """gRPC does not know the peer of some of these calls, depending on the load of the machine."""
    addresses: set[str] = set()
    options: dict[str, Any] = {"on_decision": lambda call, decision: addresses.add(call.client_ip)}
    with serving(colour, limits="100000/minute", **options) as (_, client):
        read: Any = client.channel.unary_unary("/shop.Shop/Read")
        for _ in range(20):
            for call in [read.future(b"a", timeout=0.001 * number) for number in range(20)]:
                call.exception()
        assert client.call("Read").code is StatusCode.OK
    assert addresses == {"127.0.0.1"}


def test_the_address_of_a_client_that_has_cancelled_is_still_known() -> None:
    """The context of gRPC itself aborts the process when it reads the peer of a call that is over."""
    addresses: list[str] = []
    cancelled = threading.Event()

    def counts(call: Any, response: Response) -> bool:
        addresses.append(call.client_ip)
        return True

    def messages() -> Iterator[bytes]:
        cancelled.wait(10)
        yield b"late"

    with serving("asyncio, handlers of threads", limits="5/minute", key=header("x-user"), counts=counts) as (
        server,
        client,
    ):
        call: Any = client.channel.stream_unary("/shop.Shop/Save").future(messages(), metadata=[("x-user", "ann")])
        until(lambda: server.handlers.reached["Save"])
        call.cancel()
        cancelled.set()
        until(lambda: addresses)
    assert addresses == ["127.0.0.1"]


def test_a_stream_with_responses_by_callbacks_is_in_flight_until_it_ends() -> None:
    """The handler of Watch of grpcio-health-checking returns at once like this one."""
    sends: list[Callable[[Any], None]] = []
    counted: list[Response] = []

    def counts(call: Any, response: Response) -> bool:
        counted.append(response)
        return True

    def watch(message: bytes, context: Any, send: Callable[[Any], None]) -> None:
        if message == b"fail":
            raise ValueError("a fault of the handler")
        sends.append(send)
        send(b"serving")

    behavior: Any = watch
    behavior.experimental_non_blocking = True
    handler: Any = grpc.unary_stream_rpc_method_handler(behavior)
    generic = grpc.method_handlers_generic_handler("a.Health", {"Watch": handler})
    interceptor = RateLimitInterceptor(
        limits="1 concurrent; 100/minute",
        clock=ManualClock(),
        counts=counts,
    )
    server = grpc.server(ThreadPoolExecutor(4), handlers=[generic], interceptors=[interceptor])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            watching: Any = channel.unary_stream("/a.Health/Watch")
            streams: list[Any] = []

            def begins(message: bytes = b"") -> StatusCode | None:
                streams.append(watching(message))
                try:
                    next(streams[-1])
                except grpc.RpcError:
                    code: StatusCode = streams[-1].code()
                    return code
                return None

            assert begins() is None
            assert begins() is StatusCode.RESOURCE_EXHAUSTED, "the first is in flight"
            streams[0].cancel()
            until(lambda: begins() is None)
            sends[-1](None)
            assert list(streams[-1]) == []
            until(lambda: begins(b"fail") is StatusCode.UNKNOWN)
            until(lambda: begins() is None)
            streams[-1].cancel()
            until(lambda: len(counted) == 4)
    finally:
        server.stop(None).wait(10)
    cancelled, unknown = StatusCode.CANCELLED.value[0], StatusCode.UNKNOWN.value[0]
    assert [response.status for response in counted] == [cancelled, 0, unknown, cancelled]
    assert counted[0].body_bytes == len(b"serving")


@pytest.mark.parametrize("interceptor", [RateLimitInterceptor, AsyncRateLimitInterceptor])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give a policy .*, or limits, or those of methods"),
        ({"methods": {}}, "or those of methods"),
        ({"methods": {"shop.Shop/Read": "1/minute"}}, "a method is \"/package.Service/Method\""),
        ({"methods": {"/shop.Shop/Read/x": "1/minute"}}, "a method is"),
        ({"methods": {"/shop.Shop/Read": "1/fortnight"}}, "fortnight"),
        ({"limits": "1/fortnight"}, "fortnight"),
        ({"limits": "1/minute", "missing": "x"}, "missing is one of"),
    ],
)  # fmt: skip
def test_wrong_options_raise_at_once(interceptor: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        interceptor(**options)
    with pytest.raises(TypeError, match="no option is named limit"):
        interceptor(limits="1/minute", limit=5)


class WaitingStore(MemoryStore):
    """A store that waits for I/O and only works in threads."""

    blocking = True


def test_a_store_that_would_block_the_event_loop_raises_at_once() -> None:
    with pytest.raises(ConfigError, match="waits for I/O in threads alone"):
        AsyncRateLimitInterceptor(limits="1/minute", store=WaitingStore())
    RateLimitInterceptor(limits="1/minute", store=WaitingStore()).close()


def test_a_missing_library_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "headgate.integrations.grpc")
    with pytest.raises(MissingExtraError, match=r"pip install 'headgate\[grpc\]'"):
        importlib.import_module("headgate.integrations.grpc")


@pytest.mark.parametrize("colour", COLOURS)
def test_metadata_sent_twice_are_one_key_for_all_clients_that_do_so(colour: str) -> None:
    with serving(colour, limits="3/minute", key=api_key("x-api-key"), clock=ManualClock()) as (_, client):

        def code(*values: str) -> str:
            call_read = client.channel.unary_unary("/shop.Shop/Read")
            try:
                return str(
                    call_read.with_call(b"a", metadata=[("x-api-key", value) for value in values])[1].code().name
                )
            except grpc.RpcError as error:
                return str(error.code().name)

        once = [code("VALID") for _ in range(4)]
        twice = [code("VALID", f"r{number}") for number in range(3)] + [code(f"r{n}", "VALID") for n in range(3)]
    assert once == ["OK"] * 3 + ["RESOURCE_EXHAUSTED"]
    assert twice == ["OK"] * 3 + ["RESOURCE_EXHAUSTED"] * 3
