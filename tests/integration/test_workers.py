"""Several workers on one port: one set of limits, one set of figures, and no client is turned away."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fronts import START_LINE_PARTS
from prometheus_client.parser import text_string_to_metric_families
from running import RunningService, headgate_command, run_headgate, running_service, service_of

from headgate import core
from headgate.stores.shared.default_zone import default_zone_url

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("front"),
    pytest.mark.skipif(core.native is None, reason="workers share a store, which needs the native core"),
]

ENOUGH = 24
"""Connections that reach both of two workers, but for once in 2**23 times."""


@pytest.fixture
def zone() -> Iterator[str]:
    """The URL of a zone that nothing else uses."""
    file = Path("/dev/shm") / f"headgate-test-{uuid.uuid4().hex}"
    yield f"shared://{file}?size=4MiB"
    file.unlink(missing_ok=True)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    write(file, "1000000/hour bucket")
    return file


def write(policy: Path, limits: str, head: str = "") -> None:
    """Write a policy of one rule, in one step."""
    new = policy.with_suffix(".new")
    new.write_text(f"version: 1\n{head}rules:\n  - {{name: all, by: [], limits: {limits}}}\n")
    new.replace(policy)


def get(service: RunningService, path: str = "/check/default") -> tuple[int, dict[str, str], str]:
    """Send GET on a new connection; return (status, headers, body)."""
    address = urlsplit(service.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read().decode()
    finally:
        connection.close()


def metrics(service: RunningService) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels; none is there twice."""
    families = text_string_to_metric_families(get(service, "/metrics")[2])
    samples = [
        ((sample.name, *sorted(sample.labels.values())), sample.value) for one in families for sample in one.samples
    ]
    assert max(Counter(name for name, _ in samples).values()) == 1
    return dict(samples)


def allowed(service: RunningService) -> float:
    """Return how many requests have passed."""
    return metrics(service)["headgate_decisions_total", "all", "allowed"]


