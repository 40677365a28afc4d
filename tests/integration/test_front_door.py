"""The service behind the native front door: one server to its clients, whichever of the two answers."""

from __future__ import annotations

import re
import resource
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from running import RunningService, running_service

from until import until

pytestmark = pytest.mark.integration

POLICY = """\
version: 1
client_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.9/32]}
rules:
  - {name: login, match: {path: /login}, by: [ip], limits: 1/hour fixed}
  - {name: all, by: [ip], limits: 1000000/hour fixed, default: true}
"""
REQUESTS = [
    ("GET", "/check/default/a", ""),
    ("POST", "/check/default/login", ""),
    ("GET", "/check/default/login", ""),
    ("GET", "/check-403/default/login", ""),
    ("HEAD", "/check/default/login", ""),
    ("GET", "/check/nosuch", ""),
    ("GET", "/check", ""),
    ("POST", "/v1/check", '{"request": {"path": "/a", "client_ip": "203.0.113.1"}}'),
    ("POST", "/v1/check", '{"requests": [{"path": "/a"}, {"path": "/login"}, {"path": "/login"}]}'),
    ("POST", "/v1/check", "{"),
    ("POST", "/v1/check", '{"request": {"uri": "/"}}'),
    ("POST", "/v1/check", ""),
    ("GET", "/v1/check", ""),
    ("POST", "/v1/reserve", '{"request": {"path": "/a", "client_ip": "203.0.113.1"}, "id": "h"}'),
    ("POST", "/v1/commit", '{"id": "none"}'),
    ("GET", "/healthz", ""),
    ("POST", "/healthz", "x"),
    ("GET", "/readyz", ""),
    ("GET", "/nowhere?a=b", ""),
]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


def sockets_of(service: RunningService) -> Path:
    """The folder of the private sockets of a service, which keeps it locked."""
    links = {link.readlink() for link in Path(f"/proc/{service.process.pid}/fd").iterdir()}
    [folder] = [link for link in links if link.name.startswith("headgate-door-")]
    return folder


def figures(service: RunningService) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    families = text_string_to_metric_families(service.client.get("/metrics").text)
    return {(sample.name, *sorted(sample.labels.values())): sample.value for one in families for sample in one.samples}


def comparable(answer: httpx.Response) -> tuple[int, dict[str, str], str]:
    """The parts of an answer that do not depend on its time."""
    fields = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
    text = re.sub(r'("retry-after-ms": ?|"reset_after": ?|"retry_after": ?|"id": ?|;t=|in )[^,};]+', r"\1", answer.text)
    for name in ("retry-after", "ratelimit", "x-ratelimit-problem"):
        if name in fields:
            fields[name] = re.sub(r'\d{2,}|"retry-after-ms":\d+', "", fields[name])
    return answer.status_code, fields, text


def test_a_client_cannot_tell_the_front_door_from_python(policy: Path) -> None:
    with running_service(policy, "--threads", "2") as door, running_service(policy, "--threads", "0") as python:
        assert ", native core, a front door of 2 threads; " in door.lines[0]
        assert python.lines[0].endswith(", native core; ctrl-c ends it\n")
        for method, path, body in REQUESTS:
            answers = [comparable(one.client.request(method, path, content=body)) for one in (door, python)]
            assert answers[0] == answers[1], (method, path, body)


def test_a_service_has_a_front_door_of_one_thread_by_default(policy: Path, tmp_path: Path) -> None:
    store = f"shared://{tmp_path / 'zone'}?size=4MiB"
    for options in ((), ("--workers", "2", "--store", store)):
        with running_service(policy, *options) as service:
            assert service.lines[0].endswith(", a front door of 1 thread; ctrl-c ends it\n")
            assert service.client.get("/check/default/a").status_code == 200
            assert figures(service)["headgate_responses_total", "200", "check"] == 1


def test_the_client_of_the_front_door_is_counted_and_not_whom_it_names(policy: Path) -> None:
    with running_service(policy, "--threads", "1") as service:
        for status, address in [(200, "203.0.113.1"), (429, "203.0.113.2"), (429, "127.0.0.9")]:
            answer = service.client.get("/check/default/login", headers={"Headgate-Door-Peer": address})
            assert answer.status_code == status
        assert service.client.get("/check/default/a", headers={"Headgate-Door-Peer": "no address"}).status_code == 200


