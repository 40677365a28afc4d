"""Limits in Litestar: `uvicorn litestar_app:app`."""

from litestar import Litestar, get

from headgate.http.keys import header
from headgate.integrations.litestar import RateLimitPlugin, RateLimits

rate_limit = RateLimits(key=header("X-User-Id"))


@get("/", middleware=[rate_limit("5/minute")])
async def search() -> str:
    return "hello\n"


app = Litestar([search], plugins=[RateLimitPlugin(limits="1000/minute", rate_limits=rate_limit)])
