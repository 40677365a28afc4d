"""Which CPU each thread of the front doors runs on, where they are pinned."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from headgate.errors import ConfigError

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cpus_of_threads(workers: int, threads: int) -> list[tuple[int, ...]]:
    """For each worker the CPUs that its threads run on, each of them given once.

    They are those that this process may run on. Each core gives one CPU before any gives a second, as CPUs of one core
    take from each other. Raises ConfigError where there are fewer than threads.
    """
    cpus = by_core(os.sched_getaffinity(0))
    if workers * threads > len(cpus):
        asked = f"{threads} thread{'s' if threads > 1 else ''}"
        if workers > 1:
            asked = f"{workers} workers of {asked} each"
        raise ConfigError(
            f"--pin-threads: each thread needs a CPU of its own; {asked} need {workers * threads}, and this process "
            f"may run on {len(cpus)}: ask for fewer, or leave --pin-threads out"
        )
    return [tuple(cpus[first : first + threads]) for first in range(0, workers * threads, threads)]


def by_core(cpus: Iterable[int], topology: Path = _TOPOLOGY) -> list[int]:
    """These CPUs, the first of each core before the second of any; by number where the system does not tell."""
    return sorted(cpus, key=lambda cpu: (_place_in_core(cpu, topology), cpu))


def _place_in_core(cpu: int, topology: Path) -> int:
    """How many CPUs of the same core come before this one."""
    try:
        told = Path(topology, f"cpu{cpu}", "topology", "thread_siblings_list").read_text()
    except OSError:
        return 0
    return sum(other < cpu for other in _listed(told))


def _listed(told: str) -> set[int]:
    """The numbers of a list such as `0,4-6`."""
    ranges = [[int(end) for end in part.split("-")] for part in told.split(",")]
    return {number for ends in ranges for number in range(ends[0], ends[-1] + 1)}
