"""The loads for the profile of the native core's hot paths: `python -m benchmarks.training LOAD`.

They are no benchmarks: they have requests and limits of their own, and share no policy with them but that of the
example shop, so benchmarks measure code that was optimized for other loads. `scripts/profile-native` runs them on a
native core that counts.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from benchmarks.servers import redis_server, wrk
from headgate import AsyncLimiter, Limiter, SharedStore
from headgate.cli.commands import headgate as command
from headgate.http.asgi import RateLimitMiddleware
from headgate.http.wsgi import RateLimitMiddleware as WsgiRateLimitMiddleware
from headgate.integrations.fastapi import rate_limit as limit_dependency
from headgate.integrations.starlette import rate_limit
from headgate.llm import LlmGate, Usage
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.request import Request

SHOP = Path(__file__).parents[1] / "examples" / "shop.yaml"
WORKSPACE: dict[str, Any] = {
    "version": 1,
    "client_ip": {"header": "X-Forwarded-For", "trusted_proxies": ["192.0.2.0/24"]},
    "identities": {
        "tenant": {"header": "X-Tenant"},
        "session": {"cookie": "sid", "secret": True},
        "page": {"query": "page"},
        "who": {"first_of": ["session", "tenant", "ip"]},
    },
    "tiers": {"from": {"header": "X-Plan"}, "default": "small"},
    "rules": [
        {"name": "export", "match": {"path": "/export/{kind}", "method": ["POST", "PUT"]}, "by": ["tenant"], "cost": 5,
         "limits": "300/minute bucket; 5000/day fixed"},
        {"name": "documents", "match": {"path": "/documents/{id}/**"}, "by": ["who", "endpoint"],
         "limits": {"small": "40/second log", "large": "5000/second"}},
        {"name": "pages", "match": {"path": "/list"}, "by": ["tenant", "page"], "limits": "600/minute fixed"},
        {"name": "everybody", "by": ["ip"], "limits": "2000/minute; 90000/hour bucket"},
        {"name": "old", "match": {"host": "old.example.com"}, "by": ["ip"], "limits": "10/minute"},
    ],
}  # fmt: skip
LIMITS = ("70/minute", "70/minute fixed", "70/minute log", "70/minute bucket", "70/minute queue 20")
ROUNDS = 60_000


def limiters() -> None:
    """Every algorithm, on few keys and on many, with requests that pass and requests that are refused."""
    chooser = random.Random(1)
    keys: list[Any] = [f"client-{int(9_000 * chooser.random() ** 3)}" for _ in range(ROUNDS // 4)]
    keys += [("tenant", number % 70, "reads") for number in range(ROUNDS // 8)]
    for text in (*LIMITS, "70/minute; 900/hour bucket"):
        limiter = Limiter(text)
        for key in keys:
            limiter.hit(key)
        for key in keys[::4]:
            limiter.peek(key)
            limiter.hit(key, 3)
        limiter.hit_many(keys)

    async def call_all() -> None:
        limiter = AsyncLimiter("50/second bucket")
        for key in keys:
            await limiter.hit(key)

    asyncio.run(call_all())


def holds() -> None:
    """Units held and settled, and places in flight."""
    for text in ("4000/minute", "4000/minute bucket", "4000/minute fixed", "6 concurrent", "9000/day; 3 concurrent"):
        limiter = Limiter(text)
        for number in range(ROUNDS // 10):
            hold = limiter.reserve(f"job-{number % 90}", 3)
            if hold:
                hold.extend(30)
                hold.cancel() if number % 5 == 0 else hold.commit(number % 4 if "concurrent" not in text else None)


def shared() -> None:
    """A zone of shared memory."""
    with tempfile.TemporaryDirectory() as folder:
        store = SharedStore(Path(folder, "zone"), size=32 << 20)
        for text in LIMITS[:4]:
            limiter = Limiter(text, store=store)
            for number in range(ROUNDS // 4):
                limiter.hit(f"client-{number * number % 5_003}")
        limiter = Limiter("4000/minute", store=store)
        for number in range(ROUNDS // 20):
            limiter.reserve(f"job-{number % 90}", 3).commit(number % 4)


def _requests(count: int) -> Iterator[Request]:
    """Requests of a workspace's clients and of a scanner."""
    chooser = random.Random(2)
    for _ in range(count):
        client = int(800 * chooser.random() ** 2)
        headers = {
            "Host": "files.example.com",
            "Accept": "*/*",
            "X-Forwarded-For": f"198.51.{client % 9}.{client % 251}",
        }
        if chooser.random() < 0.7:
            headers |= {"X-Tenant": f"t{client % 40}", "X-Plan": ("small", "large")[client % 2]}
        if chooser.random() < 0.5:
            headers["Cookie"] = f"theme=dark; sid={client:032x}"
        path, method = chooser.choice((
            (f"/documents/{client}/versions/{chooser.randrange(40)}", "GET"), ("/export/pdf", "POST"), ("/", "GET"),
            (f"/list?sort=name&page={chooser.randrange(9)}", "GET"), ("/static//app.js", "GET"), ("/health", "HEAD"),
            (f"/a%20b/{chooser.randrange(10**6):x}/../wp-login.php", "GET"), ("/api/search/oak?q=1", "GET"),
            ("/api/login", "POST"),
        ))  # fmt: skip
        yield Request(method, path, headers=headers, client_ip=chooser.choice(("192.0.2.7", f"2001:db8::{client:x}")))


