"""A session that waits only where the server asks for it: `URL=... python requests_client.py`."""

import os

import requests

from headgate.integrations.requests import RateLimitAdapter

with requests.Session() as session:
    session.mount("https://", RateLimitAdapter())
    session.mount("http://", RateLimitAdapter())
    for _ in range(8):
        print(session.get(os.environ.get("URL", "http://127.0.0.1:8000/"), timeout=10).status_code)
