"""What a Cluster cannot keep is refused when a policy is loaded, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate import ConfigError, MemoryStore, core
from headgate.policy import store_fit
from headgate.policy.compiled import Rule
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.request import Request

needs_native = pytest.mark.skipif(core.native is None, reason="only the native core has shared memory")

CLUSTER = "redis+cluster://127.0.0.1:1"
QUEUE: dict[str, Any] = {"name": "jobs", "by": ["user"], "limits": "5/second queue 10", "match": {"path": "/jobs"}}
IDENTITIES = {"user": {"header": "X-User"}}


def policy(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "namespace": "shop", "identities": IDENTITIES, "rules": list(rules)}


def rule(**changes: object) -> dict[str, Any]:
    return {"name": "everyone", "by": ["ip"], "limits": "100/minute", **changes}


@pytest.mark.parametrize("kind", [Gate, AsyncGate])
def test_a_queue_that_may_meet_a_rule_of_another_identity_is_refused(kind: type[Gate] | type[AsyncGate]) -> None:
    with pytest.raises(
        ConfigError,
        match="rule jobs is a queue and may meet rule everyone, which counts by ip instead of user: in a Cluster",
    ):
        kind(policy(QUEUE, rule()), store=CLUSTER)


@pytest.mark.parametrize(
    "other",
    [
        rule(by=["user"]),
        rule(match={"path": "/other"}),
        rule(default=True),
        rule(match={"method": "GET"}) | {"limits": "100/minute"},
    ],
    ids=["same identity", "another path", "default", "another method"],
)
def test_rules_that_cannot_apply_together_or_count_alike_are_accepted(other: dict[str, Any]) -> None:
    queue = QUEUE | {"match": {"path": "/jobs", "method": "POST"}}
    Gate(policy(queue, other), store=CLUSTER)


def test_rules_are_compared_with_queues_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def may_meet(queue: Rule, beside: Rule) -> bool:
        compared.append(queue.name)
        return False

    monkeypatch.setattr(store_fit, "_may_apply_together", may_meet)
    rules = [rule(name=f"r{number}", by=["user"] if number % 2 else ["ip"]) for number in range(100)]
    Gate(policy(*rules), store=CLUSTER)
    assert compared == []
    Gate(policy(QUEUE, *rules), store=CLUSTER)
    assert compared == ["jobs"] * 50


def test_one_server_accepts_every_policy_and_a_reload_is_checked_too() -> None:
    Gate(policy(QUEUE, rule()), store="redis://127.0.0.1:1")
    gate = Gate(policy(QUEUE), store=CLUSTER)
    with pytest.raises(ConfigError, match="a place in a queue cannot be given back"):
        gate.reload(policy(QUEUE, rule()))
    assert [rule.name for rule in gate.policy.rules] == ["jobs"]


def many(count: int, **changes: object) -> list[dict[str, Any]]:
    return [rule(name=f"r{number}", limits="100/hour fixed") | changes for number in range(count)]


LOGS = {"limits": "100/hour log"}
FOR_PATH = {"match": {"path": "/a"}}


@needs_native
@pytest.mark.parametrize(
    ("rules", "most"),
    [
        (many(257), 256),
        (many(37, **LOGS), 36),
        ([*many(250), *(one | {"name": f"p-{one['name']}"} for one in many(7, **FOR_PATH))], 256),
    ],
    ids=["rules for all", "logs", "rules for all and for a path"],
)
@pytest.mark.parametrize("kind", [Gate, AsyncGate])
def test_more_limits_of_one_request_than_a_zone_charges_are_refused(
    kind: type[Gate] | type[AsyncGate], rules: list[dict[str, Any]], most: int, tmp_path: Path
) -> None:
    store = f"shared://{tmp_path}/zone?size=64MiB"
    with pytest.raises(ConfigError, match=r"rule r0 and \d+ more apply to the same request with \d+ limits"):
        kind(policy(*rules), store=store)
    gate = Gate(policy(*rules[:most]), store=store)
    assert gate.hit(Request("GET", "/a", client_ip="203.0.113.9")).allowed
    with pytest.raises(ConfigError, match="a shared zone charges at most 256 limits at once"):
        gate.reload(policy(*rules))
    assert gate.hit(Request("GET", "/a", client_ip="203.0.113.9")).allowed


@needs_native
@pytest.mark.parametrize(
    "changes",
    [
        {"rules": [one | {"match": {"path": f"/{place}"}} for place, one in enumerate(many(400))]},
        {"rules": many(400), "rulesets": {"a": [f"r{n}" for n in range(200)], "b": [f"r{n}" for n in range(200, 400)]}},
    ],
    ids=["paths", "rulesets"],
)
def test_limits_that_no_request_has_together_are_accepted_by_a_zone(changes: dict[str, Any], tmp_path: Path) -> None:
    gate = Gate(policy() | changes, store=f"shared://{tmp_path}/zone?size=64MiB")
    ruleset = {"ruleset": "a"} if "rulesets" in changes else {}
    assert gate.hit(Request("GET", "/7", client_ip="203.0.113.9"), **ruleset).allowed


def test_memory_charges_more_at_once_than_a_zone(core: str) -> None:
    gate = Gate(policy(*many(1000)), store=MemoryStore(core=core))  # type: ignore[arg-type]
    for client in range(24):  # where the states of a client lie in a table is another place for each
        decision = gate.hit(Request("GET", "/", client_ip=f"203.0.113.{client}"))
        assert decision.allowed, client
