"""Which CPU each thread of the front doors runs on, where they are pinned."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from headgate.errors import ConfigError

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cpus_of_threads(workers: int, threads: int) -> list[tuple[int, ...]]:
    """For each worker the CPUs that its threads run on; no CPU is assigned twice.

    The CPUs are those that this process may run on. Each core provides one CPU before any provides a second, as CPUs
    of one core share its resources. Raises ConfigError where there are fewer CPUs than threads.
    """
    cpus = by_core(os.sched_getaffinity(0))
    if workers * threads > len(cpus):
        needed = f"{threads} thread{'s' if threads > 1 else ''}"
        if workers > 1:
            needed = f"{workers} workers of {needed} each"
        raise ConfigError(
            f"--pin-threads: each thread needs a CPU of its own; {needed} need {workers * threads}, and this process "
            f"may run on {len(cpus)}: ask for fewer, or leave --pin-threads out"
        )
    return [tuple(cpus[first : first + threads]) for first in range(0, workers * threads, threads)]


def by_core(cpus: Iterable[int], topology: Path = _TOPOLOGY) -> list[int]:
    """These CPUs, the first of each core before the second of any; by number where the topology is unknown."""
    return sorted(cpus, key=lambda cpu: (_place_in_core(cpu, topology), cpu))


def _place_in_core(cpu: int, topology: Path) -> int:
    """The number of CPUs of the same core with lower numbers."""
    try:
        cpu_list = Path(topology, f"cpu{cpu}", "topology", "thread_siblings_list").read_text()
    except OSError:
        return 0
    return sum(other < cpu for other in _parse_cpu_list(cpu_list))


def _parse_cpu_list(cpu_list: str) -> set[int]:
    """The numbers of a list such as `0,4-6`."""
    ranges = [[int(end) for end in part.split("-")] for part in cpu_list.split(",")]
    return {number for ends in ranges for number in range(ends[0], ends[-1] + 1)}
