"""The integrations as a typed program uses them: checked by mypy and pyright, never run."""

from __future__ import annotations

from typing import Annotated, assert_type

import httpx
import requests
from fastapi import APIRouter, Depends, FastAPI
from flask import Flask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headgate import Decision, Limiter
from headgate.http.client.limit_fields import AnnouncedLimits, read_limit_fields
from headgate.http.keys import api_key, first_of, portable
from headgate.integrations import fastapi, flask, starlette
from headgate.integrations.aiohttp_client import RateLimitMiddleware
from headgate.integrations.httpx import AsyncRateLimitTransport, RateLimitTransport
from headgate.integrations.jwt import claim
from headgate.integrations.requests import RateLimitAdapter
from headgate.policy.request import Request as Asked

who = first_of(claim("sub", key="a secret of 32 bytes or more, kept", algorithms=["HS256"]), api_key())

app = FastAPI(dependencies=[Depends(fastapi.rate_limit("1000/hour", scope="all"))])
limits = fastapi.RateLimits(store="memory://", key=who, headers=("draft-11", "x-delta"))
router = APIRouter(dependencies=[Depends(limits("100/minute"))], responses=limits.responses)
limits.install(app)


@router.get("/items/{item_id}")
async def item(item_id: int, decision: Annotated[Decision | None, Depends(limits("5/second"))]) -> dict[str, int]:
    return {"item": item_id}


def by_client(request: Request) -> str:
    return request.client.host if request.client else "-"


async def by_state(request: Request) -> tuple[str, str]:
    return "user", str(request.state.user)


@portable
def by_place(request: Asked) -> tuple[str, str]:
    return request.client_ip, request.endpoint


of_starlette = [limits("1/second", key=key) for key in (by_client, by_place)]
later = limits("1/second", key=by_state, cost=lambda request: len(request.url.path), exempt=lambda: False)

fastapi.rate_limit("10/second", colour="red")  # type: ignore[call-arg]  # pyright: ignore

site = Flask("site")
of_views = flask.RateLimits(site, default="100/minute")


@site.get("/")
@of_views("10/second", override=True)
def index() -> str:
    return "hello"


assert_type(index(), str)


@starlette.rate_limit("10/second")
async def endpoint(request: Request) -> Response:
    return PlainTextResponse("hello")


httpx.Client(transport=RateLimitTransport("10/second", retries=1, timeout=5.0))
httpx.Client(transport=RateLimitTransport(Limiter("10/second")))
httpx.AsyncClient(transport=AsyncRateLimitTransport("10/second", adaptive=True))
requests.Session().mount("https://", RateLimitAdapter("10/second", key=lambda request: ("api", 1)))
RateLimitMiddleware("10/second", timeout=None)
assert_type(read_limit_fields({"Retry-After": "3"}), AnnouncedLimits | None)