def gates() -> None:
    """Decisions of policies on requests."""
    requests = list(_requests(ROUNDS // 4))
    for policy in (WORKSPACE, SHOP):
        gate = Gate(policy)
        for request in requests:
            gate.hit(request)
        for request in requests[::8]:
            gate.peek(request)
            gate.hit(Request(request.method, request.path, headers=request.headers, client_ip=request.client_ip), 2)
            hold = gate.reserve(request)
            if hold:
                hold.commit()

    async def call_all() -> None:
        gate = AsyncGate(WORKSPACE)
        for request in requests:
            await gate.hit(request)

    asyncio.run(call_all())


async def _receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send(message: Any) -> None:
    pass


def _call_asgi(application: Any, requests: list[Request]) -> None:
    async def call_all() -> None:
        for request in requests:
            path, _, query = request.path.partition("?")
            await application(
                {
                    "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
                    "server": ("10.1.2.3", 80), "client": (str(request.client_ip), 40_000), "scheme": "http",
                    "method": request.method, "root_path": "", "path": path, "raw_path": path.encode(),
                    "query_string": query.encode(), "state": {},
                    "headers": [(name.lower().encode(), value.encode()) for name, value in request.headers.items()],
                },
                _receive, _send,
            )  # fmt: skip

    asyncio.run(call_all())


def asgi() -> None:
    """ASGI applications behind limits, a policy, and limits of their routes."""

    async def endpoint(request: Any) -> PlainTextResponse:
        return PlainTextResponse("a page")

    async def page() -> str:
        return "a page"

    requests = list(_requests(ROUNDS // 10))
    application = Starlette(routes=[Route("/", endpoint), Route("/documents/{path:path}", endpoint)])
    limited = rate_limit("900/second; 50000/hour")(endpoint)
    routes = [Mount("/documents", routes=[Route("/{path:path}", limited)]), Route("/", limited)]
    on_fastapi = FastAPI(openapi_url=None)
    for path in ("/", "/list", "/documents/{number}/versions/{version}"):
        on_fastapi.get(path, dependencies=[Depends(limit_dependency("900/second"))])(page)
    for limited_application in (
        RateLimitMiddleware(application, limits="30/second; 50000/hour bucket"),
        RateLimitMiddleware(application, limits="5000/second bucket"),
        RateLimitMiddleware(application, policy=WORKSPACE),
        RateLimitMiddleware(application, policy=str(SHOP)),
        Starlette(routes=routes),
        on_fastapi,
    ):
        _call_asgi(limited_application, requests)


def wsgi() -> None:
    """A WSGI application behind limits and a policy."""

    def application(environ: Any, start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "6")])
        return [b"a page"]

    def start_response(status: str, headers: Any, *error: Any) -> None:
        pass

    for limited in (
        WsgiRateLimitMiddleware(application, limits="30/second; 50000/hour bucket"),
        WsgiRateLimitMiddleware(application, limits="5000/second bucket"),
        WsgiRateLimitMiddleware(application, policy=WORKSPACE),
        WsgiRateLimitMiddleware(application, policy=str(SHOP)),
    ):
        for request in _requests(ROUNDS // 5):
            path, _, query = request.path.partition("?")
            environ: dict[str, Any] = {
                "REQUEST_METHOD": request.method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": query,
                "SERVER_NAME": "10.1.2.3", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
                "REMOTE_ADDR": str(request.client_ip), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(),
                "wsgi.errors": sys.stderr, "wsgi.version": (1, 0), "wsgi.multithread": True,
                "wsgi.multiprocess": False, "wsgi.run_once": False,
            }  # fmt: skip
            environ |= {"HTTP_" + name.upper().replace("-", "_"): value for name, value in request.headers.items()}
            list(limited(environ, start_response))


def calls() -> None:
    """Calls of language models, held and settled."""
    gate = LlmGate(
        {
            "version": 1,
            "llm": {"prices": {"small": {"input": "0.4", "output": "2"}}},
            "rules": [
                {"name": "key", "by": ["key"], "limits": "7000/minute; 4000000 tokens/minute bucket; 9 concurrent"},
                {"name": "team", "by": ["team"], "limits": "90000000 tokens/day; 2 usd/day in UTC"},
            ],
        }
    )
    for number in range(ROUNDS // 4):
        call = gate.reserve("small", key=f"k{number % 50}", team=f"t{number % 9}", input_tokens=80, max_tokens=500)
        if call:
            call.settle_usage(Usage(75, 10 + number % 300))


def logs() -> None:
    """An access log, replayed under two policies."""
    with tempfile.TemporaryDirectory() as folder:
        log, policy = Path(folder, "access.log"), Path(folder, "policy.yaml")
        policy.write_text(json.dumps(WORKSPACE))
        start_time = datetime(2026, 3, 1, tzinfo=UTC)
        with log.open("w") as file:
            for number, request in enumerate(_requests(2 * ROUNDS)):
                time = start_time + timedelta(seconds=number // 7 - number % 3)
                file.write(
                    f"{request.headers['X-Forwarded-For']} - - [{time:%d/%b/%Y:%H:%M:%S %z}] "
                    f'"{request.method} {request.path} HTTP/1.1" 200 {number} "-" "a crawler"\n'
                )
        for one in (SHOP, policy):
            command(["replay", str(log), "--policy", str(one), "--json"], standalone_mode=False)


@contextmanager
def _door(*options: str) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "headgate", "serve", str(SHOP), "--port", "0", "--threads", "1", *options],
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            yield next(match[1] for line in process.stderr if (match := re.search(r"on (http://\S+),", line)))
        finally:
            process.terminate()


def _load_door(url: str) -> None:
    bodies = (
        '{"request": {"method": "GET", "path": "/a/7", "client_ip": "198.51.100.9", "headers": {"X-Tier": "pro"}}}',
        '{"entries": {"user": "u-17", "route": "reads"}}',
    )
    for path in ("/check/default/catalog/7?page=2", "/check/default/api/search/oak", "/check-403/default/about"):
        wrk([url + path], seconds=1, connections=24, clients=30_000, refused=True)
    wrk([url + "/check/default/about"], seconds=0.5, connections=24, refused=True)
    for body in bodies:
        wrk([url + "/v1/check"], seconds=0.7, connections=24, body=body, refused=True)


def door() -> None:
    """The front door, its states in memory."""
    with _door() as url:
        _load_door(url)


def door_on_redis() -> None:
    """The front door, its states in a Redis."""
    with redis_server() as port, _door("--store", f"redis://127.0.0.1:{port}/0") as url:
        _load_door(url)


LOADS = {
    load.__name__: load
    for load in (limiters, holds, shared, gates, asgi, wsgi, calls, logs, door, door_on_redis)
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.training", description=__doc__)
    parser.add_argument("load", choices=LOADS)
    LOADS[parser.parse_args().load]()


if __name__ == "__main__":
    main()
