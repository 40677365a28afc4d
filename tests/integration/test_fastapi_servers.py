"""Limits of routes on a real server: the examples, as a user runs them, and the older versions of FastAPI."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from redis_servers import single
from served import served
from tcp_proxy import TcpProxy

from subjects import parse_list

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
OLDER = ("0.115.14", "0.137.0")


@contextmanager
def running(app: str, *arguments: str, **environment: str) -> Iterator[httpx.Client]:
    """Run an example on uvicorn, which must print no warning, and yield a client of it."""
    command = ["uvicorn", f"{app}:app", "--port", "PORT", "--log-level", "warning", *arguments]
    with served(command, unsaid=("Traceback", "Warning"), environment=environment) as client:
        yield client


@pytest.mark.parametrize("app", ["fastapi_app", "starlette_app"])
def test_exactly_the_limit_passes_and_every_response_reports_what_remains(app: str) -> None:
    with running(app) as client:
        responses = [client.get(f"/items/{number}", headers={"X-User-Id": "u1"}) for number in range(7)]
        assert [response.status_code for response in responses] == [200] * 5 + [429] * 2
        remaining = [parse_list(response.headers["RateLimit"])[0][1]["r"] for response in responses]
        assert remaining == [4, 3, 2, 1, 0, 0, 0]
        refused = responses[-1]
        assert refused.headers.get_list("content-type") == ["application/problem+json"]
        assert refused.json()["violated-policies"] == ["default"]
        assert 1 <= int(refused.headers["Retry-After"]) <= 120
        assert [len(refused.headers.get_list(name)) for name in ("RateLimit", "RateLimit-Policy")] == [1, 1]
        with ThreadPoolExecutor(8) as pool:
            counts = Counter(
                response.status_code
                for response in pool.map(lambda n: client.get(f"/items/{n}", headers={"X-User-Id": "u2"}), range(40))
            )
        assert counts == {200: 5, 429: 35}


def test_fastapi_documents_the_refusal_and_does_not_limit_exempt_routes() -> None:
    with running("fastapi_app") as client:
        responses = [client.get("/health") for _ in range(120)]
        assert {response.status_code for response in responses} == {200}
        assert "RateLimit" not in responses[0].headers
        documented = client.get("/openapi.json").json()["paths"]["/items/{item_id}"]["get"]["responses"]["429"]
        assert set(documented["headers"]) == {"Retry-After", "RateLimit", "RateLimit-Policy"}


def test_workers_share_the_counts_in_shared_memory() -> None:
    zone = Path("/dev/shm") / f"headgate-test-{uuid4().hex}"
    try:
        with running("fastapi_app", "--workers", "2", STORE=f"shared://{zone}?size=4MiB") as client:
            counts = Counter(
                httpx.get(client.base_url.join("/items/1"), headers={"X-User-Id": "u"}).status_code for _ in range(20)
            )
        assert counts == {200: 5, 429: 15}
    finally:
        zone.unlink(missing_ok=True)


def test_a_store_that_is_slow_never_blocks_the_event_loop() -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy(stack.enter_context(single()).port))
        store = f"redis://127.0.0.1:{proxy.port}/0?timeout=10s"
        client = stack.enter_context(running("fastapi_app", STORE=store))
        assert client.get("/items/1").status_code == 200  # the store is connected and has loaded its scripts
        proxy.delay(0.5)
        with ThreadPoolExecutor(4) as pool:
            slow = [pool.submit(client.get, f"/items/{number}") for number in range(3)]
            waited = []
            while not all(answer.done() for answer in slow):
                started = time.monotonic()
                assert client.get("/health").status_code == 200
                waited.append(time.monotonic() - started)
        assert [answer.result().status_code for answer in slow] == [200] * 3
        assert len(waited) > 5 and sorted(waited)[len(waited) // 2] < 0.25
        proxy.delay(0)


@pytest.mark.parametrize("version", OLDER)
def test_older_versions_pass_the_same_tests(version: str) -> None:
    folder = Path(sys.prefix) / f"older-fastapi-{version}"
    assert folder.is_dir(), f"FastAPI {version} is not installed: run scripts/older-fastapi {sys.executable}"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    installed = subprocess.run(
        [sys.executable, "-c", "import fastapi; print(fastapi.__version__)"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert installed.stdout.strip() == version
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-p", "no:xdist"]
    completed = subprocess.run(
        [*command, "tests/unit/test_fastapi.py", "tests/unit/test_starlette.py"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert completed.returncode == 0, completed.stdout
