"""FastAPI with a route that answers a dict and one that reads and writes models: alone, and behind limiters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyrate_limiter
from fastapi import Depends, FastAPI, Request, Response
from fastapi.requests import HTTPConnection
from fastapi_limiter.depends import RateLimiter
from pydantic import BaseModel, Field
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from throttled.asyncio.contrib.fastapi import Limiter as ThrottledLimiter
from throttled.asyncio.contrib.fastapi import RateLimitExceededError, rate_limit_exceeded_handler
from throttled.asyncio.contrib.fastapi import RateLimitMiddleware as ThrottledMiddleware
from throttled.asyncio.contrib.fastapi import get_remote_address as throttled_address

from benchmarks.web_apps import TEXT
from benchmarks.web_apps.constant_headers import AsgiConstantHeaders
from benchmarks.web_apps.ten_rules import ten_rules
from headgate.http.asgi import RateLimitMiddleware
from headgate.integrations.fastapi import rate_limit

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Item(BaseModel):
    """A line of an order."""

    name: str = Field(min_length=1, max_length=80)
    price: float = Field(gt=0)
    quantity: int = Field(ge=1, le=1000)
    tags: list[str] = []


class Order(BaseModel):
    """An order of a client."""

    customer: str
    express: bool = False
    items: list[Item]


class Receipt(BaseModel):
    """The response to an order."""

    customer: str
    items: list[Item]
    total: float


def bare(a_minute: int) -> FastAPI:
    """The application alone."""
    return _application()


def constant_headers(a_minute: int) -> FastAPI:
    """The application, and the two lines that a limiter adds, as constants."""
    application = _application()
    application.add_middleware(AsgiConstantHeaders)
    return application


def headgate(a_minute: int) -> FastAPI:
    """Headgate's middleware."""
    application = _application()
    application.add_middleware(RateLimitMiddleware, limits=f"{a_minute}/minute")
    return application


def headgate_policy(a_minute: int) -> FastAPI:
    """Headgate's middleware with a policy."""
    application = _application()
    application.add_middleware(RateLimitMiddleware, policy=ten_rules(a_minute))
    return application


def empty_dependency(a_minute: int) -> FastAPI:
    """A dependency of a route that takes what Headgate's takes, and does nothing."""
    return _application(dependencies=[Depends(_nothing)])


async def _nothing(connection: HTTPConnection, response: Response) -> None:
    pass


def headgate_dependency(a_minute: int) -> FastAPI:
    """Headgate's dependency of a route."""
    return _application(dependencies=[Depends(rate_limit(f"{a_minute}/minute"))])


def slowapi_middleware(a_minute: int) -> FastAPI:
    """slowapi, by the faster of its two middlewares."""
    limiter = Limiter(get_remote_address, default_limits=[f"{a_minute}/minute"], headers_enabled=True)
    application = _with_slowapi(_application(), limiter)
    application.add_middleware(SlowAPIASGIMiddleware)
    return application


def slowapi_decorator(a_minute: int) -> FastAPI:
    """slowapi, by the decorator of a route, which then takes the request and the response."""
    limiter = Limiter(get_remote_address, headers_enabled=True)
    return _with_slowapi(_application(limiter.limit(f"{a_minute}/minute")), limiter)


def fastapi_limiter(a_minute: int) -> FastAPI:
    """fastapi-limiter, as a dependency, on the bucket in memory that pyrate-limiter makes."""
    rate = pyrate_limiter.Rate(a_minute, pyrate_limiter.Duration.MINUTE)
    return _application(dependencies=[Depends(RateLimiter(limiter=pyrate_limiter.Limiter(rate)))])


def throttled(a_minute: int) -> FastAPI:
    """throttled-py, by the decorator of a route and the middleware that writes its fields."""
    limiter = ThrottledLimiter(f"{a_minute}/m", key_func=throttled_address)
    application = _application(limiter.limit())
    application.add_middleware(ThrottledMiddleware)
    handler: Any = rate_limit_exceeded_handler
    application.add_exception_handler(RateLimitExceededError, handler)
    return application


async def _hello() -> dict[str, str]:
    return {"message": TEXT}


async def _order(order: Order) -> Receipt:
    total = sum(item.price * item.quantity for item in order.items)
    return Receipt(customer=order.customer, items=order.items, total=total)


async def _full_hello(request: Request, response: Response) -> dict[str, str]:
    return {"message": TEXT}


async def _full_order(request: Request, response: Response, order: Order) -> Receipt:
    return await _order(order)


def _application(decorator: Decorator | None = None, dependencies: list[Any] | None = None) -> FastAPI:
    hello, order = (_hello, _order) if decorator is None else (decorator(_full_hello), decorator(_full_order))
    application = FastAPI()
    application.get("/", dependencies=dependencies)(hello)
    application.post("/orders", dependencies=dependencies, response_model=Receipt)(order)
    return application


def _with_slowapi(application: FastAPI, limiter: Limiter) -> FastAPI:
    application.state.limiter = limiter
    handler: Any = _rate_limit_exceeded_handler
    application.add_exception_handler(RateLimitExceeded, handler)
    return application
