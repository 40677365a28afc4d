"""Holds of a gate take all rules that match, or none, and are settled by an id that names their groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import ArgumentError, ConfigError, ConflictingId, RateLimited
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import HOLDING, ZONES, make_store

ANN = Request("GET", "/a", client_ip="203.0.113.9")
TOKENS: list[dict[str, Any]] = [
    {"name": "user", "by": ["ip"], "limits": "20 concurrent; 60/minute bucket; 900 tokens/minute bucket"},
    {"name": "all", "by": [], "cost": {"tokens": 5}, "limits": "10000 tokens/minute bucket"},
]

STORES = HOLDING
"""The kinds of stores that can keep the holds of a gate."""


def make_gate(core: str, *rules: dict[str, Any], clock: ManualClock | None = None, **policy: Any) -> Gate:
    values = {"version": 1, "rules": list(rules or TOKENS), **policy}
    return Gate(values, store=make_store(core), clock=clock or ManualClock())


def remaining_of(gate: Gate, request: Request = ANN) -> list[int]:
    return [reading.remaining for reading in gate.peek(request, 0).limits]


@pytest.mark.parametrize("kind", STORES)
def test_a_hold_charges_all_rules_and_is_settled_with_the_actual_amount_of_each_unit(kind: str) -> None:
    gate = make_gate(kind)
    held = gate.reserve(ANN, {"tokens": 500})
    assert held and held.decision.allowed and remaining_of(gate) == [19, 59, 400, 9500]
    settlement = held.commit({"tokens": 412})
    assert (settlement.outcome, settlement.actuals) == ("settled", (1, 412, 412))
    assert [reading.remaining for reading in settlement.after] == remaining_of(gate) == [20, 59, 488, 9588]
    assert gate.commit(held.id, {"tokens": 1}).outcome == "already settled"


@pytest.mark.parametrize("kind", STORES)
def test_a_plain_number_is_a_number_of_requests_each_with_the_costs_of_its_rules(kind: str) -> None:
    gate = make_gate(kind)
    held = gate.reserve(ANN, 3)
    assert remaining_of(gate) == [17, 57, 900, 9985]
    assert gate.commit(held.id, 2).actuals == (2, 0, 10)
    assert remaining_of(gate) == [20, 58, 900, 9990]
    named = gate.reserve(ANN, {"requests": 2, "tokens": 7})
    assert gate.commit(named.id, 1).actuals == (1, 7, 7)  # tokens were named: they stay as they were held
    again = gate.reserve(ANN, {"requests": 2, "tokens": 7})
    assert gate.commit(again.id, {"requests": 1, "tokens": 9}).actuals == (1, 9, 9)
    whole = gate.reserve(ANN, {"requests": 2, "tokens": 7})
    assert gate.commit(whole.id).actuals == (2, 7, 7)


@pytest.mark.parametrize("kind", STORES)
def test_a_cancelled_hold_gives_everything_back(kind: str) -> None:
    gate = make_gate(kind)
    before = remaining_of(gate)
    assert gate.cancel(gate.reserve(ANN, {"requests": 3, "tokens": 7}).id).actuals == (0, 0, 0)
    with pytest.raises(KeyError), gate.reserve(ANN, {"tokens": 7}):
        raise KeyError
    assert remaining_of(gate) == before


@pytest.mark.parametrize("kind", STORES)
def test_a_rule_that_refuses_leaves_all_others_unchanged(kind: str) -> None:
    gate = make_gate(kind, {"name": "user", "by": ["ip"], "limits": "2 concurrent"}, TOKENS[1])
    with gate.reserve(ANN), gate.reserve(ANN):
        before = remaining_of(gate)
        refused = gate.reserve(ANN)
        assert not refused and refused.decision.rule == "user" and remaining_of(gate) == before
        with pytest.raises(RateLimited), gate.reserve(ANN):
            raise AssertionError
        assert gate.reserve(Request("GET", "/a", client_ip="203.0.113.10"))
    assert remaining_of(gate)[0] == 2


@pytest.mark.parametrize("kind", STORES)
def test_a_hold_is_extended_by_its_id_and_may_hold_more_of_some_units(kind: str) -> None:
    clock = ManualClock()
    gate = make_gate(kind, clock=clock)
    held = gate.reserve(ANN, {"tokens": 100}, lease=60)
    clock.advance(50_000_000)
    assert gate.extend(held.id, 60, {"tokens": 50}).outcome == "extended"
    clock.advance(50_000_000)
    assert remaining_of(gate)[0] == 19
    assert held.extend(more={"tokens": 10}).outcome == "extended"
    assert gate.extend(held.id, 60, {"tokens": 5000}).outcome == "refused"
    clock.advance(60_000_000)
    assert gate.extend(held.id, 60).outcome == "lapsed"
    assert gate.commit(held.id).actuals == (1, 160, 160)


@pytest.mark.parametrize(
    "shadow_limit", ["1/minute fixed", "1/minute", "1/minute counter", "1/minute bucket", "1 concurrent"]
)
@pytest.mark.parametrize("kind", STORES)
def test_a_hold_that_a_shadow_rule_did_not_admit_is_extended(kind: str, shadow_limit: str) -> None:
    clock = ManualClock()
    real = {"name": "real", "by": ["ip"], "limits": "2 concurrent; 100/minute"}
    gate = make_gate(kind, real, {"name": "tried", "by": [], "limits": shadow_limit, "shadow": True}, clock=clock)
    first, second = gate.reserve(ANN, lease=60), gate.reserve(ANN, lease=60)
    assert second and not second.decision.limits[-1].allowed
    clock.advance(40_000_000)
    assert [gate.extend(held.id, 60).outcome for held in (first, second)] == ["extended", "extended"]
    clock.advance(40_000_000)
    assert not gate.reserve(ANN), "both are still in flight"
    assert gate.extend(second.id, 60, more=1).outcome == "refused"
    assert [gate.commit(held.id).outcome for held in (first, second)] == ["settled", "settled"]


@pytest.mark.parametrize("kind", STORES)
def test_an_id_is_held_once_and_found_by_request_and_id(kind: str) -> None:
    gate = make_gate(kind)
    held = gate.reserve(ANN, 2, id="request-7")
    again = gate.reserve(ANN, 2, id="request-7")
    assert again.repeated and again.id == held.id == gate.id_of(ANN, "request-7")
    with pytest.raises(ConflictingId):
        gate.reserve(ANN, 3, id="request-7")
    assert gate.commit(gate.id_of(ANN, "request-7")).outcome == "settled"
    assert gate.commit(gate.id_of(ANN, "request-8")).outcome == "unknown"


@pytest.mark.parametrize("kind", STORES)
def test_the_id_of_a_hold_with_units_from_the_caller_is_found_with_its_cost(kind: str) -> None:
    gate = make_gate(kind)
    costs: list[Any] = [1, 2, {"tokens": 500}, {"requests": 1}, {"requests": 2, "tokens": 3}]
    for number, cost in enumerate(costs):
        held = gate.reserve(ANN, cost, id=f"request-{number}")
        assert held and held.id == gate.id_of(ANN, f"request-{number}", cost)
        assert gate.commit(gate.id_of(ANN, f"request-{number}", cost)).outcome == "settled"


def test_the_id_is_that_of_the_store_where_each_group_counts_requests(core: str) -> None:
    gate = make_gate(core, {"name": "user", "by": ["ip"], "limits": "20 concurrent; 60/minute"})
    held = gate.reserve(ANN, 2)
    assert len(held.id) == 26
    assert gate.commit(held.id, 1).actuals == (1,)


@pytest.mark.parametrize("kind", STORES)
def test_another_policy_settles_the_hold_of_an_earlier_one(kind: str) -> None:
    gate = make_gate(kind)
    held = gate.reserve(ANN, 3)
    gate.reload({"version": 1, "rules": [{**TOKENS[0], "cost": {"tokens": 80}, "limits": "900 tokens/minute bucket"}]})
    assert gate.commit(held.id, 2).actuals == (2, 0, 10)  # by the rules in force when it was held
    gate.reload({"version": 1, "rules": TOKENS})
    assert remaining_of(gate) == [20, 58, 900, 9990]
    held = gate.reserve(ANN, {"tokens": 400})
    other = Gate({"version": 1, "namespace": "other", "rules": [{**TOKENS[1], "name": "x"}]}, store=gate.store)
    assert other.commit(held.id, {"tokens": 100}).actuals == (1, 100, 100)


def test_a_rule_whose_numbers_have_changed_counts_holds_that_are_settled_under_it(core: str) -> None:
    rules: dict[str, Any] = {"name": "user", "by": ["ip"], "limits": "20 concurrent; 60/hour fixed"}
    gate = make_gate(core, rules)
    held = gate.reserve(ANN, 5)
    gate.reload({"version": 1, "rules": [{**rules, "limits": "3 concurrent; 50/hour fixed"}]})
    assert not gate.reserve(ANN)
    gate.commit(held.id, 2)
    assert remaining_of(gate) == [3, 48]


@pytest.mark.parametrize("subject", [ANN, Request("GET", "/b", client_ip="203.0.113.9")])
def test_a_request_without_rules_is_held_and_settled_without_a_store(core: str, subject: Request) -> None:
    rules = {**TOKENS[0], "match": {"path": "/x"}}
    gate = make_gate(core, rules, exempt=[{"path": "/b"}])
    with gate.reserve(subject, {"tokens": 9}, id="one") as held:
        assert held and held.decision.limits == () and not held.repeated
        assert held.extend(more=2).outcome == "extended"
    assert held.id == gate.id_of(subject, "one")
    assert gate.commit(held.id, {"tokens": 3}).outcome == gate.cancel(held.id).outcome == "settled"
    assert gate.extend(held.id, 60).outcome == "extended"
    assert gate.stats().keys == gate.stats().holds == 0


def test_a_request_without_the_identity_that_a_rule_requires_is_refused_and_not_held(core: str) -> None:
    gate = make_gate(
        core,
        {"name": "user", "by": ["user"], "missing": "refuse", "limits": "20 concurrent"},
        identities={"user": {"header": "X-User"}},
    )
    refused = gate.reserve(ANN)
    assert not refused
    assert gate.commit(refused.id).outcome == "unknown"


def test_a_hit_on_a_concurrent_limit_is_an_error_that_names_reserve_and_charges_nothing(core: str) -> None:
    gate = make_gate(core)
    with pytest.raises(ArgumentError, match=r"20 concurrent.*reserve"):
        gate.hit(ANN)
    assert remaining_of(gate) == [20, 60, 900, 10000]


def test_a_gate_decides_at_once_where_no_concurrent_limit_applies(core: str) -> None:
    gate = make_gate(core, {**TOKENS[0], "match": {"path": "/a"}}, TOKENS[1])
    assert gate.hit_or_hold(Request("GET", "/b"), 1, 60_000_000).limits  # type: ignore[union-attr]
    assert gate.stats().holds == 0
    assert gate.hit_or_hold(ANN, 1, 60_000_000).id  # type: ignore[union-attr]
    assert gate.stats().holds > 0


@pytest.mark.parametrize(
    ("id", "actual", "message"),
    [
        ("", None, "no id"),
        ("h1", None, "no id"),
        (b"h1", None, "text, .* not a bytes"),
        (None, None, "text, .* not None"),
        ("h1" + "A" * 24 + ".", None, "no id"),
        ("h1" + "A" * 24 + ".re quests", None, "no id"),
        ("h1" + "A" * 24 + ".requests" * 5000, None, "no id"),
        ("h1" + "A" * 24 + ".99999999999999999requests", None, "no id"),
        ("HELD", -1, "at least 0"),
        ("HELD", True, "whole number"),
        ("HELD", 1.5, "whole number"),
        ("HELD", 2**53, "at most"),
        ("HELD", {"bytes": 1}, "no limit counts 'bytes'"),
        ("HELD", {"tokens": -1}, "at least 0"),
        ("HELD", {"tokens": 1, "Tokens": 1}, "no limit counts 'Tokens'"),
    ],
)
def test_a_bad_id_or_amount_is_an_error_that_changes_nothing(core: str, id: Any, actual: Any, message: str) -> None:
    gate = make_gate(core)
    held = gate.reserve(ANN)
    before = remaining_of(gate)
    with pytest.raises(ArgumentError, match=message):
        gate.commit(held.id if id == "HELD" else id, actual)
    if id != "HELD":
        with pytest.raises(ArgumentError, match=message):
            gate.extend(id, 60)
    assert remaining_of(gate) == before and gate.commit(held.id).outcome == "settled"


def test_an_id_that_names_other_groups_than_its_hold_is_an_error(core: str) -> None:
    gate = make_gate(core)
    held = gate.reserve(ANN)
    for actual in ({"tokens": 4}, 1, 0, None):
        with pytest.raises(ArgumentError, match=r"3 amounts, not [24]"):
            gate.commit(held.id.replace(".0tokens", "", 1), actual)
    assert gate.commit(held.id).outcome == "settled"


@pytest.mark.parametrize("lease", [0, -1, 1e12, True, "60"])
def test_a_bad_lease_is_an_error_even_for_exempt_requests(core: str, lease: Any) -> None:
    gate = make_gate(core, exempt=[{"path": "/b"}])
    for request in (ANN, Request("GET", "/b")):
        with pytest.raises(ArgumentError, match="lease"):
            gate.reserve(request, lease=lease)
    with pytest.raises(ArgumentError, match="id of a hold"):
        gate.reserve(Request("GET", "/b"), id="")


@pytest.mark.skipif(not ZONES, reason="a zone needs the native core")
def test_a_policy_with_concurrent_limits_is_refused_by_a_store_without_holds() -> None:
    store = make_store("shared", max_holds=0)
    message = "rule user counts what is in flight: .*make one with max_holds="
    with pytest.raises(ConfigError, match=message):
        Gate({"version": 1, "rules": TOKENS}, store=store)
    gate = Gate({"version": 1, "rules": TOKENS[1:]}, store=store)
    with pytest.raises(ConfigError, match=message):
        gate.reload({"version": 1, "rules": TOKENS})
    assert [rule.name for rule in gate.policy.rules] == ["all"]
    with pytest.raises(ConfigError, match="hold"):
        gate.reserve(ANN)


def test_an_async_gate_has_the_same_methods_as_coroutines(core: str) -> None:
    async def run() -> None:
        gate = AsyncGate({"version": 1, "rules": TOKENS}, store=make_store(core), clock=ManualClock())

        async def remaining() -> list[int]:
            return [reading.remaining for reading in (await gate.peek(ANN, 0)).limits]

        async with await gate.reserve(ANN, {"tokens": 500}) as held:
            assert await remaining() == [19, 59, 400, 9500]
            assert (await held.commit({"tokens": 412})).actuals == (1, 412, 412)
        other = await gate.reserve(ANN, 2, id="x")
        assert other.id == gate.id_of(ANN, "x")
        assert (await gate.extend(other.id, 60, {"tokens": 1})).outcome == "extended"
        assert (await gate.cancel(other.id)).actuals == (0, 0, 0)
        assert await remaining() == [20, 59, 488, 9588]
        with pytest.raises(ArgumentError, match="reserve"):
            await gate.hit(ANN)
        with pytest.raises(ArgumentError, match=r"3 amounts, not [24]"):
            await gate.commit((await gate.reserve(ANN)).id + ".tokens", 4)
        assert (await gate.commit("h0", 1)).outcome == "settled"

    asyncio.run(run())
