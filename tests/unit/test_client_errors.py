"""What clients raise is caught as their library's errors and as Headgate's; it has its request, and is pickled."""

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

URL = "http://api.example/things?q=1"
CAUGHT_AS: dict[str, tuple[type[Exception], ...]] = {
    "httpx": (httpx.HTTPError, httpx.RequestError, httpx.TransportError),
    "httpx, async": (httpx.HTTPError, httpx.RequestError, httpx.TransportError),
    "requests": (requests.exceptions.RequestException, OSError),
    "aiohttp": (aiohttp.ClientError,),
}
MODULES = {"httpx": of_httpx, "httpx, async": of_httpx, "requests": of_requests, "aiohttp": aiohttp_client}
RAISED = {
    "no turn in time": RateLimited,
    "held": Held,
    "throttled": Throttled,
    "no store": StoreUnavailable,
}


def prepare(why: str, asynchronous: bool) -> tuple[Any, dict[str, Any]]:
    """The limits and options of a client whose next call is not sent, for this reason."""
    clock = ManualClock()
    options: dict[str, Any] = {"clock": clock, "key": lambda request: "all", "timeout": 0}
    if why == "no turn in time":
        limiter: Any
        if asynchronous:
            limiter = AsyncLimiter("1/hour", clock=clock)
            asyncio.run(limiter.hit("all"))
        else:
            limiter = Limiter("1/hour", clock=clock)
            limiter.hit("all")
        del options["clock"]
        return limiter, options
    if why == "no store":
        return "1/hour", {**options, "store": BrokenStore(), "on_store_error": "closed"}
    if why == "throttled":
        return None, {**options, "adaptive": True, "random": lambda: 0.0}
    return None, options


def trouble(why: str, calls: Any) -> None:
    """What a server has said before, that is asked no more."""
    destination = calls._destinations.of("all", calls._clock.now_us())
    if why == "held":
        destination.hold(calls._clock.now_us(), 60_000_000)
    if why == "throttled":
        for _ in range(9):
            destination.count(calls._clock.now_us(), accepted=False)


def raised(library: str, why: str) -> Exception:
    """What such a call raises; there is no server, so nothing is sent."""
    with pytest.raises(CAUGHT_AS[library]) as caught:
        call(library, why)
    return caught.value


def call(library: str, why: str) -> None:
    limits, options = prepare(why, library in ("httpx, async", "aiohttp"))
    if library == "httpx":
        transport = of_httpx.RateLimitTransport(limits, httpx.MockTransport(not_sent), **options)
        trouble(why, transport._sender)
        with httpx.Client(transport=transport) as client:
            client.post(URL, content=b"thing")
    elif library == "requests":
        adapter = of_requests.RateLimitAdapter(limits, **options)
        trouble(why, adapter._sender)
        with requests.Session() as session:
            session.mount("http://", adapter)
            session.post(URL, data=iter([b"thing"]), hooks={"response": lambda *_, **__: None})
    else:
        asyncio.run(call_later(library, limits, options, why))


async def call_later(library: str, limits: Any, options: Any, why: str) -> None:
    if library == "aiohttp":
        middleware = aiohttp_client.RateLimitMiddleware(limits, **options)
        trouble(why, middleware._sender)
        async with aiohttp.ClientSession(middlewares=(middleware,)) as session:
            await session.post(URL, data=b"thing")
        return
    transport = of_httpx.AsyncRateLimitTransport(limits, httpx.MockTransport(not_sent), **options)
    trouble(why, transport._sender)
    async with httpx.AsyncClient(transport=transport) as client:
        await client.post(URL, content=b"thing")


def not_sent(request: httpx.Request) -> httpx.Response:
    raise AssertionError("it is sent")


@pytest.mark.parametrize("why", RAISED)
@pytest.mark.parametrize("library", CAUGHT_AS)
def test_an_error_is_the_librarys_and_headgates_and_has_its_request(library: str, why: str) -> None:
    error: Any = raised(library, why)
    kind: Any = RAISED[why]
    for base in (HeadgateError, kind, *CAUGHT_AS[library]):
        assert isinstance(error, base), base
    assert type(error) is getattr(MODULES[library], kind.__name__) and error.code == kind.code
    assert error.request.method == "POST" and str(error.request.url) == URL
    assert str(error)
    known = {RateLimited: "decision", Held: "retry_after", Throttled: "chance", StoreUnavailable: "transient"}
    assert getattr(error, known[kind]) is not None


@pytest.mark.parametrize("why", RAISED)
@pytest.mark.parametrize("library", CAUGHT_AS)
def test_an_error_goes_into_another_process_with_what_can_go(library: str, why: str) -> None:
    error: Any = raised(library, why)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    if why == "no turn in time":
        assert again.decision.retry_after_us == error.decision.retry_after_us
    if library == "aiohttp":
        assert again.request is None, "aiohttp's has an event loop"
    else:
        assert (again.request.method, str(again.request.url)) == ("POST", URL)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("library", CAUGHT_AS)
def test_every_kind_is_a_class_of_the_module_below_headgates(library: str, kind: type[HeadgateError]) -> None:
    own = getattr(MODULES[library], kind.__name__)
    assert issubclass(own, kind) and issubclass(own, CAUGHT_AS[library])
    assert own.__module__ == MODULES[library].__name__ and own.__doc__ and kind.__name__ in own.__doc__


class Odd(StoreTimeout):
    """An error of somebody's own store."""


def test_an_error_of_ones_own_store_is_the_nearest_kind_and_its_cause() -> None:
    options: dict[str, Any] = {"store": BrokenStore(), "on_store_error": "closed", "timeout": 0, "clock": ManualClock()}
    transport = of_httpx.RateLimitTransport("1/hour", httpx.MockTransport(not_sent), **options)
    request = httpx.Request("GET", URL)
    odd = Odd("it took too long")
    told: Any = transport._sender._convert_error(odd, request)
    assert isinstance(told, StoreTimeout) and isinstance(told, httpx.TransportError) and told.__cause__ is odd
    assert told.transient and str(told) == "it took too long" and told.request is request
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
def test_a_session_is_not_copied_without_what_its_adapter_counts(copied: Any) -> None:
    with requests.Session() as session:
        session.mount("https://", of_requests.RateLimitAdapter("1/hour"))
        with pytest.raises(TypeError, match=r"RateLimitAdapter cannot be pickled or copied, .* in each process"):
            copied(session)


def test_a_client_of_httpx_on_another_event_loop_than_asyncios_is_told_at_its_first_call() -> None:
    answers = httpx.MockTransport(lambda request: httpx.Response(200))
    calling = of_httpx.AsyncRateLimitTransport("100/second", answers).handle_async_request(
        httpx.Request("GET", "http://a/")
    )
    with pytest.raises(ConfigError, match="for asyncio, and no event loop of asyncio runs here"):
        calling.send(None)  # as trio does
