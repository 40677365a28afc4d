"""The traps that others fell into: each by its name, with the tests that hold it shut."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from headgate import SlidingLog, TokenBucket
from headgate.testing import ManualClock
from subjects import START_US, make_limiter

FOLDER = Path(__file__).parents[1]

TRAPS = {
    "a refused request that consumes quota, in one limit or in the broader one": [
        "laws/test_laws.py::test_a_refusal_changes_nothing_in_any_limit",
        "laws/test_laws.py::test_all_or_none_several_limits_admit_what_each_would_admit",
        "unit/test_fastapi.py::test_what_a_narrower_limit_refuses_is_charged_in_none",
    ],
    "a check in several round trips, raced": [
        "integration/test_redis_store.py::test_a_burst_on_one_key_passes_exactly_the_limit",
        "unit/test_middleware.py::test_concurrent_guesses_are_limited_like_consecutive_ones",
    ],
    "a TTL of zero, missing, or shorter than the refill": [
        "integration/test_redis_store.py::test_nothing_is_kept_without_an_expiry",
        "laws/test_laws.py::test_forgetting_is_invisible_once_reset_after_has_passed_and_not_before",
    ],
    "a burst below the rate": ["unit/test_traps.py::test_a_burst_below_the_rate_holds_no_more_than_the_burst"],
    "a burst of 1": ["unit/test_traps.py::test_a_burst_of_1_passes_once_in_its_time"],
    "fractions of a token lost by whole-second clocks": [
        "unit/test_traps.py::test_fractions_of_a_token_are_kept",
    ],
    "float repair that admits early": [
        "laws/test_laws.py::test_exact_wait_refused_just_before_and_admitted_at_retry_after",
    ],
    "Retry-After rounded down to 0, or a constant": ["unit/test_http.py::test_retry_after_is_rounded_up_and_never_0"],
    "keys joined without escaping": [
        "unit/test_keys.py::test_two_keys_share_a_text_only_if_their_parts_are_the_same",
        "unit/test_who.py::test_parts_cannot_run_into_each_other",
    ],
    "the leftmost X-Forwarded-For": [
        "unit/test_address.py::test_the_client_is_the_last_address_that_is_vouched_for",
        "unit/test_address.py::test_counting_hops_takes_the_element_at_that_place_from_the_right",
    ],
    "IPv4 in IPv6 clothes masked into one bucket": [
        "unit/test_address.py::test_each_address_has_only_one_written_form",
        "unit/test_request_limits.py::test_ipv4_and_mapped_addresses_have_no_wider_network",
    ],
    "an empty identity that means no limit": [
        "unit/test_gate.py::test_a_missing_identity_is_counted_as_anonymous_and_never_passes_free",
        "unit/test_fastapi.py::test_an_empty_identity_is_no_free_pass",
    ],
    "concrete paths as keys": [
        "unit/test_flask.py::test_concrete_paths_are_one_limit_and_routes_are_several",
        "unit/test_fastapi.py::test_concrete_paths_are_no_keys",
    ],
    "lost mount and router prefixes": [
        "unit/test_fastapi.py::test_a_route_counts_under_its_whole_template",
        "unit/test_flask.py::test_blueprints_and_mounts_with_the_same_inner_rule_are_several_limits",
    ],
    "routes behind include_router, mounts and 404s left unlimited": [
        "unit/test_fastapi.py::"
        "test_routes_of_an_included_router_are_limited_and_what_no_route_finds_is_the_middlewares",
        "unit/test_middleware.py::test_a_request_for_a_missing_path_is_counted_and_head_has_no_body",
    ],
    "http.response.start sent twice on streams": [
        "unit/test_fastapi.py::test_a_stream_begins_once",
        "unit/test_litestar.py::test_a_head_is_sent_once_and_the_parts_of_a_stream_pass_one_by_one",
    ],
    "a sync store called on the event loop": [
        "unit/test_litestar.py::test_a_store_that_would_block_the_event_loop_is_told_at_once",
        "unit/test_django.py::test_no_store_is_waited_for_on_an_event_loop",
    ],
    "one waiter that blocks callers of other keys": [
        "unit/test_waiting.py::test_a_waiter_of_one_key_does_not_hold_up_another_key",
    ],
    "the smallest request that overtakes a big one for ever": [
        "unit/test_waiting.py::test_threads_are_admitted_in_the_order_of_arrival",
        "unit/test_waiting.py::test_tasks_are_admitted_in_the_order_of_arrival",
    ],
    "eviction that frees a blocked client": [
        "unit/test_memory_store.py::test_a_flood_of_new_keys_never_frees_a_blocked_one",
    ],
    "clocks of clients that differ": [
        "integration/test_redis_store.py::test_clients_whose_clocks_differ_by_minutes_are_one_limit",
    ],
    "NOSCRIPT after a restart, CROSSSLOT on a Cluster": [
        "integration/test_redis_store.py::test_script_flush_inside_a_burst_loses_and_repeats_nothing",
        "integration/test_redis_topologies.py::test_slots_move_while_traffic_runs_and_exactly_the_limit_passes",
    ],
    "a cost of 0, a negative one, one above capacity, a huge one": [
        "unit/test_keys.py::test_an_invalid_cost_is_refused_and_nothing_is_charged",
        "unit/test_keys.py::test_the_largest_cost_is_never_admitted_and_never_an_error",
        "unit/test_keys.py::test_a_cost_of_none_is_not_a_cost_of_one",
    ],
    "simultaneous requests that collapse into one entry of a log": [
        "unit/test_traps.py::test_simultaneous_requests_are_as_many_entries_of_a_log",
    ],
    "retries that charge twice": [
        "integration/test_redis_outages.py::test_lost_replies_are_never_repeated_by_the_guard",
    ],
    "labels of metrics made of clients' keys": [
        "integration/test_service.py::test_metrics_count_decisions_by_rule_and_result_and_never_a_key",
    ],
    "secrets in keys, logs and labels": [
        "unit/test_who.py::test_a_secret_is_in_no_key",
        "unit/test_jwt.py::test_no_token_and_no_secret_is_in_a_log_or_an_error",
    ],
    "an outage of the limiter turned into 500, 400 or 429": [
        "unit/test_service_app.py::test_a_store_that_does_not_answer_is_503_with_a_problem",
        "integration/test_redis_outages.py::test_an_outage_under_load_harms_no_request",
    ],
}


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((FOLDER / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("trap", TRAPS)
def test_each_trap_has_a_test(trap: str) -> None:
    for test in TRAPS[trap]:
        file, _, name = test.partition("::")
        assert name in names_in(file), f"{trap}: {file} has no {name}"


def test_a_burst_below_the_rate_holds_no_more_than_the_burst(core: str) -> None:
    clock = ManualClock(START_US)
    limiter = make_limiter(core, TokenBucket(capacity=2, refill=10, period="second"), clock)
    assert [limiter.hit("key").allowed for _ in range(3)] == [True, True, False]
    clock.advance(100_000)
    assert [limiter.hit("key").allowed for _ in range(2)] == [True, False]
    clock.advance(60_000_000)
    assert [limiter.hit("key").allowed for _ in range(3)] == [True, True, False]


def test_a_burst_of_1_passes_once_in_its_time(core: str) -> None:
    clock = ManualClock(START_US)
    limiter = make_limiter(core, "1/second burst 1", clock)
    for _ in range(3):
        assert limiter.hit("key").allowed
        refused = limiter.hit("key")
        assert (refused.allowed, refused.retry_after_us) == (False, 1_000_000)
        clock.advance(999_999)
        assert not limiter.hit("key").allowed
        clock.advance(1)


def test_fractions_of_a_token_are_kept(core: str) -> None:
    clock = ManualClock(START_US)
    limiter = make_limiter(core, "10/second burst 1", clock)
    limiter.hit("key")
    passed = 0
    for _ in range(1000):  # a request every 30 ms, in which three tenths of a token are refilled
        clock.advance(30_000)
        passed += limiter.hit("key").allowed
    assert passed == 250, "a bucket of one token is full again after 100 ms: every fourth request finds it so"


def test_simultaneous_requests_are_as_many_entries_of_a_log(core: str) -> None:
    limiter = make_limiter(core, SlidingLog(limit=5, period="minute"), ManualClock(START_US))
    assert [limiter.hit("key").allowed for _ in range(7)] == [True] * 5 + [False] * 2
