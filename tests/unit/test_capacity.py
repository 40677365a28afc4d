"""The Redis capacity that a policy needs follows from its limits, its users and their requests."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.limit_text import parse_limits
from headgate.planning.capacity import MEMORY_FACTOR, Capacity, capacity
from headgate.planning.decisions import BUSY_SHARE, SERVER_BYTES
from headgate.planning.redis_costs import COSTS, ENTRY_BYTES, TABLE_BYTES
from headgate.policy.gate import read_policy

IDENTITIES = {
    "user": {"header": "X-User-Id"},
    "key": {"header": "X-Key", "secret": True},
    "caller": {"first_of": ["user", "ip"]},
}


def needed(*rules: dict[str, Any], users: int = 1000, rate: float = 1e6, **policy: Any) -> Capacity:
    named = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    document = {"version": 1, "namespace": "api", "identities": IDENTITIES, "rules": named, **policy}
    return capacity(read_policy(document), users=users, rate=rate)


def by_user(limits: str, **more: Any) -> dict[str, Any]:
    return {"by": ["user"], "limits": limits, **more}


def test_no_more_states_than_users_and_no_more_than_are_alive() -> None:
    assert needed(by_user("5/minute")).limits[0].states == 1000
    few = needed(by_user("5/minute fixed"), users=10**9, rate=10).limits[0]
    assert (few.states, few.life_s) == (695, 69.5)
    assert needed(by_user("10/second burst 100", cost=20), users=10**9, rate=10).limits[0].life_s == 4.25
    assert needed(by_user("0/minute")).limits[0].states == 0


def many_places(paths: int) -> Capacity:
    """Of a policy whose most expensive request is of the last of its methods, hosts and paths."""
    rules = [
        {"by": ["ip"], "limits": "5/minute", "match": {"path": f"/p{number:05}", "host": f"h{number % 9}.example"}}
        for number in range(paths)
    ]
    methods = [{"by": ["ip"], "limits": "5/minute", "match": {"method": m}} for m in ("DELETE", "GET", "PATCH", "PUT")]
    dear = {"method": "PUT", "host": "h8.example", "path": f"/p{paths - 1:05}"}
    return needed(*rules, *methods, {"by": ["ip"], "limits": "5/minute; 6/hour; 7/day", "match": dear})


def test_the_most_expensive_request_is_found_among_many_methods_hosts_and_paths() -> None:
    found = many_places(189)
    assert (found.request.method, found.request.host, found.request.path) == ("PUT", "h8.example", "/p00188")
    assert (found.request.limits, len(found.request.rules)) == (5, 3)
    assert not any("not examined" in text for text in found.assumptions)


def test_a_policy_with_too_many_combinations_says_so() -> None:
    combinations, looked_at = 4 * 10 * 1801, (1 << 24) // 1805
    expected = f"{combinations - looked_at:,} combinations of methods, hosts and paths were not examined"
    assert any(text.startswith(expected) for text in many_places(1800).assumptions)


def test_identities_that_do_not_distinguish_users_make_few_keys() -> None:
    needs = needed(
        {"by": [], "limits": "5/minute"},
        {"by": ["method"], "limits": "5/minute", "match": {"method": ["GET", "POST"]}},
        {"by": ["user", "endpoint"], "limits": "5/minute", "match": {"path": ["/a", "/b", "/c"]}},
    ).limits
    assert [(need.states, need.shared) for need in needs] == [(1, True), (2, True), (3000, False)]


def test_bytes_are_those_measured_for_names_as_long() -> None:
    short = needed(by_user("5/minute counter")).limits[0].state_bytes
    name = f"hg:{{{'u' * 36}}}:api/1/r0/"
    assert short == COSTS["sliding_window"].state_bytes + len(name) - 64
    prefixed = needed({"by": ["caller"], "limits": "5/minute counter"}).limits[0].state_bytes
    assert prefixed == short + len("user|")
    assert needed({"by": ["key"], "limits": "5/minute counter"}).limits[0].state_bytes == short - 4


def test_a_further_limit_is_a_field_that_lives_as_long_as_the_longest() -> None:
    day, second, log, minute = needed(
        by_user("5/day fixed; 9/second counter; 9/minute; 9/minute counter"), rate=10
    ).limits
    assert (second.state_bytes, minute.state_bytes) == (COSTS["sliding_window"].more_bytes,) * 2
    assert day.state_bytes > COSTS["fixed_window"].more_bytes + len("hg:{}:")
    assert second.life_s == minute.life_s == log.life_s == day.life_s > 86400
    assert log.state_bytes == COSTS["sliding_log"].more_bytes


def test_a_log_has_an_entry_for_each_request_up_to_its_quota() -> None:
    full = needed(by_user("100/minute log")).limits[0]
    assert full.entries == 100 * 1000
    assert full.total_bytes == 1000 * (full.state_bytes + TABLE_BYTES) + 99 * 1000 * ENTRY_BYTES
    dear = needed(by_user("100/minute log", cost=10)).limits[0]
    assert dear.entries == 10 * 1000
    idle = needed(by_user("100/minute log"), users=10**6, rate=10).limits[0]
    assert (idle.states, idle.entries) == (695, 1295)


def test_the_most_expensive_tier_counts() -> None:
    found = needed(
        by_user({"free": "10/minute log", "pro": "1000/minute log"}),  # type: ignore[arg-type]
        tiers={"from": {"header": "X-Tier"}, "default": "free"},
    )
    assert [(need.tier, need.limit) for need in found.limits] == [("pro", "1000/minute log")]


def test_memory_is_the_sum_with_a_reserve() -> None:
    found = needed(by_user("5/minute; 100/hour"), {"by": ["ip"], "limits": "5/minute"})
    assert found.state_bytes == sum(need.total_bytes for need in found.limits)
    assert found.memory_bytes == pytest.approx(found.state_bytes * MEMORY_FACTOR, abs=1)


def test_the_most_expensive_request_is_a_possible_one() -> None:
    found = needed(
        by_user("5/minute", match={"path": "/a/**", "method": "POST"}),
        by_user("5/minute; 50/hour", match={"path": "/b/{id}", "method": "GET"}),
        {"by": ["ip"], "limits": "5/minute", "default": True},
        {"by": ["ip"], "limits": "5/minute", "match": {"header": {"X-Bot": True}}},
        exempt=[{"path": "/"}],
    )
    assert (found.request.method, found.request.path) == ("GET", "/b/x")
    assert found.request.rules == ("r1", "r3")
    assert (found.request.limits, found.request.calls) == (3, 2)


@pytest.mark.parametrize(
    "algorithm",
    ["5/minute fixed", "5/minute", "5/minute log", "5/minute burst 9", "5/minute bucket stepwise", "5/month in UTC"],
)
def test_a_server_decides_what_was_measured(algorithm: str) -> None:
    one, three = needed(by_user(algorithm)), needed(by_user("; ".join([algorithm] * 3)))
    measured = COSTS[parse_limits(algorithm)[0].algorithm]
    assert one.saturated == pytest.approx(measured.one, abs=1)
    assert three.saturated == pytest.approx(measured.three, abs=1)
    assert one.planned == pytest.approx(measured.one * BUSY_SHARE, abs=1)


def test_one_server_as_long_as_it_can_then_a_cluster() -> None:
    planned = needed(by_user("5/minute")).planned
    assert needed(by_user("5/minute"), rate=planned).layout == "single"
    more = needed(by_user("5/minute"), rate=planned * 7 + 10)
    assert (more.layout, more.shards, more.round_trips) == ("cluster", 8, 1)
    large = needed(by_user("5/day"), users=SERVER_BYTES // 50, rate=20_000)
    assert (large.layout, large.shards) == ("cluster", -(-large.memory_bytes // SERVER_BYTES))
    assert needed(by_user("5/minute"), rate=planned + 10).shards == 3


def test_several_keys_are_several_round_trips_in_a_cluster() -> None:
    rules = (by_user("5/minute"), by_user("9/hour"), {"by": ["ip"], "limits": "5/minute"})
    assert needed(*rules, rate=10).round_trips == 1
    assert needed(*rules, rate=200_000).round_trips == 2


def test_a_policy_that_a_cluster_cannot_hold_is_reported() -> None:
    rules = (by_user("50/second queue 200"), {"by": ["ip"], "limits": "5/minute"})
    assert needed(*rules, rate=10).obstacle == ""
    assert "rule r0 is a queue and may meet rule r1" in needed(*rules, rate=200_000).obstacle


def test_a_key_of_all_requests_is_good_for_what_one_shard_decides() -> None:
    rules = (by_user("5/minute"), {"by": [], "limits": "1000000/second"})
    calm = needed(*rules, rate=1000)
    (key,) = calm.shared_keys
    assert (key.rules, key.leased, calm.layout) == (("r1",), False, "single")
    busy = needed(*rules, rate=key.ceiling - 1)
    assert (busy.layout, busy.round_trips, busy.shared_keys[0].leased) == ("cluster", 2, False)
    over = needed(*rules, rate=key.ceiling + 1)
    assert over.shared_keys[0].leased
    assert over.round_trips == 1


@pytest.mark.parametrize(
    ("exempt", "method", "path"),
    [
        ({"path": "/"}, "GET", "/other/path"),
        ({"method": ["GET", "HEAD"]}, "POST", "/"),
        ({"method": "GET", "path": "/"}, "GET", "/other/path"),
        ({"path": "/health"}, "GET", "/"),
    ],
)
def test_an_exemption_is_not_taken_for_all_requests(exempt: dict[str, Any], method: str, path: str) -> None:
    found = needed(by_user("5/minute"), exempt=[exempt])
    assert (found.request.rules, found.request.method, found.request.path) == (("r0",), method, path)
    assert found.layout == "cluster"


def test_where_no_limit_applies_nothing_is_needed_but_memory() -> None:
    found = needed(by_user("5/minute"), exempt=[{"path": "/**"}])
    assert (found.request.limits, found.layout, found.saturated) == (0, "single", 0)


def test_the_capacity_lists_its_assumptions() -> None:
    assumptions = " ".join(needed(by_user("5/minute")).assumptions)
    assert "Redis 7" in assumptions
    assert "1.5 times" in assumptions


def test_each_unit_has_a_hash_of_its_own_and_a_cost_of_its_own() -> None:
    limits = "60/minute; 90000 tokens/minute bucket; 1000/hour; 5 usd/day"
    cost = {"tokens": 500, "usd": "0.01"}
    minute, hour, tokens, usd = needed(by_user(limits, cost=cost), users=10**9, rate=10).limits
    assert [need.limit for need in (minute, hour, tokens, usd)] == [
        "60/minute", "1000/hour", "90000 tokens/minute bucket", "5 usd/day",
    ]  # fmt: skip
    assert tokens.state_bytes > COSTS["token_bucket"].more_bytes < minute.state_bytes
    assert tokens.life_s == 2.375 and minute.life_s > 60
    assert usd.entries == 10 * (86_400 * 2 + 10_802)  # 500 of them fit in the quota of each user: fewer come


def test_a_cost_that_a_rule_does_not_say_may_be_a_whole_quota() -> None:
    said = needed(by_user("60/minute; 90000 tokens/minute bucket", cost={"tokens": 500}))
    unsaid = needed(by_user("60/minute; 90000 tokens/minute bucket"))
    assert unsaid.limits[1].life_s == 69.5 > said.limits[1].life_s
    assumed = "where a rule has no cost in a unit, one request may take the whole quota of that unit"
    assert assumed in unsaid.assumptions and assumed not in said.assumptions


def test_a_concurrent_limit_costs_a_hold_its_settlement_and_a_record_of_it() -> None:
    rates = needed(by_user("1000/minute"), rate=100)
    held = needed(by_user("20 concurrent; 1000/minute"), rate=100)
    records = held.limits[-1]
    assert (records.rule, records.states) == ("holds", 100 * 3660)
    assert held.state_bytes > 100 * 3660 * records.state_bytes > 100 * rates.state_bytes
    assert held.saturated < rates.saturated / 4
    assert needed(by_user("20 concurrent; 1000/month in UTC")).limits[-1].life_s > 30 * 86400
