"""Limits in aiohttp: `python aiohttp_app.py [port]`."""

import sys

from aiohttp import web

from headgate.http.keys import header
from headgate.integrations.aiohttp import rate_limit, setup


@rate_limit("5/minute", key=header("X-User-Id"))
async def search(request):
    return web.Response(text="hello\n")


app = web.Application()
app.router.add_get("/", search)
setup(app, limits="1000/minute")
if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]) if sys.argv[1:] else 8080)
