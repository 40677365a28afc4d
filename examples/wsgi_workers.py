"""One limit for all workers: `gunicorn wsgi_workers:app --workers 4`."""

import os
from math import ceil

from headgate import Limiter

limiter = Limiter("100/hour", store=os.environ.get("STORE", "shared:///dev/shm/wsgi-workers?size=4MiB"))


def app(environ, start_response):
    decision = limiter.hit(environ["REMOTE_ADDR"])
    headers = [("X-Worker", str(os.getpid()))]
    if not decision:
        headers.append(("Retry-After", str(ceil(decision.retry_after))))
    start_response("200 OK" if decision else "429 Too Many Requests", headers)
    return [f"{decision.remaining} left\n".encode()]
