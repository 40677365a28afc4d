"""`headgate inspect`, `reset` and `capacity` as people run them, on a real Redis."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from redis_servers import Server, cluster, single
from running import run_headgate

from headgate import core
from headgate.policy.gate import Gate
from headgate.policy.request import Request

pytestmark = pytest.mark.integration

SHOP = str(Path(__file__).parents[2] / "examples" / "shop.yaml")
SECRET = "hunter2-hunter2"
CLIENT = "203.0.113.9"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with single() as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    server.cli("FLUSHALL")


@pytest.fixture
def gate(server: Server) -> Iterator[Gate]:
    with Gate(SHOP, store=f"{server.url}?timeout=10s") as opened:
        yield opened


def login() -> Request:
    return Request("POST", "/api/login", client_ip=CLIENT)


def search(**headers: str) -> Request:
    return Request(
        "GET", "/api/search/x", client_ip=CLIENT, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


def inspect(server: Server, *keys: str) -> list[dict[str, Any]]:
    completed = run_headgate("inspect", SHOP, *keys, "--store", server.url, "--json")
    assert (completed.returncode, completed.stderr) == (0, "")
    rows: list[dict[str, Any]] = json.loads(completed.stdout)
    return rows


def error_of(completed: CompletedProcess[str]) -> str:
    assert (completed.returncode, completed.stdout) == (1, "")
    assert "Traceback" not in completed.stderr
    return completed.stderr


def test_inspect_reports_what_remains_of_each_limit_and_when_more_is_free(server: Server, gate: Gate) -> None:
    for _ in range(7):
        gate.hit(login())
    completed = run_headgate("inspect", SHOP, f"ip={CLIENT}", "--store", server.url)
    assert (completed.returncode, completed.stderr) == (0, "")
    lines = completed.stdout.splitlines()
    assert lines[0] == f"login      by ip: key {CLIENT}"
    assert re.fullmatch(r" {11}5/minute: 0 of 5 left, one more in [0-9.]+ s, all in [0-9.]+ s", lines[1])
    assert f"search     by caller: key ip|{CLIENT}" in lines
    assert f"{'':11}free: 60/hour burst 10: nothing is held, all 10 left" in lines
    assert f"candidate  by ip: key {CLIENT} (shadow)" in lines
    assert re.search(r"100/minute: 95 of 100 left, ", completed.stdout)


def test_inspect_agrees_with_the_gate_and_changes_nothing(server: Server, gate: Gate) -> None:
    gate.hit(search(X_User_Id="u42"))
    before = server.cli("DUMP", "hg:{user|u42}:shop/1/search/")
    assert before
    decision = gate.peek(search(X_User_Id="u42"), 0)
    free, _, _ = inspect(server, "user=u42")
    assert (free["rule"], free["key"], free["limit"], free["quota"]) == ("search", "user|u42", "60/hour burst 10", 10)
    assert (free["held"], free["remaining"]) == (True, decision.limits[0].remaining) == (True, 8)
    assert 0 < free["next_after_us"] <= decision.limits[0].next_after_us
    assert 60_000_000 < free["reset_after_us"] <= decision.limits[0].reset_after_us
    assert server.cli("DUMP", "hg:{user|u42}:shop/1/search/") == before
    assert [row["tier"] for row in inspect(server, "user=u42")] == ["free", "pro", "enterprise"]


def test_a_secret_is_found_and_never_shown(server: Server, gate: Gate) -> None:
    gate.hit(search(X_API_Key=SECRET))
    for keys in ([f"api_key={SECRET}"], ["api_key", SECRET]):
        completed = run_headgate("inspect", SHOP, *keys, "--store", server.url)
        assert "free: 60/hour burst 10: 8 of 10 left, one more in " in completed.stdout
        assert SECRET not in completed.stdout + completed.stderr
    (digest,) = re.findall(r"key api_key\|([0-9a-f]{32})\n", completed.stdout)
    again = run_headgate("inspect", SHOP, "api_key", digest, "--store", server.url)
    assert "8 of 10 left" in again.stdout
    other = run_headgate("inspect", SHOP, "api_key", "0" * 32, "--store", server.url)
    assert other.stdout.count("nothing is held") == 3
    assert "0" * 32 not in other.stdout
    completed = run_headgate("reset", SHOP, f"api_key={SECRET}", "--store", server.url)
    assert completed.stdout == f"search: forgot what api_key|{digest} used\n"


def test_reset_clears_all_limits_of_a_key_or_those_of_one_rule(server: Server, gate: Gate) -> None:
    for _ in range(5):
        assert gate.hit(login())
    completed = run_headgate("reset", SHOP, f"ip={CLIENT}", "--store", server.url, "--rule", "login")
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, f"login: forgot what {CLIENT} used\n", "")
    assert gate.peek(login()).allowed
    assert {row["rule"] for row in inspect(server, f"ip={CLIENT}") if row["held"]} == {"candidate"}
    completed = run_headgate("reset", SHOP, CLIENT, "--store", server.url)
    assert completed.stdout == (
        f"login: nothing was held of {CLIENT}\n"
        f"everyone: nothing was held of {CLIENT}\n"
        f"candidate: forgot what {CLIENT} used\n"
    )
    assert server.cli("DBSIZE") == 0


def test_the_store_of_the_policy_is_used_unless_another_is_named(server: Server, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"version: 1\nstore: {server.url}?prefix=own&on_error=open&timeout=10s\n"
        "rules:\n  - {name: all, by: [], limits: 5/minute log}\n  - {name: pair, by: [ip, host], limits: 5/minute}\n"
    )
    with Gate(policy) as gate:
        gate.hit(Request(client_ip=CLIENT, host="example.com"))
    completed = run_headgate("inspect", str(policy), "everyone")
    assert re.fullmatch(r"all   everyone\n      5/minute: 4 of 5 left, all in [0-9.]+ s\n", completed.stdout)
    completed = run_headgate("inspect", str(policy), f"ip={CLIENT}", "host=example.com:80")
    assert f"pair  by ip and host: key {CLIENT}|example.com\n" in completed.stdout
    lacking = error_of(run_headgate("inspect", str(policy), f"ip={CLIENT}"))
    assert "the rule pair counts by host besides" in lacking


@pytest.mark.skipif(core.CORE == "python", reason="the shared store needs the native core")
def test_a_shared_zone_can_be_inspected_and_reset(tmp_path: Path) -> None:
    zone = f"shared://{tmp_path}/zone?size=256KiB"
    missing = error_of(run_headgate("inspect", SHOP, f"ip={CLIENT}", "--store", zone))
    assert f"{tmp_path}/zone: there is no zone" in missing
    with Gate(SHOP, store=zone) as gate:
        gate.hit(login())
        completed = run_headgate("inspect", SHOP, f"ip={CLIENT}", "--store", zone, "--rule", "login")
        assert "5/minute: 4 of 5 left, " in completed.stdout
        completed = run_headgate("reset", SHOP, f"ip={CLIENT}", "--store", zone, "--rule", "login")
        assert completed.stdout == f"login: forgot what {CLIENT} used\n"
        assert gate.peek(login(), 0).limits[0].remaining == 5


def test_a_store_that_does_not_answer_is_reported_in_a_message(server: Server) -> None:
    server.stop()
    try:
        message = error_of(run_headgate("inspect", SHOP, "user=u42", "--store", f"{server.url}?timeout=100ms"))
    finally:
        server.go_on()
    assert f"headgate: {server.url}: no answer in time" in message
    for url in (server.url.replace("redis:", "redis+cluster:"), "redis+sentinel://127.0.0.1:1/mymaster"):
        assert f"headgate: {url.partition(':')[0]}://" in error_of(
            run_headgate("reset", SHOP, "user=u42", "--store", url)
        )
    with single() as other:
        unused_url = other.url
    assert "cannot be reached" in error_of(run_headgate("inspect", SHOP, "user=u42", "--store", unused_url))


def test_passwords_are_not_shown() -> None:
    with single(password="open sesame") as guarded:
        completed = run_headgate("inspect", SHOP, "user=u42", "--store", guarded.url)
        assert completed.stdout.count("nothing is held") == 3
        wrong = guarded.url.replace("sesame", "barley")
        completed = run_headgate("inspect", SHOP, "user=u42", "--store", wrong)
    assert "barley" not in error_of(completed)
    assert "password" in completed.stderr


def test_a_cluster_can_be_inspected_and_reset() -> None:
    with cluster(shards=3, replicas_each=0) as nodes:
        with Gate(SHOP, store=f"{nodes.url}?timeout=10s") as gate:
            gate.hit(login())
        completed = run_headgate("inspect", SHOP, f"ip={CLIENT}", "--store", nodes.url, "--rule", "login")
        assert "5/minute: 4 of 5 left, " in completed.stdout
        completed = run_headgate("reset", SHOP, f"ip={CLIENT}", "--store", nodes.url)
        assert f"login: forgot what {CLIENT} used\n" in completed.stdout


BAD_CALLS = [
    (["inspect", SHOP, "user=u42"], 1, "a memory store is in the process that asks it"),
    (["reset", SHOP, "user=u42", "--store", "memory://"], 1, "a memory store is in the process that asks it"),
    (["inspect", SHOP, "user=u42", "--store", "mysql://host"], 1, "a store is one of memory://"),
    (["inspect", SHOP, "user=u42", "--rule", "serch"], 1, "no rule is named 'serch'; did you mean search?"),
    (["inspect", SHOP, "usr=u42"], 1, "no identity has this name; did you mean user?"),
    (["inspect", SHOP, "caller=u42"], 1, "caller is the first of user, api_key, ip"),
    (["inspect", SHOP, "u42"], 1, "no rule counts by such a key; they count: login by ip; search by caller"),
    (["inspect", SHOP, ""], 1, "a key, or a part of one, is not empty"),
    (["inspect", SHOP], 2, "Missing argument 'KEY...'"),
    (["reset", "no-such.yaml", "user=u42"], 1, "no-such.yaml: No such file or directory"),
    (["capacity", SHOP, "--users", "0", "--rate", "5"], 2, "Invalid value for '--users'"),
    (["capacity", SHOP, "--users", "5", "--rate", "0"], 2, "Invalid value for '--rate'"),
    (["serve", "--worker-timeout", "2"], 2, "'--worker-timeout': a worker shows once a second that it moves: 3"),
    (["llm", "serve", "--worker-timeout", "0.5"], 2, "'--worker-timeout': a worker shows once a second that it moves"),
    (["capacity", SHOP, "--users", "5"], 2, "Missing option '--rate'"),
    (["capacity", "no-such.yaml", "--users", "5", "--rate", "5"], 1, "no-such.yaml: No such file or directory"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD_CALLS, ids=[" ".join(call[0][2:]) for call in BAD_CALLS])
def test_an_error_is_a_message_and_an_exit_code(arguments: list[str], code: int, message: str) -> None:
    completed = run_headgate(*arguments)
    assert (completed.returncode, completed.stdout) == (code, "")
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr


def test_redis_uses_as_much_memory_as_capacity_predicts(server: Server, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nnamespace: shop\nidentities: {user: {header: X-User-Id}}\n"
        "rules:\n  - {name: search, by: [user], limits: 100/hour counter; 3/hour log}\n"
    )
    users = 4000
    before = server.cli("INFO", "memory")
    with Gate(policy, store=f"{server.url}?timeout=5s") as gate:
        for _ in range(3):
            for user in range(users):
                assert gate.hit(Request(headers={"X-User-Id": f"{user:036d}"}))
        after = server.cli("INFO", "memory")
    used = _used_memory(after) - _used_memory(before)
    completed = run_headgate("capacity", str(policy), "--users", str(users), "--rate", "1000", "--json")
    planned = json.loads(completed.stdout)
    assert [(need["states"], need["entries"]) for need in planned["limits"]] == [(users, 0), (users, 3 * users)]
    least = 0.7 if "valkey_version" in server.cli("INFO", "server") else 0.8  # Redis is what was measured
    assert least < used / planned["state_bytes"] < 1.1


def _used_memory(info: dict[str, Any]) -> int:
    return int(info["used_memory"]) - int(info["mem_clients_normal"])


def test_capacity_prints_a_table_or_json() -> None:
    completed = run_headgate("capacity", SHOP, "--users", "1000000", "--rate", "20000")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert re.search(r"search \(free\) +60/hour burst 10 +caller +1,000,000 ", completed.stdout)
    assert "layout      a single Redis" in completed.stdout
    facts = json.loads(run_headgate("capacity", SHOP, "--users", "1000000", "--rate", "20000", "--json").stdout)
    assert (facts["users"], facts["rate"], facts["layout"], facts["shards"]) == (1_000_000, 20_000, "single", 1)
    assert len(facts["limits"]) == 5
    assert facts["assumptions"]
