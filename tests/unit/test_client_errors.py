"""Errors of clients are caught as their library's and as Headgate's; they have their request, and can be pickled."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from broken_store import BrokenStore
from headgate import (
    AsyncLimiter,
    ConfigError,
    HeadgateError,
    Limiter,
    RateLimited,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from headgate.errors import Held, Throttled
from headgate.http.client.errors import KINDS
from headgate.integrations import aiohttp_client
from headgate.integrations import httpx as of_httpx
from headgate.integrations import requests as of_requests
from headgate.testing import ManualClock
from versions import CLIENT_MIDDLEWARES

URL = "http://api.example/things?q=1"
CAUGHT_AS: dict[str, tuple[type[Exception], ...]] = {
    "httpx": (httpx.HTTPError, httpx.RequestError, httpx.TransportError),
    "httpx, async": (httpx.HTTPError, httpx.RequestError, httpx.TransportError),
    "requests": (requests.exceptions.RequestException, OSError),
    "aiohttp": (aiohttp.ClientError,),
}
MODULES = {"httpx": of_httpx, "httpx, async": of_httpx, "requests": of_requests, "aiohttp": aiohttp_client}
CALLED = [pytest.param(name, marks=[CLIENT_MIDDLEWARES] if name == "aiohttp" else []) for name in CAUGHT_AS]
RAISED = {
    "no turn in time": RateLimited,
    "held": Held,
    "throttled": Throttled,
    "no store": StoreUnavailable,
}


def prepare(reason: str, asynchronous: bool) -> tuple[Any, dict[str, Any]]:
    """Return the limits and options of a client whose next call is not sent, for this reason."""
    clock = ManualClock()
    options: dict[str, Any] = {"clock": clock, "key": lambda request: "all", "timeout": 0}
    if reason == "no turn in time":
        limiter: Any
        if asynchronous:
            limiter = AsyncLimiter("1/hour", clock=clock)
            asyncio.run(limiter.hit("all"))
        else:
            limiter = Limiter("1/hour", clock=clock)
            limiter.hit("all")
        del options["clock"]
        return limiter, options
    if reason == "no store":
        return "1/hour", {**options, "store": BrokenStore(), "on_store_error": "closed"}
    if reason == "throttled":
        return None, {**options, "adaptive": True, "random": lambda: 0.0}
    return None, options


def prepare_destination(reason: str, sender: Any) -> None:
    """Record the earlier responses of a server that gets no more requests."""
    destination = sender._destinations.of("all", sender._clock.now_us())
    if reason == "held":
        destination.hold(sender._clock.now_us(), 60_000_000)
    if reason == "throttled":
        for _ in range(9):
            destination.count(sender._clock.now_us(), accepted=False)


def raised_by(library: str, reason: str) -> Exception:
    """Return the error of such a call; there is no server, so nothing is sent."""
    with pytest.raises(CAUGHT_AS[library]) as caught:
        call(library, reason)
    return caught.value


def call(library: str, reason: str) -> None:
    limits, options = prepare(reason, library in ("httpx, async", "aiohttp"))
    if library == "httpx":
        transport = of_httpx.RateLimitTransport(limits, httpx.MockTransport(not_sent), **options)
        prepare_destination(reason, transport._sender)
        with httpx.Client(transport=transport) as client:
            client.post(URL, content=b"thing")
    elif library == "requests":
        adapter = of_requests.RateLimitAdapter(limits, **options)
        prepare_destination(reason, adapter._sender)
        with requests.Session() as session:
            session.mount("http://", adapter)
            session.post(URL, data=iter([b"thing"]), hooks={"response": lambda *_, **__: None})
    else:
        asyncio.run(call_async(library, limits, options, reason))


async def call_async(library: str, limits: Any, options: Any, reason: str) -> None:
    if library == "aiohttp":
        middleware = aiohttp_client.RateLimitMiddleware(limits, **options)
        prepare_destination(reason, middleware._sender)
        async with aiohttp.ClientSession(middlewares=(middleware,)) as session:
            await session.post(URL, data=b"thing")
        return
    transport = of_httpx.AsyncRateLimitTransport(limits, httpx.MockTransport(not_sent), **options)
    prepare_destination(reason, transport._sender)
    async with httpx.AsyncClient(transport=transport) as client:
        await client.post(URL, content=b"thing")


def not_sent(request: httpx.Request) -> httpx.Response:
    raise AssertionError("it is sent")


@pytest.mark.parametrize("reason", RAISED)
@pytest.mark.parametrize("library", CALLED)
def test_an_error_is_the_librarys_and_headgates_and_has_its_request(library: str, reason: str) -> None:
    error: Any = raised_by(library, reason)
    kind: Any = RAISED[reason]
    for base in (HeadgateError, kind, *CAUGHT_AS[library]):
        assert isinstance(error, base), base
    assert type(error) is getattr(MODULES[library], kind.__name__) and error.code == kind.code
    assert error.request.method == "POST" and str(error.request.url) == URL
    assert str(error)
    attributes = {RateLimited: "decision", Held: "retry_after", Throttled: "chance", StoreUnavailable: "transient"}
    assert getattr(error, attributes[kind]) is not None


@pytest.mark.parametrize("reason", RAISED)
@pytest.mark.parametrize("library", CALLED)
def test_an_error_can_be_pickled_with_the_picklable_parts_of_its_request(library: str, reason: str) -> None:
    error: Any = raised_by(library, reason)
    unpickled = pickle.loads(pickle.dumps(error))
    assert type(unpickled) is type(error) and str(unpickled) == str(error)
    if reason == "no turn in time":
        assert unpickled.decision.retry_after_us == error.decision.retry_after_us
    if library == "aiohttp":
        assert unpickled.request is None, "aiohttp's has an event loop"
    else:
        assert (unpickled.request.method, str(unpickled.request.url)) == ("POST", URL)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("library", CAUGHT_AS)
def test_every_kind_is_a_class_of_the_module_below_headgates(library: str, kind: type[HeadgateError]) -> None:
    library_class = getattr(MODULES[library], kind.__name__)
    assert issubclass(library_class, kind) and issubclass(library_class, CAUGHT_AS[library])
    assert (
        library_class.__module__ == MODULES[library].__name__
        and library_class.__doc__
        and kind.__name__ in library_class.__doc__
    )


class CustomTimeout(StoreTimeout):
    """An error of a custom store."""


def test_an_error_of_a_custom_store_becomes_the_nearest_kind_and_its_cause() -> None:
    options: dict[str, Any] = {"store": BrokenStore(), "on_store_error": "closed", "timeout": 0, "clock": ManualClock()}
    transport = of_httpx.RateLimitTransport("1/hour", httpx.MockTransport(not_sent), **options)
    request = httpx.Request("GET", URL)
    store_error = CustomTimeout("it took too long")
    converted: Any = transport._sender._convert_error(store_error, request)
    assert (
        isinstance(converted, StoreTimeout)
        and isinstance(converted, httpx.TransportError)
        and converted.__cause__ is store_error
    )
    assert converted.transient and str(converted) == "it took too long" and converted.request is request
    with pytest.raises(StoreError) as caught, httpx.Client(transport=transport) as client:
        client.get(URL)
    assert isinstance(caught.value, httpx.TransportError)
    misuse = HeadgateError("misuse")
    assert transport._sender._convert_error(misuse, request) is misuse


def test_a_client_around_another_passes_its_errors_on() -> None:
    limiter = Limiter("1/hour")
    limiter.hit("all")
    inner = of_httpx.RateLimitTransport(limiter, httpx.MockTransport(not_sent), key=lambda request: "all", timeout=0)
    outer = of_httpx.RateLimitTransport(None, inner, retries=3)
    with httpx.Client(transport=outer) as client, pytest.raises(RateLimited) as caught:
        client.get(URL)
    assert isinstance(caught.value, httpx.TransportError)


@pytest.mark.parametrize("copied", [lambda session: pickle.loads(pickle.dumps(session)), copy.deepcopy])
def test_a_session_cannot_be_copied_without_the_counts_of_its_adapter(copied: Any) -> None:
    with requests.Session() as session:
        session.mount("https://", of_requests.RateLimitAdapter("1/hour"))
        with pytest.raises(TypeError, match=r"RateLimitAdapter cannot be pickled or copied, .* in each process"):
            copied(session)


def test_an_httpx_client_on_another_event_loop_than_asyncio_raises_at_its_first_call() -> None:
    answers = httpx.MockTransport(lambda request: httpx.Response(200))
    calling = of_httpx.AsyncRateLimitTransport("100/second", answers).handle_async_request(
        httpx.Request("GET", "http://a/")
    )
    with pytest.raises(ConfigError, match="for asyncio, and no event loop of asyncio runs here"):
        calling.send(None)  # as trio does
