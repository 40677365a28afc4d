"""What a Cluster cannot keep is refused when a policy is loaded, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import ConfigError
from headgate.policy.gate import AsyncGate, Gate

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
def test_what_cannot_meet_or_counts_alike_is_kept(other: dict[str, Any]) -> None:
    queue = QUEUE | {"match": {"path": "/jobs", "method": "POST"}}
    Gate(policy(queue, other), store=CLUSTER)


def test_one_server_keeps_every_policy_and_a_reload_is_checked_too() -> None:
    Gate(policy(QUEUE, rule()), store="redis://127.0.0.1:1")
    gate = Gate(policy(QUEUE), store=CLUSTER)
    with pytest.raises(ConfigError, match="a place in a queue cannot be given back"):
        gate.reload(policy(QUEUE, rule()))
    assert [rule.name for rule in gate.policy.rules] == ["jobs"]
