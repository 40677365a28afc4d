"""A process that has just started, or was just forked, and its first connection to a Redis."""

from __future__ import annotations

import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from redis_askers import COLOURS, Asker
from redis_servers import Server, cluster, sentinels, single
from running import running_service
from served import answers_http, running
from stalls import timed
from tcp_proxy import HOST, TcpProxy

from headgate import Limiter
from headgate.errors import StoreError

pytestmark = pytest.mark.integration
GREETING_S = 1.5
"""How long a connection takes: longer than the deadline of a decision, shorter than that of a first connection."""

OPTIONS = "timeout=1s&connect_timeout=20s"
"""A user has 50 ms and 1 s unless the URL says otherwise. Here both are twenty times as long: the tests show which of
the two holds for which call, and a machine that is busy with other tests may stand still for 50 ms."""

BURST = 60
STARLETTE = """
import os
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from headgate.integrations.starlette import RateLimitMiddleware

app = Starlette(routes=[Route("/", lambda request: PlainTextResponse(str(os.getpid())))])
app.add_middleware(RateLimitMiddleware, limits="7/minute log", store=os.environ["STORE"], key=lambda request: "all")
"""
BARE = """
import os
from headgate.http.asgi import RateLimitMiddleware

async def answer(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})

app = RateLimitMiddleware(answer, limits="7/minute log", store=os.environ["STORE"], key=lambda request: "all")
"""
FLASK = """
import os
from flask import Flask
from headgate.integrations.flask import RateLimits

app = Flask(__name__)
RateLimits(app, default="7/minute log", store=os.environ["STORE"], key=lambda request: "all")

@app.get("/")
def answer():
    return str(os.getpid())
"""
SERVERS = {
    "uvicorn": (STARLETTE, "-m uvicorn site_of_a_test:app --workers 2 --port PORT --log-level error"),
    "uvicorn, no lifespan": (BARE, "-m uvicorn site_of_a_test:app --workers 2 --port PORT --log-level error"),
    "gunicorn": (FLASK, "-m gunicorn site_of_a_test:app -w 2 -b 127.0.0.1:PORT --log-level error"),
    "gunicorn, threads": (FLASK, "-m gunicorn site_of_a_test:app -w 2 --threads 8 -b 127.0.0.1:PORT --log-level error"),
    "gunicorn, preloaded": (FLASK, "-m gunicorn site_of_a_test:app -w 2 --preload -b 127.0.0.1:PORT"),
}


@pytest.fixture
def server() -> Iterator[Server]:
    with single() as server:
        yield server


def url_of(port: int) -> str:
    return f"redis://{HOST}:{port}/0?{OPTIONS}"


def burst(port: int, path: str = "/") -> list[httpx.Response]:
    """The responses to requests that are sent at once, each over its own connection."""
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # each call would load all certificates, and hold up the proxy

    def send(_: int) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=30, verify=unused)

    with ThreadPoolExecutor(20) as threads:
        return list(threads.map(send, range(BURST)))


