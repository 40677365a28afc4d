"""Which CPUs the threads of front doors are pinned to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.errors import ConfigError
from headgate.service.workers.cpus import by_core, cpus_of_threads


@pytest.mark.parametrize(
    ("siblings", "order"),
    [
        (["0-1", "0-1", "2-3", "2-3"], [0, 2, 1, 3]),
        (["0,2", "1,3", "0,2", "1,3"], [0, 1, 2, 3]),
        (["0", "1", "2", "3"], [0, 1, 2, 3]),
        (["0-3", "0-3", "0-3", "0-3"], [0, 1, 2, 3]),
    ],
)
def test_each_core_gives_one_cpu_before_any_gives_a_second(
    tmp_path: Path, siblings: list[str], order: list[int]
) -> None:
    for cpu, siblings_of_cpu in enumerate(siblings):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings_of_cpu}\n")
    assert by_core(reversed(range(4)), tmp_path) == order


def test_without_a_topology_cpus_are_taken_by_number(tmp_path: Path) -> None:
    assert by_core([10, 2, 1], tmp_path) == [1, 2, 10]


def test_no_cpu_is_given_twice_and_all_are_those_of_this_process() -> None:
    own = os.sched_getaffinity(0)
    each = cpus_of_threads(len(own), 1)
    assert len(each) == len(own)
    assert {cpu for cpus in each for cpu in cpus} == own


def test_more_threads_than_cpus_are_refused() -> None:
    has = len(os.sched_getaffinity(0))
    with pytest.raises(ConfigError, match=rf"--pin-threads: .* 1 thread each need {has + 1}, and .* run on {has}: ask"):
        cpus_of_threads(has + 1, 1)
