"""At whatever instruction a process is killed: the zone is whole, and its decision charged or not."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hold_killer import scenarios as scenarios_of_holds
from killer import scenarios
from programs import LONG, results_of
from traced import KNOWS_REGISTERS

from subjects import KINDS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif("shared" not in KINDS, reason="the shared store needs the native core"),
]

DEATHS = "" if LONG else "30" if KNOWS_REGISTERS else "4"
"""How many processes are killed in a scenario; "" for one at each of its changes."""


def test_a_process_killed_at_any_instruction_leaves_its_decision_charged_or_not() -> None:
    names = [scenario.name for scenario in scenarios()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results_of_each = list(pool.map(lambda name: results_of("killer.py", DEATHS, name, within_s=7200), names))
    results = [result for [result] in results_of_each]
    assert len(results) >= 20
    for result in results:
        assert result["before"] and result["after"], result
    assert sum(result["deaths"] for result in results) > 60
    assert sum(result["second_deaths"] for result in results) > 12
    assert sum(result["mended"] for result in results) > 20


def test_a_process_killed_at_any_instruction_of_holding_leaves_the_hold_made_and_settled_or_not() -> None:
    names = [scenario.name for scenario in scenarios_of_holds()]
    assert len(names) >= 28
    chosen = names if LONG else [name for name in names if "shards" not in name][::3]
    # Survivors continue in a zone that is full.
    chosen = list(dict.fromkeys([*chosen, "a full store forgets", "holds in the way"]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results_of_each = list(pool.map(lambda name: results_of("hold_killer.py", DEATHS, name, within_s=7200), chosen))
    results = [result for [result] in results_of_each]
    for result in results:
        assert result["before"] and result["after"], result
    assert sum(result["deaths"] for result in results) >= 4 * len(results)
    assert sum(result["second_deaths"] for result in results) > 5 * len(results)
    assert sum(result["mended"] for result in results) > 5 * len(results)


def test_a_process_killed_while_it_takes_back_limits_leaves_a_zone_that_is_whole() -> None:
    [result] = results_of("killer.py", "limits", within_s=600)
    assert result["deaths"] > 200 and result["before"] and result["after"], result


def test_a_process_that_runs_from_write_to_write_stops_at_every_change() -> None:
    [result] = results_of("killer.py", "steps")
    assert result["by_writes"] == result["by_instructions"] > 10