def test_what_is_left_to_python_is_counted_by_all_its_fields(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "version: 1\nidentities: {user: {header: Proxy-Authorization, secret: true}}\nrules:\n"
        "  - {name: sockets, match: {header: {Upgrade: websocket}}, by: [], limits: 1/hour fixed}\n"
        "  - {name: users, match: {path: /wait}, by: [user], limits: 1/hour fixed, wait: 1ms}\n"
        "  - {name: joined, match: {header: {Connection: Upgrade}}, by: [], limits: 1/hour fixed}\n"
    )
    with running_service(file) as service:
        for names in ({}, {"Proxy_Authorization": "x"}):  # native checks do not say what a name with `_` is
            sent = {"Upgrade": "websocket", **names}
            assert service.client.get("/check/default", headers=sent).status_code == (429 if names else 200)
        for user, status in (("a", 200), ("b", 200), ("a", 429)):
            sent = {"Proxy-Authorization": user}
            assert service.client.get("/check/default/wait", headers=sent).status_code == status
        for path, status in (("/a", 200), ("/wait", 429)):
            sent = {"Connection": "Upgrade", "Proxy-Authorization": "c"}
            assert service.client.get(f"/check/default{path}", headers=sent).status_code == status


@pytest.mark.parametrize("threads", ["1", "2"])
def test_what_does_not_wait_in_line_never_stands_behind_what_does(tmp_path: Path, threads: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "version: 1\nmax_waiting: 3000\nrules:\n"
        "  - {name: slow, match: {path: /slow}, by: [], limits: 1 per 3 seconds bucket, wait: 1h}\n"
        "  - {name: other, match: {path: /other}, by: [], limits: 1000/hour, wait: 1s}\n"
    )
    with many_descriptors(), running_service(file, "--threads", threads) as service, ExitStack() as stack:
        address = httpx.URL(service.url)
        for _ in range(1100):
            client = stack.enter_context(socket.create_connection((address.host, address.port or 80), timeout=20))
            client.sendall(b"GET /check/default/slow HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: 990 < figures(service)["headgate_waiting_requests",] <= 1000)
        for path in ("/check/default/other", "/"):
            assert service.client.get(path, timeout=10).status_code == 200


@contextmanager
def many_descriptors() -> Iterator[None]:
    """This process may have thousands of sockets, until the end of the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 < hard < 8192 else 8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_python_gives_no_meaning_to_the_field_of_the_front_door(policy: Path) -> None:
    with running_service(policy, "--threads", "0") as service:
        for status, address in [(200, "203.0.113.1"), (429, "203.0.113.2")]:
            answer = service.client.get("/check/default/login", headers={"Headgate-Door-Peer": address})
            assert answer.status_code == status


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_the_private_socket_is_this_users_alone_and_goes_with_the_service(policy: Path, sig: signal.Signals) -> None:
    with running_service(policy) as service:
        folder = sockets_of(service)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert service.stop(sig) == 0
        assert not folder.exists()


def test_folders_of_killed_services_are_removed_by_the_next(policy: Path) -> None:
    with running_service(policy) as killed:
        folder = sockets_of(killed)
        killed.process.kill()
        killed.process.wait(10)
    # It may have been removed already: other tests start services, too.
    with running_service(policy):
        assert not folder.exists()


def test_the_metrics_count_responses_and_connections(policy: Path) -> None:
    with running_service(policy, "--threads", "2") as service:
        for _ in range(3):
            service.client.get("/check/default/login")
        httpx.get(f"{service.url}/healthz")
        shown = figures(service)
        assert shown["headgate_responses_total", "200", "check"] == 1
        assert shown["headgate_responses_total", "429", "check"] == 2
        assert shown["headgate_responses_total", "200", "healthz"] == 1
        assert shown["headgate_decisions_total", "login", "refused"] == 2
        assert shown["headgate_decision_seconds_count",] == 3
        assert shown["headgate_connections_accepted_total",] == 2
        assert shown["headgate_connections",] == 1


def test_a_connection_on_which_no_further_request_came_was_idle_and_not_too_slow(policy: Path) -> None:
    with running_service(policy, "--keep-alive", "1") as service:
        service.client.get("/healthz")
        time.sleep(2)
        shown = figures(service)
        assert shown["headgate_connections_closed_total", "idle"] == 1
        assert shown["headgate_connections_closed_total", "too slow"] == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_reload_under_load_loses_no_request_and_no_count(policy: Path, tmp_path: Path, workers: str) -> None:
    store = f"shared://{tmp_path / 'zone'}?size=4MiB"
    options = ("--threads", "2", "--workers", workers, "--store", store)
    with running_service(policy, *options) as service:
        over = threading.Event()

        def send_requests(_: int) -> int:
            with httpx.Client(base_url=service.url, timeout=10) as client:
                answered = 0
                while not over.is_set():
                    assert client.get("/check/default/a").status_code == 200
                    answered += 1
                return answered

        with ThreadPoolExecutor(4) as pool:
            counts = [pool.submit(send_requests, number) for number in range(4)]
            for quota in (2_000_000, 3_000_000, 4_000_000):
                lines_before = len(service.lines)
                policy.write_text(POLICY.replace("1000000/", f"{quota}/"))
                service.wait_for("is in force", after=lines_before)
                time.sleep(0.1)
            over.set()
            requests = sum(count.result() for count in counts)
        assert requests > 50
        deadline = time.monotonic() + 10  # until every worker has the last policy
        while "q=4000000" not in service.client.get("/check/default/a").headers["ratelimit-policy"]:
            requests += 1
            assert time.monotonic() < deadline
        requests += 1
        left = service.client.get("/check/default/a").headers["ratelimit"]
        assert left.startswith(f'"all";r={4_000_000 - requests - 1};')
        assert figures(service)["headgate_decisions_total", "all", "allowed"] == requests + 1


def test_a_service_on_the_python_core_says_that_it_has_no_front_door(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_CORE", "python")
    with running_service(policy) as service:
        assert ", python core, answered by Python: the front door needs the native core; " in service.lines[0]
        assert service.client.get("/check/default/a").status_code == 200


def test_checks_are_decided_natively_and_count_with_what_python_holds(policy: Path) -> None:
    policy.write_text(POLICY.replace("1/hour fixed", "4/hour fixed"))
    body = {"request": {"path": "/login", "client_ip": "203.0.113.1"}}
    with running_service(policy, "--threads", "2") as service:
        fields = {"X-Forwarded-For": "203.0.113.1"}  # not believed: this client is no trusted proxy
        assert (
            service.client.get("/check/default/login", headers=fields).headers["ratelimit"].startswith('"login";r=3;')
        )
        assert service.client.post("/v1/check", json=body).json()["remaining"] == 3
        held = service.client.post("/v1/reserve", json=body).json()
        assert (held["remaining"], held["allowed"]) == (2, True)
        assert service.client.post("/v1/check", json=body).json()["remaining"] == 1
        assert service.client.post("/v1/cancel", json={"id": held["id"]}).status_code == 200
        assert service.client.post("/v1/check", json=body).json()["remaining"] == 1
        shown = figures(service)
        assert shown["headgate_checks_left_to_python_total",] == 0
        assert shown["headgate_decisions_total", "allowed", "login"] == 5
        assert shown["headgate_decision_seconds_count",] == 5


def test_exactly_the_limit_passes_on_all_threads_and_workers(policy: Path, tmp_path: Path) -> None:
    policy.write_text(POLICY.replace("1/hour fixed", "100/hour fixed"))
    store = f"shared://{tmp_path / 'zone'}?size=4MiB"
    with running_service(policy, "--threads", "2", "--workers", "2", "--store", store) as service:

        def ask(_: int) -> int:
            return httpx.get(f"{service.url}/check/default/login").status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(ask, range(200)))
        assert statuses.count(200) == statuses.count(429) == 100
        assert figures(service)["headgate_decisions_total", "allowed", "login"] == 100
