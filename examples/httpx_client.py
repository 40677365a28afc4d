"""A client that keeps to five requests a second, and to what the server says: `URL=... python httpx_client.py`."""

import os

import httpx

from headgate.integrations.httpx import RateLimitTransport

with httpx.Client(transport=RateLimitTransport("5/second")) as client:
    for _ in range(8):
        print(client.get(os.environ.get("URL", "http://127.0.0.1:8000/")).status_code)