def workers_of(service: RunningService) -> list[int]:
    pid = service.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def is_stopped(pid: int) -> bool:
    """Whether no thread of a process runs since it got SIGSTOP: one may still accept a connection for a while."""
    states = [each.read_text().rpartition(")")[2].split()[0] for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def until(holds: Callable[[], object], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "the condition does not become true"
        time.sleep(0.01)


def wait_for_each(service: RunningService, text: str, after: int = 0) -> None:
    """Wait until both workers have printed a text."""
    for number in (1, 2):
        service.wait_for(f"worker {number}: {re.escape(text)}", after, within_s=10)


def quotas(service: RunningService) -> set[str]:
    """Return the limits that all workers report."""
    return {get(service)[1]["ratelimit-policy"] for _ in range(ENOUGH)}


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_workers_start_announce_themselves_once_and_end_well(
    policy: Path, zone: str, front: str, sig: signal.Signals
) -> None:
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        workers = workers_of(service)
        assert len(workers) == 2
        assert get(service, "/healthz")[2] == "ok\n"
        folder = figures_of(workers[0])
        assert service.stop(sig) == 0
        assert not any(map(is_running, workers))
        assert not folder.exists()
        assert service.lines == [
            f"headgate: {policy} on {service.url}, native core, 2 workers{START_LINE_PARTS[front]}; ctrl-c ends it\n"
        ]


def figures_of(worker: int) -> Path:
    """The folder of a worker's figures."""
    found = re.search(r"/\S*/headgate-metrics-\w+(?=/)", Path(f"/proc/{worker}/maps").read_text())
    assert found
    return Path(found[0])


def test_one_worker_is_one_process(policy: Path, front: str) -> None:
    with running_service(policy, "--workers", "1") as service:
        assert workers_of(service) == []
        assert service.lines == [
            f"headgate: {policy} on {service.url}, native core{START_LINE_PARTS[front]}; ctrl-c ends it\n"
        ]
        assert ("headgate_workers",) not in metrics(service)


def test_exactly_the_limit_passes_whichever_worker_answers(policy: Path, zone: str) -> None:
    write(policy, "100/hour")
    with running_service(policy, "--workers", "2", "--store", zone) as service, ThreadPoolExecutor(8) as pool:
        statuses = Counter(pool.map(lambda _: get(service)[0], range(400)))
    assert statuses == {200: 100, 429: 300}


def post(service: RunningService, path: str, body: dict[str, object]) -> tuple[int, dict[str, object]]:
    """(status, JSON) on a connection of its own."""
    address = urlsplit(service.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_places_in_flight_are_those_of_all_workers_and_any_of_them_settles(policy: Path, zone: str) -> None:
    write(policy, "20 concurrent")
    body: dict[str, object] = {"request": {"method": "GET", "path": "/"}}
    with running_service(policy, "--workers", "2", "--store", zone) as service, ThreadPoolExecutor(8) as pool:
        answers = [answer for _, answer in pool.map(lambda _: post(service, "/v1/reserve", body), range(60))]
        held = [answer["id"] for answer in answers if answer["allowed"]]
        assert len(held) == 20
        ends = pool.map(lambda number: post(service, "/v1/commit", {"id": held[number % 20]}), range(60))
        assert Counter(end["outcome"] for _, end in ends) == {"settled": 20, "already settled": 40}
        answers = [answer for _, answer in pool.map(lambda _: post(service, "/v1/reserve", body), range(60))]
        assert sum(bool(answer["allowed"]) for answer in answers) == 20


def test_a_restart_in_the_middle_of_a_window_frees_nothing(policy: Path, zone: str) -> None:
    write(policy, "100/hour")
    statuses: Counter[int] = Counter()
    for _ in range(3):
        with running_service(policy, "--workers", "2", "--store", zone) as service, ThreadPoolExecutor(8) as pool:
            statuses.update(pool.map(lambda _: get(service)[0], range(60)))
    assert statuses == {200: 100, 429: 80}


def test_without_a_store_the_service_uses_a_zone_and_names_it(policy: Path, front: str) -> None:
    namespace = f"t{uuid.uuid4().hex}"
    write(policy, "10/hour", f"namespace: {namespace}\n")
    url = default_zone_url(namespace)
    try:
        with running_service(policy, "--workers", "2") as service:
            assert service.lines[0].endswith(
                f", native core, 2 workers, state in {url}{START_LINE_PARTS[front]}; ctrl-c ends it\n"
            )
            assert Path(urlsplit(url).path).exists()
            lines_before = len(service.lines)
            write(policy, "10/hour", f"namespace: {namespace}\nstore: memory://\n")
            wait_for_each(service, "the changed policy is refused, the old one stays", lines_before)
            service.wait_for("store: cannot change while running", lines_before)
    finally:
        Path(urlsplit(url).path).unlink(missing_ok=True)


def test_the_memory_of_each_process_is_refused_as_a_store(policy: Path) -> None:
    write(policy, "10/hour", "store: memory://\n")
    named = run_headgate("serve", str(policy), "--port", "0", "--workers", "2")
    assert named.returncode == 1
    assert f"headgate: {policy}: store: memory counts for each process alone, so 2 workers would let" in named.stderr
    write(policy, "10/hour")
    given = run_headgate("serve", str(policy), "--port", "0", "--workers", "2", "--store", "memory://?max_keys=9")
    assert (given.returncode, given.stdout) == (1, "")
    assert "headgate: --store: memory counts for each process alone" in given.stderr


def test_workers_start_where_the_zone_takes_all_of_a_containers_shared_memory(policy: Path) -> None:
    own_memory = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*own_memory, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    command = headgate_command("serve", str(policy), "--port", "0", "--workers", "2")
    with service_of([*own_memory, *command]) as service:
        assert service.check().status_code == 200
        assert 'headgate_decisions_total{result="allowed"' in service.client.get("/metrics").text


def test_a_service_that_cannot_start_prints_one_reason_and_no_worker_starts(policy: Path, zone: str) -> None:
    def message(*arguments: str) -> str:
        result = run_headgate("serve", str(policy), "--workers", "2", *arguments)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.count("headgate: ") == 1
        return result.stderr

    with running_service(policy, "--workers", "2", "--store", zone) as service:
        port = str(urlsplit(service.url).port)
        assert f"cannot listen on 127.0.0.1:{port}: " in message("--port", port, "--store", zone)
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        assert "cannot listen on 127.0.0.1" in message("--port", str(taken.getsockname()[1]), "--store", zone)
    assert "a store is one of " in message("--port", "0", "--store", "mysql://u:hunter2@h")
    write(policy, "5/fortnight")
    assert "rules[0].limits: cannot read" in message("--port", "0", "--store", zone)
    write_rules(policy, 300, 600)
    small = zone.replace("4MiB", "128KiB").replace("?", "-small?")
    try:
        assert "cannot keep the 300 limits of this policy: a zone of this size" in message(
            "--port", "0", "--store", small
        )
    finally:
        Path(urlsplit(small).path).unlink(missing_ok=True)


def test_metrics_count_every_request_whichever_worker_answered_or_died(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        for _ in range(ENOUGH):
            get(service)
        assert {allowed(service) for _ in range(ENOUGH)} == {ENOUGH}
        for number in (1, 2):
            victim = workers_of(service)[0]
            os.kill(victim, signal.SIGKILL)
            service.wait_for(rf"worker \d \(pid {victim}\) was killed by SIGKILL; ")
            until(lambda: metrics(service)["headgate_workers",] == 2)
            assert metrics(service)["headgate_worker_restarts_total",] == number
            assert allowed(service) == ENOUGH * number
            for _ in range(ENOUGH):
                get(service)
            assert {allowed(service) for _ in range(ENOUGH)} == {ENOUGH * (number + 1)}
        figures = metrics(service)
        assert figures["headgate_decision_seconds_count",] == ENOUGH * 3
        assert figures["headgate_decision_seconds_bucket", "+Inf"] == ENOUGH * 3
        assert figures["headgate_store_keys",] == 1
        assert "_created" not in get(service, "/metrics")[2]


def test_a_worker_that_is_killed_is_replaced_and_no_client_is_refused(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        workers = workers_of(service)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: all(map(is_stopped, workers)))
        waiting: list[socket.socket] = []

        def connect() -> None:
            for _ in range(ENOUGH):
                connection = connected(service)
                connection.sendall(b"GET /check/default HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                waiting.append(connection)

        connect()  # these are not accepted: they wait in the sockets of both workers
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        connect()
        for connection in waiting:
            with connection:
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        for number, pid in enumerate(workers, 1):
            again = service.wait_for(
                rf"^headgate: worker {number} \(pid {pid}\) was killed by SIGKILL; started again as pid (\d+)$"
            )
            assert int(again[1]) in workers_of(service)
        assert len(service.lines) == 3


BLOCKABLE = """
import runpy, signal, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
runpy.run_module("headgate", run_name="__main__")
"""
"""The service; SIGUSR1 blocks the event loop of one of its workers for an hour, as a call that never returns does."""


@pytest.mark.parametrize("sig", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "its event loop is blocked"])
def test_a_worker_that_hangs_is_replaced_and_no_longer_counted(policy: Path, zone: str, sig: signal.Signals) -> None:
    arguments = ("serve", str(policy), "--port", "0", "--workers", "4", "--store", zone, "--worker-timeout", "3")
    with service_of([sys.executable, "-c", BLOCKABLE, *arguments]) as service:
        workers = workers_of(service)
        assert metrics(service)["headgate_workers",] == 4
        with ThreadPoolExecutor(ENOUGH) as pool:
            os.kill(workers[1], sig)
            until(lambda: sig != signal.SIGSTOP or is_stopped(workers[1]))
            statuses = [pool.submit(get, service) for _ in range(ENOUGH)]
            service.wait_for(rf"worker 2 \(pid {workers[1]}\) has not moved for 3 s: it is replaced")
            again = service.wait_for(
                rf"worker 2 \(pid {workers[1]}\) was killed by SIGKILL; started again as pid (\d+)"
            )
            assert {status.result()[0] for status in statuses} == {200}  # some of them waited for the successor
        assert set(workers_of(service)) == {workers[0], *workers[2:], int(again[1])}
        until(lambda: metrics(service)["headgate_workers",] == 4)
        assert metrics(service)["headgate_worker_restarts_total",] == 1
        assert len(service.lines) == 3


def test_no_worker_is_replaced_where_the_whole_service_stood_still(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone, "--worker-timeout", "3") as service:
        workers = workers_of(service)
        everybody = (service.process.pid, *workers)
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        time.sleep(2)
        assert workers_of(service) == workers
        assert len(service.lines) == 1


def test_a_worker_timeout_is_longer_than_its_beat(policy: Path) -> None:
    result = run_headgate("serve", str(policy), "--workers", "2", "--worker-timeout", "1")
    assert result.returncode == 2
    assert "3 or more, or 0" in result.stderr


def test_a_worker_that_keeps_dying_is_started_again_ever_later(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        (other, first), pids = sorted(workers_of(service)), set()
        again = "started again as pid"
        victim = first
        for delay in ("0.2", "0.4"):
            lines_before = len(service.lines)
            if victim == first:
                os.kill(victim, signal.SIGKILL)
                victim = int(service.wait_for(rf"worker 2 \(pid {victim}\) .*; {again} (\d+)", lines_before)[1])
                lines_before = len(service.lines)
            os.kill(victim, signal.SIGKILL)
            service.wait_for(
                rf"worker 2 \(pid {victim}\) was killed by SIGKILL; it is started again in {delay} s", lines_before
            )
            victim = int(service.wait_for(rf"worker 2 {again} (\d+)", lines_before)[1])
            pids.add(victim)
        assert set(workers_of(service)) == {other, victim}
        assert quotas(service) == {'"all";q=1000000;w=3600'}


def test_a_changed_policy_reaches_all_workers(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        assert quotas(service) == {'"all";q=1000000;w=3600'}
        write(policy, "2000000/hour bucket")
        wait_for_each(service, "the changed policy is in force; its rules are all")
        assert quotas(service) == {'"all";q=2000000;w=3600'}
        lines_before = len(service.lines)
        policy.write_text("version: 1\nrules: [")
        wait_for_each(service, "the changed policy is refused, the old one stays:", lines_before)
        assert quotas(service) == {'"all";q=2000000;w=3600'}
        figures = metrics(service)
        assert figures["headgate_policy_reloads_total", "applied"] == 2
        assert figures["headgate_policy_reloads_total", "refused"] == 2


def write_rules(policy: Path, count: int, quota: int) -> None:
    """So many rules of one limit each, in the file at once."""
    rules = "".join(f"  - {{name: r{place}, by: [ip], limits: {quota}/hour bucket}}\n" for place in range(count))
    new = policy.with_suffix(".new")
    new.write_text(f"version: 1\nrules:\n{rules}")
    new.replace(policy)


def test_a_policy_that_the_zone_cannot_keep_is_refused_and_the_old_one_stays_in_force(policy: Path, zone: str) -> None:
    zone = zone.replace("4MiB", "128KiB")
    write_rules(policy, 2, 500)
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        lines_before = len(service.lines)
        write_rules(policy, 300, 600)
        wait_for_each(service, "the changed policy is refused, the old one stays:", lines_before)
        service.wait_for("cannot keep the 300 limits of this policy: a zone of this size knows up to 256", lines_before)
        assert quotas(service) == {'"r0";q=500;w=3600, "r1";q=500;w=3600'}
        assert {get(service, "/readyz")[::2] for _ in range(ENOUGH)} == {(200, "ready\n")}
        figures = metrics(service)
        assert figures["headgate_policy_reloads_total", "refused"] == 2
        assert figures["headgate_policy_in_force",] == 0
        lines_before = len(service.lines)
        write_rules(policy, 3, 700)
        wait_for_each(service, "the changed policy is in force; its rules are r0, r1, r2", lines_before)
        assert quotas(service) == {'"r0";q=700;w=3600, "r1";q=700;w=3600, "r2";q=700;w=3600'}
        assert metrics(service)["headgate_policy_in_force",] == 1


def test_a_changed_policy_of_many_rules_is_one_line_in_the_log_of_each_worker(policy: Path, zone: str) -> None:
    write_rules(policy, 2, 500)
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        write_rules(policy, 100, 600)
        names = ", ".join(f"r{number}" for number in range(20))
        wait_for_each(service, f"the changed policy is in force; its rules are {names} and 80 more\n")


def test_a_worker_that_meets_a_broken_policy_takes_the_last_good_one(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        write(policy, "2000000/hour bucket")
        wait_for_each(service, "the changed policy is in force")
        lines_before = len(service.lines)
        service.process.send_signal(signal.SIGHUP)
        wait_for_each(service, "the changed policy is in force", lines_before)
        policy.write_text("version: 1\nrules: [")
        wait_for_each(service, "the changed policy is refused", lines_before)
        lines_before = len(service.lines)
        os.kill(workers_of(service)[0], signal.SIGKILL)
        service.wait_for(r"worker \d: the policy is refused, the last good one stays:", lines_before)
        assert quotas(service) == {'"all";q=2000000;w=3600'}
        lines_before = len(service.lines)
        write(policy, "3000000/hour bucket")
        wait_for_each(service, "the changed policy is in force", lines_before)
        assert quotas(service) == {'"all";q=3000000;w=3600'}


def test_draining_is_visible_to_balancers_before_the_port_closes(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone, "--drain", "60") as service:
        workers = workers_of(service)
        for pid in (service.process.pid, *workers):  # an init system signals all processes
            os.kill(pid, signal.SIGTERM)
        wait_for_each(service, "draining for 60 s")
        assert {get(service, "/readyz")[0] for _ in range(ENOUGH)} == {503}
        for _ in range(ENOUGH):
            status, headers, _ = get(service)
            assert (status, headers["connection"]) == (200, "close")
        service.process.send_signal(signal.SIGTERM)  # a second one does not wait
        assert service.process.wait(10) == 0
        assert not any(map(is_running, workers))
        assert len(service.lines) == 3


def test_ctrl_c_twice_cuts_off_what_has_begun(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone) as service, waiting_for_body(service) as (slow, _):
        workers = workers_of(service)
        service.process.send_signal(signal.SIGINT)
        until(lambda: is_closed(service))
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(5) == 1
        assert not any(map(is_running, workers))
        assert cut_off(slow)


def test_a_drain_ends_by_itself(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone, "--drain", "0.5") as service:
        start = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - start >= 0.5


@pytest.mark.parametrize("stop", ["SIGTERM", "ctrl-c"])
def test_what_has_begun_is_finished(policy: Path, zone: str, stop: str) -> None:
    process = subprocess.Popen(
        headgate_command("serve", str(policy), "--port", "0", "--workers", "2", "--store", zone),
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    service = RunningService(process)
    try:
        with waiting_for_body(service) as (slow, body):
            if stop == "SIGTERM":
                process.terminate()
            else:  # a terminal sends it to the whole group
                os.killpg(process.pid, signal.SIGINT)
            until(lambda: is_closed(service))
            slow.sendall(body)
            assert slow.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert process.wait(10) == 0
    finally:
        service.stop()


@contextmanager
def waiting_for_body(service: RunningService) -> Iterator[tuple[socket.socket, bytes]]:
    """A connection on which a worker waits for a body, and the body."""
    body = b'{"request": {"path": "/"}}'
    with connected(service) as connection:
        head = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body))
        assert connection.recv(4096).startswith(b"HTTP/1.1 100 Continue")
        yield connection, body


def connected(service: RunningService) -> socket.socket:
    address = urlsplit(service.url)
    return socket.create_connection((address.hostname, address.port or 0), timeout=10)


def is_closed(service: RunningService) -> bool:
    try:
        connected(service).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    return False


def cut_off(connection: socket.socket) -> bool:
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_workers_end_when_their_supervisor_is_killed(policy: Path, zone: str) -> None:
    with running_service(policy, "--workers", "2", "--store", zone) as service:
        workers = workers_of(service)
        abandoned = figures_of(workers[0])
        service.process.kill()
        until(lambda: not any(map(is_running, workers)))
        wait_for_each(service, "the supervisor is gone: ending")
        assert abandoned.exists()
    with running_service(policy, "--workers", "2", "--store", zone):
        assert not abandoned.exists()


def test_the_supervisor_sleeps_and_has_no_threads(policy: Path, zone: str) -> None:
    def status(service: RunningService, field: str) -> int:
        text = Path(f"/proc/{service.process.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+)$", text, re.MULTILINE)
        assert found
        return int(found[1])

    with running_service(policy, "--workers", "2", "--store", zone) as service:
        assert status(service, "Threads") == 1
        before, start = status(service, "voluntary_ctxt_switches"), time.monotonic()
        for _ in range(ENOUGH * 4):
            get(service)
        looks = (time.monotonic() - start) / 2  # it looks every two seconds whether all workers move
        assert status(service, "voluntary_ctxt_switches") - before <= 2 + looks
