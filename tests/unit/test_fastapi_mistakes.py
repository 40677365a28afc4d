"""Limits that are written where FastAPI does not check them: the error or the warning says what to write."""

# Annotations are not postponed: FastAPI could not resolve names that are local to a test from their text.

import asyncio
import gc
import inspect
import warnings
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Request, Response

from asgi_requests import drive, statuses
from headgate import ConfigError
from headgate.integrations.fastapi import RateLimit, RateLimits

WRITE_DEPENDS = r"write Depends\(rate_limit\(\.\.\.\)\), as in @app\.get"


@pytest.fixture
def rate_limit() -> RateLimits:
    return RateLimits()


def test_rate_limit_without_its_limit_is_no_dependency(rate_limit: RateLimits) -> None:
    with pytest.raises(ConfigError, match=rf"Depends\(rate_limit\) has no limit: .*{WRITE_DEPENDS}"):
        FastAPI().get("/", dependencies=[Depends(rate_limit)])(lambda: None)
    bare: Any = rate_limit
    with pytest.raises(ConfigError, match=WRITE_DEPENDS):
        FastAPI(dependencies=[bare]).get("/")(lambda: None)


def test_a_limit_is_no_annotation(rate_limit: RateLimits) -> None:
    limit: Any = rate_limit("1/hour")

    def annotated(argument: limit) -> None:
        return None

    def annotated_beside_a_type(argument: Annotated[None, limit]) -> None:
        return None

    for endpoint in (annotated, annotated_beside_a_type):
        with pytest.raises(ConfigError, match=WRITE_DEPENDS):
            FastAPI().get("/")(endpoint)


def test_a_limit_is_no_default_value(rate_limit: RateLimits) -> None:
    app = FastAPI()
    limit = rate_limit("1/hour")

    @app.get("/")
    def endpoint(value: Any = limit) -> None:
        return None

    with pytest.raises(ConfigError, match=WRITE_DEPENDS):
        drive(app, "/")


def test_a_limit_is_no_middleware(rate_limit: RateLimits) -> None:
    middleware: Any = rate_limit("1/hour")
    function, plain = FastAPI(), FastAPI()
    function.middleware("http")(middleware)
    plain.add_middleware(middleware)
    for app in (function, plain):
        with pytest.raises(
            ConfigError, match=r"no middleware: .* limited by app\.add_middleware\(RateLimitMiddleware, "
        ):
            drive(app, "/")
    with pytest.raises(ConfigError, match="no middleware"):  # as Starlette before 0.42 calls one
        middleware(app=plain)


def test_a_limit_that_a_dependency_returns_is_told_once_where_it_was_written(rate_limit: RateLimits) -> None:
    app = FastAPI()

    async def returned_on_the_loop() -> RateLimit:
        return rate_limit("2/hour")

    app.get("/thread", dependencies=[Depends(lambda: rate_limit("1/hour"))])(lambda: None)
    app.get("/loop", dependencies=[Depends(returned_on_the_loop)])(lambda: None)
    for path in ("/thread", "/loop"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            assert statuses(app, path, path) == [200, 200]
            gc.collect()
        [warning] = caught
        assert warning.category is RuntimeWarning and warning.filename == __file__
        assert "limits nothing: write Depends(rate_limit(...))" in str(warning.message)


def test_a_limit_that_was_used_is_dropped_without_a_warning(rate_limit: RateLimits) -> None:
    async def start() -> FastAPI:
        app = FastAPI()
        app.get("/", dependencies=[Depends(rate_limit("1/hour"))])(lambda: None)
        return app

    app = asyncio.run(start())
    assert statuses(app, "/", "/") == [200, 429]
    assert len(rate_limit._made) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del app
        gc.collect()
    assert list(inspect.signature(rate_limit("1/day")).parameters) == ["connection", "response"]
    assert list(inspect.signature(RateLimit).parameters) == ["enforcers", "override", "headers"]


def test_a_limit_that_an_endpoint_makes_and_calls_is_dropped_without_a_warning(rate_limit: RateLimits) -> None:
    app = FastAPI()

    @app.get("/")
    async def endpoint(request: Request, response: Response) -> None:
        await rate_limit("1/hour")(request, response)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert statuses(app, "/", "/") == [200, 429]
        gc.collect()
