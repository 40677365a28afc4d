"""One zone, many processes: exact when all decide at once, whole whenever one of them dies."""

from __future__ import annotations

import pytest
from programs import LONG, results_of

from subjects import KINDS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif("shared" not in KINDS, reason="the shared store needs the native core"),
]


def test_processes_and_threads_that_decide_at_once_pass_exactly_the_limit() -> None:
    rounds = 20_000 if LONG else 1000
    results = results_of("crowd.py", "exact", str(rounds), within_s=3600)
    assert len(results) == 9
    for result in results:
        assert result["ended_well"] and result["fault"] is None, result
        assert result["exact"] == rounds, result
        assert result["shared_by_several"] > rounds // 2, result


def test_processes_killed_at_random_block_no_other_process_and_lose_nothing() -> None:
    processes = 1000 if LONG else 80
    results = results_of("crowd.py", "killed", str(processes), within_s=3600)
    assert len(results) == 9
    for result in results:
        assert result["fault"] is None, result
        assert result["too_many"] == 0, result
        # Each process that dies may have charged one decision that it did not report.
        assert result["unreported"] <= result["killed"], result
        assert result["killed"] == processes, result


def test_a_hold_of_one_process_is_settled_by_another_and_places_are_never_more_than_there_are() -> None:
    rounds = 5000 if LONG else 500
    [result] = results_of("crowd_holds.py", "flood", str(rounds), within_s=600)
    assert result["ended_well"] and result["fault"] is None, result
    assert 0 < result["most"] <= 20 and result["places_left"] == 20, result
    assert result["settled"] == 4 * rounds, result


def test_places_held_by_killed_processes_are_free_at_the_end_of_the_lease_and_settled_once() -> None:
    processes = 1000 if LONG else 80
    [result] = results_of("crowd_holds.py", "killed", str(processes), within_s=600)
    assert result["killed"] == processes and result["fault"] is None, result
    assert result["free"] == [20], result  # whatever was pending
    assert result["reported"] > processes and result["settled"] == result["reported"], result
    assert result["again"] == ["already settled"] and result["given_back"] == 2 * result["reported"], result
    assert 0 <= result["unreported"] <= 3 * processes, result


def test_whatever_bits_a_zone_holds_it_answers_or_raises_a_store_error() -> None:
    results = results_of("flipping.py", "20000" if LONG else "300", within_s=3600)
    assert [result["part"] for result in results][-1] == "anywhere" and len(results) == 8
    for result in results:
        assert result["answers"] > 100, result
        assert result["part"] in ("records", "header", "lock") or result["StoreKeyError"] > 100, result


def test_a_stopped_process_is_named_and_waited_for_once_until_it_continues_or_is_killed() -> None:
    *results, continued, killed = results_of("killer.py", "stopped")
    assert len(results) == 2
    for result in results:
        assert result["names_the_process"], result
        assert "more than 250 ms" in result["error"]
        assert 0.2 < result["waited_s"] < 5
        assert result["refused_at_once"] == 200, result
        assert result["refused_in_s"] < 2, result  # 50 s if each were to wait
        assert result["others"] == 100, result
        assert result["is_back"], result
    for gate_result in (continued, killed):
        assert gate_result["degraded"] == ["", "closed"]
        assert gate_result["waits"] == 1, gate_result
        assert gate_result["degraded_later"] == [""]
        assert len(gate_result["log"]) == 2, gate_result
        assert "more than 250 ms" in gate_result["log"][0] and "answers again" in gate_result["log"][1]


def test_processes_that_reload_a_thousand_policies_neither_fill_a_zone_nor_lose_charges() -> None:
    reloads = 1000
    [result] = results_of("reloading.py", str(reloads), within_s=600)
    assert [process["errors"] for process in result["processes"]] == [[], []], result
    assert [process["degraded"] for process in result["processes"]] == [[], []], result
    assert result["fault"] is None, result
    assert result["known"] <= result["most"] < reloads, result
    assert set(result["used"]) == {2 * reloads}, result
