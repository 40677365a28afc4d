"""The service as its users meet it: a real process, a real port, real requests."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from running import RunningService, headgate_command, run_headgate, running_service

from subjects import parse_list

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("front")]

POLICY = """\
version: 1
namespace: test
client_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.0/8]}
identities:
  key: {header: X-API-Key, secret: true}
rules:
  - {name: login, match: {method: POST, path: /api/login}, by: [ip], limits: 3/hour bucket}
  - {name: api, match: {path: /api/**}, by: [key], limits: 10/second burst 20; 100/day, cost: 2}
  - {name: everyone, by: [ip], limits: 50/hour bucket, default: true}
  - {name: candidate, by: [ip], limits: 1/hour bucket, shadow: true, match: {path: /shadow}}
exempt: [{path: /health}]
rulesets: {login-only: [login]}
"""


@pytest.fixture(scope="module")
def service(front: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    policy = tmp_path_factory.mktemp("service") / "policy.yaml"
    policy.write_text(POLICY)
    with running_service(policy) as running:
        yield running


def metrics(service: RunningService) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    families = text_string_to_metric_families(service.client.get("/metrics").text)
    return {(sample.name, *sorted(sample.labels.values())): sample.value for one in families for sample in one.samples}


def test_200_with_ratelimit_headers_then_429_with_a_true_retry_after(service: RunningService) -> None:
    answers = [service.check("/api/login", "POST", "198.51.100.1") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[0].headers["content-length"] == "0"
    assert answers[0].content == b""
    policies = parse_list(answers[0].headers["ratelimit-policy"])
    assert [name for name, _ in policies] == ["login", "api.second", "api.day"]
    refused = answers[3]
    assert refused.headers["content-type"] == "application/problem+json"
    assert 1 <= int(refused.headers["retry-after"]) <= 1200
    assert [name for name, _ in parse_list(refused.headers["ratelimit"])] == ["login"]
    problem = refused.json()
    assert problem["status"] == 429
    assert problem["violated-policies"] == ["login"]


def test_a_request_after_the_time_in_retry_after_passes(service: RunningService, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules:\n  - {name: all, by: [ip], limits: 2/second bucket}\n")
    with running_service(policy) as quick:
        assert [quick.check().status_code for _ in range(3)] == [200, 200, 429]
        time.sleep(quick.check().json()["retry-after-ms"] / 1000)
        assert quick.check().status_code == 200


def test_every_method_is_judged_and_the_body_ignored(service: RunningService) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = service.client.request(method, "/check/default", content=b"x" if method != "HEAD" else None)
        assert answer.status_code == 200, method


def test_nginx_gets_403_with_the_problem_in_a_header(service: RunningService) -> None:
    headers = {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/api/login", "X-Forwarded-For": "198.51.100.2"}
    answers = [service.client.get("/check-403/default", headers=headers) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 403]
    problem = json.loads(answers[3].headers["x-ratelimit-problem"])
    assert problem["status"] == 429
    assert "retry-after" in answers[3].headers


def test_nothing_in_the_query_of_the_question_counts(service: RunningService) -> None:
    headers = {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/api/login", "X-Forwarded-For": "198.51.100.3",
               "X-RateLimit-Cost": "0", "Cost": "0"}  # fmt: skip
    answers = [service.client.get("/check/default?cost=0&path=/health", headers=headers) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]


def test_a_ruleset_is_chosen_by_its_name(service: RunningService) -> None:
    headers = {"X-Forwarded-Uri": "/other", "X-Forwarded-For": "198.51.100.4"}
    assert "ratelimit" not in service.client.get("/check/login-only", headers=headers).headers
    unknown = service.client.get("/check/nope", headers=headers)
    assert unknown.status_code == 404
    assert unknown.json()["detail"] == "no ruleset is named 'nope'; there are default, login-only"


def test_a_body_names_the_ruleset_of_each_request(service: RunningService) -> None:
    request = {"path": "/other", "client_ip": "198.51.100.6"}
    named = {"request": request, "ruleset": "login-only"}
    assert service.client.post("/v1/check", json=named).json()["rule"] is None
    several = service.client.post("/v1/check", json={"requests": [named, request]}).json()["decisions"]
    assert [decision["rule"] is None for decision in several] == [True, False]


def test_a_ruleset_that_is_none_is_an_error_and_nothing_is_charged(service: RunningService) -> None:
    request = {"path": "/other", "client_ip": "198.51.100.7"}
    before = service.client.post("/v1/check", json={"request": request}).json()["remaining"]
    unknown = {"request": request, "ruleset": "nope"}
    one = service.client.post("/v1/check", json=unknown)
    several = service.client.post("/v1/check", json={"requests": [request, unknown]})
    known = "no ruleset is named 'nope'; there are default, login-only"
    assert (one.status_code, one.json()["detail"]) == (404, known)
    assert (several.status_code, several.json()["detail"]) == (404, f"requests[1]: {known}")
    assert one.content == service.client.get("/check/nope").content
    assert service.client.post("/v1/check", json={"request": request}).json()["remaining"] == before - 1


def test_what_follows_the_ruleset_is_the_path(service: RunningService) -> None:
    answer = service.client.post("/check/default/api/login", headers={"X-Forwarded-For": "198.51.100.5"})
    assert '"login"' in answer.headers["ratelimit"]
    # A path is judged as it was sent, decoded not more often than servers do: see docs/policy.md#matching.
    thrice = service.client.post("/check/default/api/%25256Cogin", headers={"X-Forwarded-For": "198.51.100.5"})
    assert '"login"' not in thrice.headers["ratelimit"]


def test_exempt_requests_pass_without_headers(service: RunningService) -> None:
    answer = service.check("/health")
    assert answer.status_code == 200
    assert "ratelimit" not in answer.headers


def test_a_body_is_judged(service: RunningService) -> None:
    request = {"method": "POST", "path": "/api/login", "client_ip": "198.51.100.6", "headers": {"X-API-Key": "hunter2"}}
    answers = [service.client.post("/v1/check", json={"request": request}).json() for _ in range(4)]
    assert [answer["allowed"] for answer in answers] == [True, True, True, False]
    first, last = answers[0], answers[3]
    assert {name: first[name] for name in ("rule", "limit", "remaining", "retry_after", "degraded")} == {
        "rule": "login", "limit": 3, "remaining": 2, "retry_after": 0.0, "degraded": "",
    }  # fmt: skip
    assert [limit["name"] for limit in first["limits"]] == ["login", "api.second", "api.day"]
    assert next(limit["remaining"] for limit in last["limits"]) == 0
    assert 0 < last["retry_after"] <= 1200
    assert last["headers"]["Retry-After"] == str(-(-int(last["retry_after"] * 1e6) // 1_000_000))
    assert "hunter2" not in str(answers)


def test_several_requests_are_judged_in_one_call(service: RunningService) -> None:
    request = {"method": "POST", "path": "/api/login", "client_ip": "198.51.100.7", "headers": {"X-API-Key": "several"}}
    body = {"requests": [request, {"request": request, "cost": 3}, request, {"path": "/health"}]}
    decisions = service.client.post("/v1/check", json=body).json()["decisions"]
    assert [decision["allowed"] for decision in decisions] == [True, False, True, True]
    assert decisions[3]["rule"] is None


BAD_BODIES: list[tuple[bytes, int, str]] = [
    (b"", 400, "the body is empty"),
    (b"{", 400, "the body is not JSON"),
    (b"[" * 100_000, 400, "nested too deep"),
    (b"\x00\xff", 400, "the body is not"),
    (b'{"request": {"path": 5}}', 400, "request.path must be text"),
    (b'{"request": {}, "cost": -1}', 400, "a cost is at least 0, not -1"),
    (b'{"request": {}, "cost": 99999999999999999999999999}', 400, "a cost is at most"),
    (b"x" * ((1 << 20) + 1), 413, "a body has at most 1048576 bytes"),
]


@pytest.mark.parametrize(("body", "status", "detail"), BAD_BODIES, ids=[detail for _, _, detail in BAD_BODIES])
def test_a_bad_body_gets_a_problem(service: RunningService, body: bytes, status: int, detail: str) -> None:
    answer = service.client.post("/v1/check", content=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert detail in answer.json()["detail"]


def test_a_wrong_path_or_method_gets_a_problem(service: RunningService) -> None:
    assert service.client.get("/nope").status_code == 404
    for path, method, allow in (("/v1/check", "GET", "POST"), ("/metrics", "POST", "GET, HEAD")):
        answer = service.client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)


@pytest.mark.parametrize(
    "text",
    [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\n\x00\xff: x\r\n\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
     b"\x16\x03\x01"],
    ids=["no request", "bad header", "long target", "a TLS hello"],
)  # fmt: skip
def test_bytes_that_are_not_http_harm_no_client(service: RunningService, text: bytes) -> None:
    address = httpx.URL(service.url)
    with socket.create_connection((address.host, address.port or 80), timeout=5) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(4096)
    assert service.client.get("/healthz").status_code == 200


def test_unusual_headers_are_judged_or_refused_and_never_an_error(service: RunningService) -> None:
    for value in ("\xff\xfe", "a" * 8000, "{x}|%", "::1, garbage"):
        for name in ("X-API-Key", "X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Host"):
            answer = service.client.get("/check/default", headers={name.encode(): value.encode("latin-1")})
            assert answer.status_code in (200, 429), (name, value)


@pytest.mark.parametrize("name", ["X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"])
def test_a_field_that_the_gateway_sends_twice_with_different_values_is_refused(
    service: RunningService, name: str
) -> None:
    for second in (name, name.replace("-F", "_F")):
        for value, status in ((b"/own", 200), (b"", 200), (b"/other", 400), (b"/own\xa0", 400)):
            headers = [(name.encode(), b"/own"), (second.encode(), value)]
            assert service.client.get("/check/default", headers=headers).status_code == status, headers


@pytest.mark.parametrize("empty", ["X-Forwarded-", "X_Forwarded_"])
def test_an_empty_line_hides_no_other_line_of_the_gateway(service: RunningService, empty: str) -> None:
    client = "198.51.100.77" if "_" in empty else "198.51.100.78"
    gateways = {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/api/login", "X-Forwarded-For": client}
    clients = {"X-Original-Method": "GET", "X-Original-URI": "/health", f"{empty}Uri": "", f"{empty}Method": ""}
    headers = [("X-API-Key", empty), *gateways.items(), *clients.items()]
    answers = [service.client.get("/check/default", headers=headers).status_code for _ in range(4)]
    assert answers == [200, 200, 200, 429]


def test_exactly_the_limit_passes_when_more_is_requested_at_once(service: RunningService) -> None:
    def ask(_: int) -> int:
        return service.check("/burst", client="198.51.100.8").status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(ask, range(300)))
    assert statuses.count(200) == 50
    assert statuses.count(429) == 250


def test_metrics_count_decisions_by_rule_and_result_and_never_a_key(service: RunningService) -> None:
    before = metrics(service)
    for _ in range(4):
        service.check("/api/login", "POST", "198.51.100.9", **{"X-API-Key": "hunter2"})
    for _ in range(2):
        service.check("/shadow", client="198.51.100.10")
    service.check("/health")
    after = metrics(service)

    def counted(*labels: str) -> float:
        name = ("headgate_decisions_total", *labels)
        return after.get(name, 0) - before.get(name, 0)

    assert counted("allowed", "login") == 3
    assert counted("login", "refused") == 1
    assert counted("allowed", "api") == 3
    assert counted("api", "blocked") == 1
    assert counted("candidate", "shadow_allowed") == 1
    assert counted("candidate", "shadow_refused") == 1
    assert counted("allowed", "none") == 1
    assert after["headgate_decision_seconds_count",] - before["headgate_decision_seconds_count",] == 7
    assert after["headgate_store_keys",] > 0
    assert after["headgate_store_max_keys",] == 1_000_000
    assert abs(after["headgate_clock_offset_seconds",]) < 60
    text = service.client.get("/metrics").text
    assert "_created" not in text
    for secret in ("hunter2", "198.51.100", "203.0.113"):
        assert secret not in text


def test_the_page_shows_what_runs_and_how_to_send_checks(service: RunningService) -> None:
    answer = service.client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for words in (
        "limits requests for <b>test</b>",
        "login",
        "3/hour bucket",
        "curl",
        "/v1/check",
        f"{service.url}/check",
    ):
        assert words in answer.text


def test_health_and_readiness(service: RunningService) -> None:
    assert service.client.get("/healthz").text == "ok\n"
    assert service.client.get("/readyz").text == "ready\n"
    assert service.client.head("/healthz").content == b""


def write(policy: Path, limits: str) -> None:
    policy.write_text(
        "version: 1\nclient_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.0/8]}\n"
        f"rules:\n  - {{name: all, by: [ip], limits: {limits}}}\n"
    )


def test_a_changed_policy_is_applied_at_once_and_keeps_what_was_used(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    write(policy, "10/hour bucket")
    with running_service(policy) as service:
        assert service.check().headers["ratelimit"].startswith('"all";r=9')
        write(policy, "20/hour bucket")
        service.wait_for("the changed policy is in force; its rules are")
        assert service.check().headers["ratelimit-policy"].startswith('"all";q=20')
        assert service.check().headers["ratelimit"].startswith('"all";r=7')


def test_a_broken_policy_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    write(policy, "10/hour bucket")
    with running_service(policy) as service:
        for broken, reason in (
            ("version: 1\nrules: [", "this is not YAML"),
            (
                "version: 1\nstore: memory://?max_keys=5\nrules: [{name: all, by: [ip], limits: 5/s}]",
                "store: cannot change",
            ),
            ("", "the policy is empty"),
        ):
            lines_before = len(service.lines)
            policy.write_text(broken)
            service.wait_for("the changed policy is refused, the old one stays", lines_before)
            service.wait_for(reason, lines_before)
            assert service.check().headers["ratelimit-policy"].startswith('"all";q=10')
        lines_before = len(service.lines)
        policy.unlink()
        service.wait_for("No such file", lines_before)
        lines_before = len(service.lines)
        write(policy, "30/hour bucket")
        service.wait_for("is in force", lines_before)
        assert service.check().headers["ratelimit-policy"].startswith('"all";q=30')
        assert metrics(service)["headgate_policy_reloads_total", "refused"] == 4
        lines_before = len(service.lines)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("is in force", lines_before)


def in_force(service: RunningService) -> float:
    return metrics(service)["headgate_policy_in_force",]


def test_a_policy_file_that_is_away_for_a_moment_is_taken_up_when_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    policy = folder / "policy.yaml"
    write(policy, "10/hour bucket")
    with running_service(policy) as service:
        assert in_force(service) == 1
        folder.rename(tmp_path / "away")  # as a volume is mounted anew
        service.wait_for("No such file")
        assert in_force(service) == 0
        time.sleep(1)  # in which it looks several times
        assert len(service.lines) == 3  # the message has two lines, and is told once
        (tmp_path / "away").rename(folder)
        service.wait_for("the policy file can be read again, and has not changed")
        assert in_force(service) == 1
        folder.rename(tmp_path / "away")
        write(tmp_path / "away" / "policy.yaml", "20/hour bucket")
        service.wait_for("No such file", 4)
        (tmp_path / "away").rename(folder)
        service.wait_for("is in force", 4)
        assert service.check().headers["ratelimit-policy"].startswith('"all";q=20')
        assert in_force(service) == 1


def test_a_policy_that_changes_while_there_are_no_descriptors_is_taken_up_when_there_are(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    write(policy, "10/hour bucket")
    with running_service(policy) as service:
        assert service.check().headers["ratelimit-policy"].startswith('"all";q=10')
        soft, hard = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
        used = {int(name.name) for name in Path(f"/proc/{service.process.pid}/fd").iterdir()}
        free = min(set(range(len(used) + 1)) - used)
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (free, hard))
        write(policy, "20/hour bucket")
        service.wait_for("Too many open files")
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        service.wait_for("is in force")
        assert service.check().headers["ratelimit-policy"].startswith('"all";q=20')


def test_a_policy_is_taken_up_however_it_is_changed(tmp_path: Path) -> None:
    """In place, replaced, as an editor does, as Kubernetes does, and twice within one tick of the clock of files."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
    (tmp_path / "data").symlink_to("v1")
    policy = tmp_path / "policy.yaml"
    policy.symlink_to("data/policy.yaml")
    real = tmp_path / "v1" / "policy.yaml"
    write(real, "10/hour bucket")

    def in_place(quota: int) -> None:
        write(policy, f"{quota}/hour bucket")

    def as_an_editor(quota: int) -> None:
        real.rename(real.with_suffix(".yaml~"))
        time.sleep(0.25)
        write(real, f"{quota}/hour bucket")

    def replaced(quota: int) -> None:
        write(real.with_suffix(".new"), f"{quota}/hour bucket")
        real.with_suffix(".new").replace(real)

    def like_before(quota: int) -> None:
        """With the time and size of what it was."""
        status = real.stat()
        write(real, f"{quota}/hour bucket")
        os.utime(real, ns=(status.st_atime_ns, status.st_mtime_ns))

    def swapped(quota: int) -> None:
        write(tmp_path / "v2" / "policy.yaml", f"{quota}/hour bucket")
        (tmp_path / "new").symlink_to("v2")
        (tmp_path / "new").replace(tmp_path / "data")

    with running_service(policy) as service:
        for quota, change in enumerate((in_place, as_an_editor, replaced, like_before, swapped), 20):
            lines_before = len(service.lines)
            change(quota)
            service.wait_for("is in force", lines_before)
            assert service.check().headers["ratelimit-policy"].startswith(f'"all";q={quota}'), change
        assert metrics(service)["headgate_policy_reloads_total", "applied"] == 5
        assert metrics(service)["headgate_policy_reloads_total", "refused"] == 0


def test_half_of_a_policy_that_is_being_written_is_not_taken_up(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    rule = "  - {{name: r{0}, by: [ip], limits: {0}/hour bucket}}\n"
    write(policy, "10/hour bucket")
    with running_service(policy) as service:
        with policy.open("w") as file:
            file.write("version: 1\nrules:\n")
            for number in range(1, 60):  # every line is a policy by itself
                file.write(rule.format(number))
                file.flush()
                time.sleep(0.01)
        service.wait_for("is in force")
        assert [line for line in service.lines if "r20 and 39 more" not in line] == service.lines[:1]


def test_sigterm_finishes_what_has_begun_and_ends_well(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    write(policy, "10000/hour bucket")
    with running_service(policy) as service:
        address = httpx.URL(service.url)
        with socket.create_connection((address.host, address.port or 80), timeout=10) as slow:
            body = b'{"request": {"path": "/"}}'
            slow.sendall(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
            time.sleep(0.2)
            service.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            slow.sendall(body)
            assert b" 200 OK" in slow.recv(4096)
        assert service.process.wait(10) == 0


def test_draining_is_visible_to_balancers_before_the_port_closes(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    write(policy, "10000/hour bucket")
    with running_service(policy, "--drain", "2") as service:
        assert service.client.get("/readyz").status_code == 200
        service.process.send_signal(signal.SIGTERM)
        service.wait_for("draining for 2 s")
        assert service.client.get("/readyz").status_code == 503
        answer = service.check()
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert service.process.wait(10) == 0


def test_a_service_that_cannot_start_prints_the_reason(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    write(policy, "5/fortnight")
    broken = run_headgate("serve", str(policy), "--port", "0")
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "rules[0].limits: cannot read" in broken.stderr
    write(policy, "5/minute")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = run_headgate("serve", str(policy), "--port", str(port))
    assert busy.returncode == 1
    assert busy.stderr == (
        f"headgate: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "another program listens there: choose another --port, or 0 for a free one\n"
    )
    elsewhere = run_headgate("serve", str(policy), "--port", "0", "--host", "192.0.2.1")
    assert "Cannot assign requested address; this host has no such address: choose another --host" in elsewhere.stderr
    nowhere = run_headgate("serve", str(policy), "--port", "0", "--host", "no.such.host.invalid")
    assert "cannot listen on no.such.host.invalid" in nowhere.stderr
    for host in ("[::1]", ""):
        unknown = run_headgate("serve", str(policy), "--port", "0", "--host", host)
        assert f"cannot listen on {host}:0: " in unknown.stderr
        assert (
            "--host takes an address of this host, such as 127.0.0.1 or ::1 (without brackets), or a name of it"
            in unknown.stderr
        )
    for host in ("gate..example.com", f"{'a' * 64}.example.com"):
        nameless = run_headgate("serve", str(policy), "--port", "0", "--host", host)
        assert nameless.returncode == 1
        assert nameless.stderr.startswith(f"headgate: cannot listen on {host}:0: that is no name of a host")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        busy = run_headgate("serve", str(policy), "--port", str(port), "--host", "::1")
    assert f"cannot listen on [::1]:{port}: " in busy.stderr
    store = run_headgate("serve", str(policy), "--store", "mysql://u:hunter2@h")
    assert "a store is one of memory://" in store.stderr
    assert "hunter2" not in store.stderr
    for process in (broken, busy, nowhere, store):
        assert "Traceback" not in process.stderr


def test_without_a_policy_the_one_in_this_folder_or_an_example_is_served(tmp_path: Path) -> None:
    def limits(folder: Path) -> str:
        process = subprocess.Popen(
            headgate_command("serve", "--port", "0"), cwd=folder, stderr=subprocess.PIPE, text=True
        )
        service = RunningService(process)
        try:
            return str(service.check().headers["ratelimit-policy"])
        finally:
            service.stop()

    assert '"everyone.minute";q=200' in limits(tmp_path)
    write(tmp_path / "headgate.yaml", "7/hour")
    assert limits(tmp_path) == '"all";q=7;w=3600'
    (tmp_path / "headgate.yaml").unlink()
    (tmp_path / "headgate.yaml").symlink_to("nowhere.yaml")
    command = headgate_command("serve", "--port", "0")
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (1, "headgate: headgate.yaml: No such file or directory\n")


def test_the_store_of_the_command_line_stands_in_for_the_policys(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    write(policy, "5/hour")
    with running_service(policy, "--store", "memory://?max_keys=3&on_full=refuse") as service:
        statuses = [service.check(client=f"198.51.100.{number}").status_code for number in range(5)]
        assert statuses == [200, 200, 200, 503, 503]
        answer = service.check(client="198.51.100.4")
        assert answer.headers["x-ratelimit-degraded"] == "closed"
        assert re.fullmatch(r"\d+", answer.headers["retry-after"])
        assert metrics(service)["headgate_store_full_total", "refused"] == 3


def test_an_address_of_one_interface_can_be_listened_on(tmp_path: Path) -> None:
    rows = [row.split() for row in Path("/proc/net/if_inet6").read_text().splitlines()]
    links = [f"{ipaddress.IPv6Address(int(row[0], 16))}%{row[-1]}" for row in rows if row[0].startswith("fe80")]
    if not links:
        pytest.skip("no interface has an address of its link")
    policy = tmp_path / "policy.yaml"
    write(policy, "5/hour")
    for more in ((), ("--workers", "2")):
        with running_service(policy, "--host", links[0], *more) as service:
            host, _, port = service.url.removeprefix("http://").rpartition(":")
            assert host == f"[{links[0]}]"
            with socket.create_connection((links[0], int(port))) as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "two workers"])
def test_a_service_that_gets_a_reload_signal_while_it_starts_starts(workers: tuple[str, ...], tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    os.mkfifo(policy)
    command = headgate_command("serve", str(policy), "--port", "0", *workers)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with policy.open("w") as pipe:  # the service has begun to read
        process.send_signal(signal.SIGHUP)
        pipe.write(POLICY.replace("namespace: test", f"namespace: reloaded-{os.getpid()}"))
    service = RunningService(process)
    try:
        assert service.check().status_code == 200
        process.send_signal(signal.SIGHUP)
        assert service.check().status_code == 200
    finally:
        assert service.stop() == 0
        for zone in Path("/dev/shm").glob(f"headgate-*-reloaded-{os.getpid()}*"):
            zone.unlink()
