"""Services on one Redis are one limiter, and answer when it does not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from redis_servers import Server, single, wait_until
from running import RunningService, run_headgate, running_service

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("front")]
POLICY = """
version: 1
namespace: shop
client_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.0/8]}
rules:
  - {name: login, match: {path: /login}, by: [ip], limits: 5/hour, on_store_error: closed}
  - {name: search, match: {path: /search}, by: [ip], limits: 8/hour, on_store_error: local}
  - {name: everyone, by: [ip], limits: 100/hour, default: true, on_store_error: open}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


def statuses(services: list[RunningService], path: str, times: int) -> Counter[int]:
    return Counter(services[number % len(services)].check(path).status_code for number in range(times))


def test_two_services_are_one_limiter(policy: Path, server: Server) -> None:
    server.cli("FLUSHALL")
    store = ("--store", f"{server.url}?timeout=5s")
    with running_service(policy, *store) as one, running_service(policy, *store) as other:
        assert statuses([one, other], "/login", 12) == {200: 5, 429: 7}
        refused = other.check("/login")
        assert 600 < int(refused.headers["Retry-After"]) <= 7200
        assert "X-RateLimit-Degraded" not in refused.headers
    with running_service(policy, *store) as later:
        assert later.check("/login").status_code == 429  # a restart frees nothing


def test_a_list_is_sent_to_redis_together_and_one_key_is_decided_in_order(policy: Path, server: Server) -> None:
    server.cli("FLUSHALL")
    with running_service(policy, "--store", f"{server.url}?timeout=5s") as service:
        several = [{"request": {"path": "/search", "client_ip": "198.51.100.1"}, "cost": cost} for cost in (3, 6, 5, 1)]
        others = [{"path": "/search", "client_ip": f"192.0.2.{number}"} for number in range(200)]
        service.client.post("/v1/check", json={"requests": several[:1]})  # connects, and loads the scripts
        server.cli("FLUSHALL")
        before = packets(server)
        response = service.client.post("/v1/check", json={"requests": [*several, *others]}).json()
        decisions = response["decisions"]
        assert [decision["allowed"] for decision in decisions[:4]] == [True, False, True, False]
        assert [decision["remaining"] for decision in decisions[4:]] == [7] * 200
        assert packets(server) - before < 20  # in a few packets, and not in 204


def test_one_key_is_decided_in_order_where_some_rules_apply_for_the_first_time(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        """version: 1
rules:
  - {name: all, by: [ip], limits: 100/hour fixed}
  - {name: a, match: {path: /a}, by: [ip], limits: 1000/hour fixed}
  - {name: b, match: {path: /b}, by: [ip], limits: 1000/hour bucket}
"""
    )
    with single() as server, running_service(policy, "--store", f"{server.url}?timeout=5s") as service:
        service.client.post("/v1/check", json={"request": {"client_ip": "192.0.2.1"}})  # loads the script of `all`
        paths = ("/a", "/", "/b", "/", "/a")
        several = {"requests": [{"path": path, "client_ip": "192.0.2.1"} for path in paths]}
        decisions = service.client.post("/v1/check", json=several).json()["decisions"]
        assert [decision["limits"][0]["remaining"] for decision in decisions] == [98, 97, 96, 95, 94]


def packets(server: Server) -> int:
    """Return how often the server has read from its clients."""
    return int(server.cli("INFO", "stats")["total_reads_processed"])


def test_a_list_in_an_outage_is_answered_as_each_rule_says(policy: Path) -> None:
    with single() as server, running_service(policy, "--store", f"{server.url}?timeout=2s") as service:
        server.kill()
        paths = ["/login", "/cart", "/search"] * 50
        decisions = service.client.post("/v1/check", json={"requests": [{"path": path} for path in paths]}).json()
        results = [(decision["allowed"], decision["degraded"]) for decision in decisions["decisions"]]
        assert set(results[0::3]) == {(False, "closed")}
        assert set(results[1::3]) == {(True, "open")}
        assert results[2::3] == [(True, "local")] * 8 + [(False, "local")] * 42


def test_several_workers_share_a_redis(policy: Path, server: Server) -> None:
    server.cli("FLUSHALL")
    with running_service(policy, "--workers", "2", "--store", f"{server.url}?timeout=5s") as service:
        assert statuses([service], "/search", 20) == {200: 8, 429: 12}


def test_an_outage_is_answered_as_each_rule_says_and_ends_by_itself(policy: Path) -> None:
    with single() as server, running_service(policy, "--store", f"{server.url}?timeout=2s") as service:
        first = service.check("/search")
        assert first.headers["RateLimit"] and "X-RateLimit-Degraded" not in first.headers
        assert service.client.get("/readyz").status_code == 200
        server.kill()
        closed = service.check("/login")
        assert closed.status_code == 503 and closed.headers["X-RateLimit-Degraded"] == "closed"
        assert int(closed.headers["Retry-After"]) >= 1
        opened = [service.check("/cart") for _ in range(120)]
        assert {response.status_code for response in opened} == {200}
        assert {response.headers["X-RateLimit-Degraded"] for response in opened} == {"open"}
        assert statuses([service], "/search", 12) == {200: 8, 429: 4}
        assert service.client.get("/readyz").status_code == 503
        assert re.search(
            r'headgate_degraded_decisions_total{decided_by="open"} 120.0', service.client.get("/metrics").text
        )
        server.restart()
        wait_until(
            lambda: "its store" if "X-RateLimit-Degraded" in service.check("/login").headers else "",
            within_s=20,
        )
        assert service.client.get("/readyz").status_code == 200
        service.wait_for("the store answers again")


def test_a_service_is_not_ready_while_its_store_answers_and_does_not_decide(policy: Path) -> None:
    with single() as server, running_service(policy, "--store", f"{server.url}?timeout=2s") as service:
        service.check("/search")
        server.cli("CONFIG", "SET", "maxmemory", "1")
        assert {service.check("/search").headers["X-RateLimit-Degraded"] for _ in range(3)} == {"local"}
        unready = service.client.get("/readyz")
        assert unready.status_code == 503 and "its memory is full" in unready.json()["detail"]
        server.cli("CONFIG", "SET", "maxmemory", "0")
        service.wait_for("the store answers again")
        assert service.client.get("/readyz").text == "ready\n"


def test_a_policy_of_the_wrong_shape_is_refused_at_load(policy: Path) -> None:
    policy.write_text(POLICY + "  - {name: jobs, by: [], limits: 5/second queue 9}\n")
    completed = run_headgate("serve", str(policy), "--store", "redis+cluster://127.0.0.1:1")
    assert completed.returncode != 0
    assert "rule jobs is a queue and may meet rule" in completed.stderr and "Traceback" not in completed.stderr
