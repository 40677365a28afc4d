"""Limits before any ASGI application: `uvicorn asgi_middleware:app`."""

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headgate.http.asgi import RateLimitMiddleware


async def read(request):
    return PlainTextResponse("hello\n")


app = Starlette(routes=[Route("/", read)])
app.add_middleware(RateLimitMiddleware, limits="5/minute", key=lambda request: request.headers.get("X-User-Id"))
