"""Applications whose requests wait for the rules of a policy, which the tests of real servers run."""

from __future__ import annotations

import time
from typing import Any

import flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headgate import AsyncGate, Gate
from headgate.http import asgi, wsgi

POLICY = {
    "version": 1,
    "identities": {"user": {"header": "X-User"}},
    "rules": [
        {"name": "slow", "match": {"path": "/slow"}, "by": ["user"], "limits": "1 concurrent", "wait": "1h"},
        {"name": "rate", "match": {"path": "/rate"}, "by": ["user"], "limits": "5/second bucket", "wait": "10s"},
    ],
}
_gate = AsyncGate(POLICY)
_threads_gate = Gate(POLICY)


async def _slow(request: Any) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def _waiting(request: Any) -> PlainTextResponse:
    return PlainTextResponse(str(_gate._waits.waiting))


async def _hold(request: Any) -> PlainTextResponse:
    held = await _gate.reserve(_asked(request.query_params["user"]), lease=3600)
    return PlainTextResponse(held.id)


async def _free(request: Any) -> PlainTextResponse:
    return PlainTextResponse((await _gate.cancel(request.query_params["id"])).outcome)


def _asked(user: str) -> Any:
    from headgate import Request

    return Request("GET", "/slow", headers={"X-User": user})


async def _rate(request: Any) -> PlainTextResponse:
    return PlainTextResponse("rate")


asgi_app = asgi.RateLimitMiddleware(
    Starlette(
        routes=[
            Route("/slow", _slow, methods=["GET", "POST"]),
            Route("/rate", _rate),
            Route("/waiting", _waiting),
            Route("/hold", _hold),
            Route("/free", _free),
        ]
    ),
    policy=_gate,
)

_flask = flask.Flask(__name__)


@_flask.get("/slow")
def slow() -> str:
    time.sleep(0.2)
    return "slow"


@_flask.get("/rate")
def rate() -> str:
    return "rate"


wsgi_app = wsgi.RateLimitMiddleware(_flask.wsgi_app, policy=_threads_gate)
