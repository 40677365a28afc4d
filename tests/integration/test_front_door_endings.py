"""The front door under load, drained or with a worker that is killed: what was answered is what was counted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from running import RunningService, running_service

pytestmark = pytest.mark.integration

QUOTA = 10_000_000
POLICY = f"version: 1\nrules:\n  - {{name: all, by: [], limits: {QUOTA}/day fixed}}\n"
CLIENTS = 8


class ClientResult(NamedTuple):
    """The number of answered and failed requests of one client."""

    answered: int
    failed: int


@contextmanager
def load(service: RunningService) -> Iterator[tuple[threading.Event, list[Future[ClientResult]]]]:
    """Clients that send one request after another, on persistent connections, until stopped or none is accepted."""
    over = threading.Event()
    address = urlsplit(service.url)

    def send_requests(_: int) -> ClientResult:
        answered = failed = 0
        while not over.is_set():
            connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
            try:
                connection.connect()
            except ConnectionRefusedError:
                break
            try:
                while not over.is_set() and connection.sock is not None:  # HTTPConnection closes where it is told to
                    connection.request("GET", "/check/default")
                    answer = connection.getresponse()
                    answer.read()
                    assert answer.status == 200
                    answered += 1
            except (OSError, HTTPException):
                failed += 1
            finally:
                connection.close()
        return ClientResult(answered, failed)

    with ThreadPoolExecutor(CLIENTS) as pool:
        try:
            yield over, [pool.submit(send_requests, number) for number in range(CLIENTS)]
        finally:
            over.set()


def counted(service: RunningService) -> int:
    """How many requests were charged before this one."""
    left = service.client.get("/check/default").headers["ratelimit"]
    return QUOTA - int(left.partition(";r=")[2].partition(";")[0]) - 1


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


def two_workers(tmp_path: Path) -> tuple[str, ...]:
    return ("--threads", "2", "--workers", "2", "--store", f"shared://{tmp_path / 'zone'}?size=4MiB")


def test_a_drain_under_load_answers_all_that_it_counts(policy: Path, tmp_path: Path) -> None:
    with running_service(policy, *two_workers(tmp_path), "--drain", "1") as service, load(service) as (_, clients):
        time.sleep(0.5)
        assert service.stop() == 0
        results = [client.result(30) for client in clients]
    assert [client.failed for client in results] == [0] * CLIENTS
    answered = sum(client.answered for client in results)
    assert answered > 50
    with running_service(policy, *two_workers(tmp_path)) as successor:
        assert counted(successor) == answered


def test_a_worker_that_is_killed_under_load_loses_only_requests_that_it_was_answering(
    policy: Path, tmp_path: Path
) -> None:
    with running_service(policy, *two_workers(tmp_path)) as service:
        pid = service.process.pid
        with load(service) as (over, clients):
            for _ in range(2):
                time.sleep(0.5)
                [victim, _] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                lines_before = len(service.lines)
                os.kill(int(victim), signal.SIGKILL)
                service.wait_for("started again", after=lines_before)
            time.sleep(0.5)
            over.set()
            results = [client.result(30) for client in clients]
        assert max(client.failed for client in results) <= 2  # one for each worker that was killed
        answered, failed = (sum(column) for column in zip(*results, strict=True))
        assert answered > 50
        assert answered <= counted(service) <= answered + failed
