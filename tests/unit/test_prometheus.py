"""Counts of decisions: each rule counts once, with its own result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate import Gate, Request
from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.observe.events import DecisionEvent
from headgate.observe.prometheus import Metrics
from headgate.testing import ManualClock


def decision_counts(gate: Gate, *requests: Request) -> Mapping[tuple[str, str], float]:
    """The count of each result of each rule over these requests."""
    metrics = Metrics(gate.stats)
    for request in requests:
        metrics.handle(DecisionEvent(gate.hit(request), 1e-6, request, "default"))
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.labels["rule"], sample.labels["result"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "headgate_decisions_total"
    }


def policy(*rules: dict[str, Any]) -> Gate:
    return Gate({"version": 1, "rules": [{"by": [], **rule} for rule in rules]})


def test_a_rule_of_several_limits_refuses_once_where_one_of_them_does() -> None:
    gate = policy({"name": "both", "limits": "1/minute fixed; 100/hour fixed"}, {"name": "other", "limits": "9/minute"})
    assert decision_counts(gate, *[Request()] * 3) == {
        ("both", "allowed"): 1,
        ("both", "refused"): 2,
        ("other", "allowed"): 1,
        ("other", "blocked"): 2,
    }


def test_a_shadow_rule_of_several_limits_refuses_once_too_and_holds_nothing_back() -> None:
    gate = policy({"name": "dry", "shadow": True, "limits": "1/minute fixed; 100/hour fixed"})
    assert decision_counts(gate, *[Request()] * 3) == {("dry", "shadow_allowed"): 1, ("dry", "shadow_refused"): 2}


@pytest.mark.parametrize("ahead_s", [0, 11_000, -11_000])
def test_how_far_the_clock_of_the_decisions_is_ahead_of_the_hosts_time(ahead_s: int) -> None:
    gate = policy({"name": "one", "limits": "1/minute"})
    clock = ManualClock(SYSTEM_CLOCK.now_us() + ahead_s * US_PER_SECOND) if ahead_s else gate.store.clock
    families = text_string_to_metric_families(Metrics(gate.stats, clock=clock).exposition().decode())
    [offset] = [family for family in families if family.name == "headgate_clock_offset_seconds"]
    assert [round(sample.value, -2) for sample in offset.samples] == [ahead_s]
