"""uvicorn and gunicorn with several workers: one limit for all of them, exactly, restarts included."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from subjects import KINDS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif("shared" not in KINDS, reason="the shared store needs the native core"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = {
    "uvicorn": ["uvicorn", "asgi_workers:app", "--workers", "2", "--log-level", "warning", "--port"],
    "gunicorn": ["gunicorn", "wsgi_workers:app", "-w", "2", "--log-level", "warning", "-b"],
    "gunicorn, threads": ["gunicorn", "wsgi_workers:app", "-w", "2", "--threads", "4", "-b"],
    "gunicorn, preloaded": ["gunicorn", "wsgi_workers:app", "-w", "2", "--preload", "-b"],
}
THREADS = 8
REQUESTS_EACH = 50
START_WITHIN_S = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int) -> tuple[int, str]:
    """(status, the worker that answered), over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/", headers={"Connection": "close"})
        response = connection.getresponse()
        response.read()
        if response.status == 429:
            assert int(response.headers["Retry-After"]) > 0
        return response.status, response.headers["X-Worker"]
    finally:
        connection.close()


@contextmanager
def running(server: str, zone: Path) -> Iterator[int]:
    """The port of a server that answers, until the end of the block."""
    port = free_port()
    *command, option = SERVERS[server]
    address = str(port) if option == "--port" else f"127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", *command, option, address],
        cwd=EXAMPLES,
        env={**os.environ, "STORE": f"shared://{zone}?size=1MiB"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < deadline, process.communicate(timeout=5)
            time.sleep(0.05)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise


def load(port: int) -> tuple[Counter[int], set[str]]:
    """Statuses of many requests at once, and the workers that answered them."""
    statuses: Counter[int] = Counter()
    workers: set[str] = set()
    lock = threading.Lock()

    def run() -> None:
        for _ in range(REQUESTS_EACH):
            status, worker = ask(port)
            with lock:
                statuses[status] += 1
                workers.add(worker)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses, workers


@pytest.mark.parametrize("server", SERVERS)
def test_all_workers_together_pass_exactly_the_limit_and_a_restart_frees_nothing(server: str, tmp_path: Path) -> None:
    zone = tmp_path / "zone"
    with running(server, zone) as port:
        statuses, workers = load(port)
        assert statuses == {200: 100, 429: THREADS * REQUESTS_EACH - 100}
        deadline = time.monotonic() + START_WITHIN_S
        while len(workers) < 2:  # one may have been slower to start
            status, worker = ask(port)
            assert status == 429 and time.monotonic() < deadline
            workers.add(worker)
    with running(server, zone) as port:  # in the middle of the hour
        statuses, _ = load(port)
        assert statuses == {429: THREADS * REQUESTS_EACH}
