"""One limit for all workers: `uvicorn asgi_workers:app --workers 4`."""

import os
from math import ceil

from headgate import Limiter

limiter = Limiter("100/hour", store=os.environ.get("STORE", "shared:///dev/shm/asgi-workers?size=4MiB"))


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    decision = limiter.hit(scope["client"][0])
    headers = [(b"x-worker", str(os.getpid()).encode())]
    if not decision:
        headers.append((b"retry-after", str(ceil(decision.retry_after)).encode()))
    await send({"type": "http.response.start", "status": 200 if decision else 429, "headers": headers})
    await send({"type": "http.response.body", "body": f"{decision.remaining} left\n".encode()})
