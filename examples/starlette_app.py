"""Limits of endpoints and mounts: `uvicorn starlette_app:app`."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from headgate.integrations.starlette import RateLimits, RouteLimit

limits = RateLimits(key=lambda request: request.headers.get("X-User-Id"))


@limits("5/minute")
async def item(request):
    return PlainTextResponse(f"item {request.path_params['item_id']}\n")


everything = [Middleware(RouteLimit, limits="100/minute", rate_limits=limits, name="all", scope="all")]
app = Starlette(routes=[Mount("/items", routes=[Route("/{item_id:int}", item)])], middleware=everything)
