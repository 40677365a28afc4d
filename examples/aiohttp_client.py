"""A session that keeps to five requests a second, all asked for at once: `URL=... python aiohttp_client.py`."""

import asyncio
import os

from aiohttp import ClientSession

from headgate.integrations.aiohttp_client import RateLimitMiddleware

URL = os.environ.get("URL", "http://127.0.0.1:8000/")


async def main():
    async with ClientSession(middlewares=(RateLimitMiddleware("5/second"),)) as session:
        for response in await asyncio.gather(*(session.get(URL) for _ in range(8))):
            print(response.status)
            response.release()


asyncio.run(main())
