"""Requests to applications of Starlette and FastAPI without a server, and the scopes that counted them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from headgate.http.server.enforcer import Enforcer
from headgate.http.server.scope_exchange import RoutePassed, ScopeExchange
from headgate.integrations.fastapi import limits as of_fastapi
from headgate.integrations.starlette import limits
from headgate.integrations.starlette.places import places

CALL_STYLES = ("natively", "step by step")
"""How a limit is called: in one native call where that is possible, or never."""


def options_of(style: str) -> dict[str, Any]:
    """Options for which limits are called in this way."""
    return {} if style == "natively" else {"exempt": lambda request: False}


def record_scopes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets the template of each request that is decided from now on."""
    scopes: list[str] = []
    judge = ScopeExchange.judge_route

    def judge_and_record(
        exchange: ScopeExchange, enforcer: Enforcer, scope: Any, kind: Any, template: str, *more: Any, **options: Any
    ) -> Any:
        scopes.append(template)
        return judge(exchange, enforcer, scope, kind, template, *more, **options)

    monkeypatch.setattr(ScopeExchange, "judge_route", judge_and_record)

    def recording_places(*arguments: Any, **options: Any) -> Any:
        return _RecordingPlaces(places(*arguments, **options), scopes)

    for module in (of_fastapi, limits):
        monkeypatch.setattr(module, "places", recording_places)
    return scopes


class _RecordingPlaces:
    """Places that record native decisions, for which there is no exchange."""

    def __init__(self, wrapped: Any, scopes: list[str]) -> None:
        self.of = wrapped.of
        self._wrapped = wrapped
        self._scopes = scopes

    def decide(self, scope: Any) -> Any:
        outcome = self._wrapped.decide(scope)
        if RoutePassed is not None and type(outcome) is RoutePassed:
            self._scopes.append(outcome.place.template)
        return outcome


def ask(
    app: Any, path: str = "/", method: str = "GET", *, client: str = "203.0.113.9", root_path: str = "", **options: Any
) -> httpx.Response:
    """The response to one request; an unhandled exception is a 500."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(client, 1234), root_path=root_path, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as session:
            return await session.request(method, path, **options)

    return asyncio.run(run())


def statuses(app: Any, *paths: str, **options: Any) -> list[int]:
    return [ask(app, path, **options).status_code for path in paths]


def drive(app: Any, path: str, kind: str = "http", **more: Any) -> list[dict[str, Any]]:
    """The messages that an application sends, unchanged."""
    scope = {
        "type": kind, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
        "client": ("203.0.113.9", 1), "server": ("shop.example", 80), "root_path": "", "scheme": "http",
        "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.4"}, "subprotocols": [], **more,
    }  # fmt: skip
    if kind == "websocket":
        del scope["method"]
    sent: list[dict[str, Any]] = []
    waiting = [{"type": f"{kind}.connect"}] if kind == "websocket" else [{"type": "http.request", "body": b""}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        return {"type": "websocket.disconnect", "code": 1000} if kind == "websocket" else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    asyncio.run(app(scope, receive, send))
    return sent
