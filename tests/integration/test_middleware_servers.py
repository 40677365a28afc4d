"""The middlewares on real servers: the examples, as a user runs them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import served

from subjects import parse_list

pytestmark = pytest.mark.integration
SERVERS = {
    "uvicorn": ["uvicorn", "asgi_middleware:app", "--log-level", "warning", "--port", "PORT"],
    "gunicorn": ["gunicorn", "wsgi_middleware:app", "-b", "127.0.0.1:PORT"],
    "gunicorn, threads": ["gunicorn", "wsgi_middleware:app", "--threads", "4", "-b", "127.0.0.1:PORT"],
}


@pytest.mark.parametrize("server", SERVERS)
def test_exactly_the_limit_passes_and_every_response_reports_what_remains(server: str) -> None:
    with served(SERVERS[server]) as client:
        responses = [client.get("/", headers={"X-User-Id": "u1"}) for _ in range(7)]
        assert [response.status_code for response in responses] == [200] * 5 + [429] * 2
        remaining = [parse_list(response.headers["RateLimit"])[0][1]["r"] for response in responses]
        assert remaining == [4, 3, 2, 1, 0, 0, 0]
        assert all(response.text == "hello\n" for response in responses[:5])
        assert 1 <= int(responses[-1].headers["Retry-After"]) <= 120
        assert responses[-1].json()["violated-policies"] == ["default"]
        head = client.head("/", headers={"X-User-Id": "u1"})
        assert (head.status_code, head.content) == (429, b"")
        again = client.get("/", headers={"X-User-Id": "u2"})
        assert again.status_code == 200, "the connection stays usable after a HEAD that was refused"
        with ThreadPoolExecutor(8) as pool:
            counts = Counter(
                response.status_code
                for response in pool.map(lambda _: client.get("/", headers={"X-User-Id": "u3"}), range(40))
            )
        assert counts == {200: 5, 429: 35}