def accepts(port: int) -> bool:
    """Whether a server listens there; no request is sent."""
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("kind", "servers"),
    [(kind, "single") for kind in SERVERS]
    + [
        (kind, servers) for kind in ("uvicorn, no lifespan", "gunicorn, threads") for servers in ("sentinel", "cluster")
    ],
)
def test_the_first_burst_on_several_workers_is_decided_by_the_server_alone(
    kind: str, servers: str, tmp_path: Path
) -> None:
    site, command = SERVERS[kind]
    (tmp_path / "site_of_a_test.py").write_text(site)
    with (
        slow(servers) as url,
        running(command.split(), accepts, folder=tmp_path, environment={"STORE": url}) as port,
    ):
        answers = burst(port)
    assert not [answer for answer in answers if "X-RateLimit-Degraded" in answer.headers]
    assert Counter(answer.status_code for answer in answers) == {200: 7, 429: BURST - 7}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_burst_on_the_service_is_decided_by_the_server_alone(
    workers: int, proxy: TcpProxy, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules:\n  - {name: all, by: [], limits: 7/minute log}\n")
    proxy.delay_greeting(GREETING_S)
    with running_service(policy, "--store", url_of(proxy.port), "--workers", str(workers)) as service:
        port = httpx.URL(service.url).port
        assert port is not None
        answers = burst(port, "/check/default")
    assert not [answer for answer in answers if "X-RateLimit-Degraded" in answer.headers]
    assert Counter(answer.status_code for answer in answers) == {200: 7, 429: BURST - 7}


def test_an_application_starts_without_its_server_and_reports_it(tmp_path: Path) -> None:
    (tmp_path / "site_of_a_test.py").write_text(STARLETTE)
    command = ["-m", "uvicorn", "site_of_a_test:app", "--port", "PORT", "--log-level", "error"]
    with running(command, answers_http, folder=tmp_path, environment={"STORE": "redis://127.0.0.1:1/0"}) as port:
        answers = burst(port)
    assert Counter(answer.status_code for answer in answers) == {200: 7, 429: BURST - 7}
    assert {answer.headers["X-RateLimit-Degraded"] for answer in answers} == {"local"}


# Limiters


@contextmanager
def slow(kind: str) -> Iterator[str]:
    """The URL of a server, Sentinels or Cluster whose connections are slow to open, but within their deadline."""
    if kind == "single":
        with single() as server, TcpProxy(server.port) as proxy:
            proxy.delay_greeting(GREETING_S)
            yield url_of(proxy.port)
    elif kind == "sentinel":
        with sentinels() as watched, TcpProxy(watched.watchers[0].port) as proxy:
            proxy.delay_greeting(GREETING_S)
            yield f"redis+sentinel://{HOST}:{proxy.port}/mymaster/0?{OPTIONS}"
    else:
        with cluster() as nodes, TcpProxy(nodes.servers[0].port) as proxy:
            proxy.delay_greeting(GREETING_S)
            yield f"redis+cluster://{HOST}:{proxy.port}?{OPTIONS}"


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", ["single", "sentinel", "cluster"])
def test_all_calls_meanwhile_wait_for_a_slow_first_connection(kind: str, colour: str) -> None:
    with slow(kind) as url, Asker(colour, "7/minute log", url) as asker:
        decisions = asker.at_once(["key"] * BURST)
    assert {getattr(decision, "degraded", decision) for decision in decisions} == {""}
    assert sum(map(bool, decisions)) == 7


def test_threads_share_the_open_connections_while_another_one_is_slow_to_open(proxy: TcpProxy) -> None:
    limiter = Limiter("7/minute log", store=url_of(proxy.port))
    limiter.store.warm_up()
    proxy.delay_greeting(60)
    with ThreadPoolExecutor(16) as threads:
        decisions = list(threads.map(lambda number: limiter.hit(f"user {number % 50}"), range(1000)))
    assert {decision.degraded for decision in decisions} == {""}
    assert sum(map(bool, decisions)) == 7 * 50
    proxy.cut()
    limiter.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_all_calls_wait_once_and_together_for_an_unavailable_server(proxy: TcpProxy, colour: str) -> None:
    proxy.silence()
    url = f"redis://{HOST}:{proxy.port}/0?timeout=50ms&connect_timeout=800ms"
    with Asker(colour, "7/minute log", url) as asker:
        start = time.monotonic()
        with timed() as first_s:
            decisions = asker.at_once(["key"] * 16)
        assert time.monotonic() - start >= 0.75
        assert {getattr(decision, "degraded", decision) for decision in decisions} == {"local"}
        with timed() as then_s:
            assert {asker.hit("other").degraded for _ in range(50)} == {"local"}
        assert asker.store.breaker.state == "open"
    assert first_s() < 1.5
    assert then_s() < 0.5


@pytest.mark.parametrize("colour", COLOURS)
def test_without_a_guard_the_first_connection_that_fails_is_an_error_and_the_next_call_keeps_its_deadline(
    proxy: TcpProxy, colour: str
) -> None:
    from headgate.stores.redis.store import RedisStore

    proxy.silence()
    store = RedisStore(f"redis://{HOST}:{proxy.port}/0?timeout=100ms&connect_timeout=900ms")
    with Asker(colour, "7/minute log", store) as asker:
        took = []
        for _ in range(3):
            start = time.monotonic()
            with pytest.raises(StoreError):
                asker.hit("key")
            took.append(time.monotonic() - start)
        proxy.mend()
    assert took[0] >= 0.85
    assert max(took[1:]) < 0.6


@pytest.mark.parametrize("colour", COLOURS)
def test_warming_up_connects_and_loads_the_scripts_so_that_a_decision_is_one_call(server: Server, colour: str) -> None:
    with Asker(colour, "7/minute log", url_of(server.port)) as asker:
        if colour == "sync":
            asker.store.warm_up()
        else:
            asker._do(asker.store.warm_up_async)
        before = server.cli("INFO", "commandstats")
        assert before["cmdstat_script|load"]["calls"] == 1
        accepted = server.cli("INFO", "stats")["total_connections_received"]
        assert asker.hit("key").remaining == 6
        after = server.cli("INFO", "commandstats")
        assert after["cmdstat_evalsha"]["calls"] == 1
        assert "cmdstat_eval" not in after
        assert server.cli("INFO", "stats")["total_connections_received"] - accepted <= 2  # those of this test
        if colour == "sync":
            asker.store.warm_up()  # again: nothing is to be done
        else:
            asker._do(asker.store.warm_up_async)
        assert server.cli("INFO", "commandstats")["cmdstat_script|load"]["calls"] == 1


@pytest.mark.parametrize("colour", COLOURS)
def test_warming_up_fails_in_its_time_and_succeeds_once_the_server_is_there(server: Server, colour: str) -> None:
    server.kill()
    with Asker(colour, "7/minute log", url_of(server.port)) as asker:
        warm_up = asker.store.warm_up if colour == "sync" else lambda: asker._do(asker.store.warm_up_async)
        with pytest.raises(StoreError):
            warm_up()
        server.restart()
        warm_up()
        assert asker.hit("key").degraded == ""


FORKING = """
import asyncio, os, sys
from headgate import AsyncLimiter, Limiter

colour, url = sys.argv[1:]
if colour == "sync":
    limiter = Limiter("7/minute log", store=url)
    hit = limiter.hit
else:
    limiter = AsyncLimiter("7/minute log", store=url)
    hit = lambda key: asyncio.run(limiter.hit(key))
assert hit("key").degraded == ""
print("forks", flush=True)
input()
for _ in range(2):
    if os.fork() == 0:
        decisions = [hit("key") for _ in range(5)]
        told = {decision.degraded for decision in decisions}
        print(sum(map(bool, decisions)), *told, flush=True)
        os._exit(0)
    os.wait()
print(sum(bool(hit("key")) for _ in range(5)))
"""


@pytest.mark.parametrize("colour", COLOURS)
def test_a_forked_process_makes_its_own_first_connection(proxy: TcpProxy, colour: str) -> None:
    import subprocess

    with subprocess.Popen(
        [sys.executable, "-c", FORKING, colour, url_of(proxy.port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "forks\n"
        proxy.delay_greeting(GREETING_S)
        accepted = proxy.accepted
        output, errors = process.communicate("\n", timeout=30)
    lines = output.splitlines()
    assert [line.strip() for line in lines[:2]] == ["5", "1"], errors
    assert lines[2] == "0"
    assert proxy.accepted - accepted >= 2


def test_a_closed_limiter_makes_a_first_connection_again(proxy: TcpProxy) -> None:
    limiter = Limiter("7/minute log", store=url_of(proxy.port))
    assert limiter.hit("key").degraded == ""
    limiter.close()
    proxy.delay_greeting(GREETING_S)
    assert limiter.hit("key").degraded == ""
    limiter.close()
