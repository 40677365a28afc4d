"""Applications of Starlette and FastAPI, asked without a server; and which scopes requests were counted under."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from headgate.http.server.enforcer import Enforcer
from headgate.http.server.scope_exchange import RoutePassed, ScopeExchange
from headgate.integrations import fastapi
from headgate.integrations.starlette import limits
from headgate.integrations.starlette.places import places

HOW = ("natively", "step by step")
"""How a limit is asked: in one native call where that can be, or never so."""


def options_of(how: str) -> dict[str, Any]:
    """What has limits asked in this way."""
    return {} if how == "natively" else {"exempt": lambda request: False}


def note_scopes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the template of each request is added that is judged from now on."""
    scopes: list[str] = []
    judge = ScopeExchange.judge_route

    def judge_and_note(
        exchange: ScopeExchange, enforcer: Enforcer, scope: Any, kind: Any, template: str, *more: Any, **own: Any
    ) -> Any:
        scopes.append(template)
        return judge(exchange, enforcer, scope, kind, template, *more, **own)

    monkeypatch.setattr(ScopeExchange, "judge_route", judge_and_note)

    def noting(*told: Any, **own: Any) -> Any:
        return _Noting(places(*told, **own), scopes)

    for module in (fastapi, limits):
        monkeypatch.setattr(module, "places", noting)
    return scopes


class _Noting:
    """Places that note what is decided at them natively, before there is an exchange."""

    def __init__(self, own: Any, scopes: list[str]) -> None:
        self.of = own.of
        self._own = own
        self._scopes = scopes

    def decide(self, scope: Any) -> Any:
        asked = self._own.decide(scope)
        if RoutePassed is not None and type(asked) is RoutePassed:
            self._scopes.append(asked.place.template)
        return asked


def ask(
    app: Any, path: str = "/", method: str = "GET", *, client: str = "203.0.113.9", root_path: str = "", **options: Any
) -> httpx.Response:
    """One request; an exception that nobody handles is a 500."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(client, 1234), root_path=root_path, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as session:
            return await session.request(method, path, **options)

    return asyncio.run(asked())


def statuses(app: Any, *paths: str, **options: Any) -> list[int]:
    return [ask(app, path, **options).status_code for path in paths]


def drive(app: Any, path: str, kind: str = "http", **more: Any) -> list[dict[str, Any]]:
    """The messages that an application sends, as they are."""
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
