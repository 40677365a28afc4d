"""Flask, Django and Django REST framework on real servers: the examples, as a user runs them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from raw_requests import connected
from redis_servers import single
from served import EXAMPLES, served

from subjects import parse_list
from until import until
from versions import needs

pytestmark = pytest.mark.integration
GUNICORN = ["gunicorn", "APP", "-b", "127.0.0.1:PORT"]
THREADS = [*GUNICORN, "--threads", "4"]
UVICORN = ["uvicorn", "APP", "--log-level", "warning", "--port", "PORT"]
EXAMPLE_SERVERS = {
    "flask, gunicorn": ("flask_app:app", GUNICORN),
    "flask, gunicorn with threads": ("flask_app:app", THREADS),
    "django, gunicorn": ("django_app:wsgi", GUNICORN),
    "django, gunicorn with threads": ("django_app:wsgi", THREADS),
    "django, uvicorn": ("django_app:asgi", UVICORN),
}


def running(app: str, command: list[str], folder: Path = EXAMPLES) -> AbstractContextManager[httpx.Client]:
    """Run an application on its server, and give a client of it."""
    return served([word.replace("APP", app) for word in command], folder)


def remaining_units(response: httpx.Response) -> int:
    remaining: int = parse_list(response.headers["RateLimit"])[0][1]["r"]
    return remaining


def parallel(client: httpx.Client, times: int, path: str, **headers: str) -> Counter[int]:
    """Send `times` requests, eight at once, and count their statuses."""
    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(lambda _: client.get(path, headers=headers).status_code, range(times)))


@pytest.mark.parametrize("server", EXAMPLE_SERVERS)
def test_exactly_the_limit_passes_and_every_response_reports_what_remains(server: str) -> None:
    app, command = EXAMPLE_SERVERS[server]
    with running(app, command) as client:
        responses = [client.get("/", headers={"X-User-Id": "u1"}) for _ in range(7)]
        assert [response.status_code for response in responses] == [200] * 5 + [429] * 2
        assert [remaining_units(response) for response in responses] == [4, 3, 2, 1, 0, 0, 0]
        assert all(response.text == "hello\n" for response in responses[:5])
        refused = responses[-1]
        assert 1 <= int(refused.headers["Retry-After"]) <= 120
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert refused.json()["violated-policies"] == ["default"]
        head = client.head("/", headers={"X-User-Id": "u1"})
        assert (head.status_code, head.content) == (429, b"")
        assert client.get("/", headers={"X-User-Id": "u2"}).status_code == 200, (
            "the connection stays usable after a HEAD"
        )
        assert parallel(client, 40, "/", **{"X-User-Id": "u3"}) == {200: 5, 429: 35}
        assert parallel(client, 40, "/users/7", **{"X-User-Id": "u4"}) == {200: 20, 429: 20}
        missing = client.get("/nowhere", headers={"X-User-Id": "u5"})
        assert (missing.status_code, remaining_units(missing)) == (404, 19)


@pytest.mark.parametrize("command", [GUNICORN, THREADS], ids=["gunicorn", "gunicorn with threads"])
def test_throttles_count_clients_by_the_address_that_their_proxy_sends(command: list[str]) -> None:
    with running("drf_app:wsgi", command) as client:
        headers = {"X-Forwarded-For": "203.0.113.7", "Accept": "application/json"}
        responses = [client.get("/", headers=headers) for _ in range(6)]
        assert [response.status_code for response in responses] == [200] * 5 + [429]
        assert [remaining_units(response) for response in responses] == [4, 3, 2, 1, 0, 0]
        seconds = int(responses[-1].headers["Retry-After"])
        assert responses[-1].json()["detail"] == f"Request was throttled. Expected available in {seconds} seconds."
        forged = {**headers, "X-Forwarded-For": "192.0.2.1, 203.0.113.7"}
        assert client.get("/", headers=forged).status_code == 429
        assert parallel(client, 40, "/", **{**headers, "X-Forwarded-For": "203.0.113.8"}) == {200: 5, 429: 35}


SITE = """
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from headgate.integrations.django import rate_limit

MIDDLEWARE = ["headgate.integrations.django.RateLimitMiddleware"]
HEADGATE = {"limits": "1000/minute", "store": "STORE"}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=MIDDLEWARE, HEADGATE=HEADGATE)
both = rate_limit("LIMIT/minute", scope="both")


@both
def plain(request):
    return HttpResponse("read")


@both
async def awaited(request):
    return HttpResponse("read")


urlpatterns = [path("sync", plain), path("async", awaited), path("", lambda request: HttpResponse("home"))]
wsgi, asgi = get_wsgi_application(), get_asgi_application()
"""


def test_all_servers_and_colours_share_one_limit_on_redis(tmp_path: Path) -> None:
    with single() as redis:
        site = SITE.replace("STORE", f"redis://127.0.0.1:{redis.port}/0?timeout=10s").replace("LIMIT", "40")
        (tmp_path / "shared_site.py").write_text(site)
        two = [*THREADS, "--workers", "2"]
        with running("shared_site:wsgi", two, tmp_path) as one, running("shared_site:asgi", UVICORN, tmp_path) as other:
            counts: Counter[int] = Counter()
            with ThreadPoolExecutor(4) as pool:
                pairs = [(client, path) for client in (one, other) for path in ("/sync", "/async")]
                for statuses in pool.map(lambda pair: parallel(pair[0], 20, pair[1]), pairs):
                    counts += statuses
            assert counts == {200: 40, 429: 40}


WAITING = """
import os, threading
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path
from headgate import MemoryStore
from headgate.integrations.django import rate_limit

MIDDLEWARE = ["headgate.integrations.django.RateLimitMiddleware"]
HEADGATE = {"store": os.environ.get("STORE") or MemoryStore()}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=MIDDLEWARE, HEADGATE=HEADGATE)
requested, answered = [], []


def key_of(request):
    requested.append(1)
    return "key"


@rate_limit("1 per 3 seconds bucket", key=key_of, wait=60)
def slow(request):
    answered.append(1)
    return HttpResponse("slow")


async def counted(request):
    return HttpResponse(f"{len(requested)} {len(answered)}")


urlpatterns = [path("slow", slow), path("counted", counted)]
asgi = get_asgi_application()
"""


@needs("django", "5.0", "a client that disconnects cancels its request")
@pytest.mark.parametrize("zone", [False, True], ids=["memory", "shared"])
def test_a_sync_view_on_an_event_loop_waits_no_longer_than_its_client(
    zone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE", f"shared://{tmp_path / 'zone'}" if zone else "")
    (tmp_path / "waiting_site.py").write_text(WAITING)
    with running("waiting_site:asgi", UVICORN, tmp_path) as client, ThreadPoolExecutor() as threads:
        assert client.get("/slow").text == "slow"
        abandoned = [connected(client.base_url, "GET /slow HTTP/1.1\nHost: a\n\n") for _ in range(3)]
        until(lambda: client.get("/counted").text == "4 1")
        waiting_request = threads.submit(client.get, "/slow")
        until(lambda: client.get("/counted").text == "5 1")
        for connection in abandoned:
            connection.close()
        assert waiting_request.result(20).text == "slow"
        assert client.get("/counted").text == "5 2", "no view has run for a client that disconnected"
