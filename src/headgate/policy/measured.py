"""What a Redis needs for states and decisions, as it was measured.

Written by benchmarks/measure_capacity.py, which tells how. Another machine has other decisions a second.
"""

from __future__ import annotations

from typing import NamedTuple


class Costs(NamedTuple):
    """What a limit of one algorithm costs."""

    state_bytes: int
    """Memory of one state, with all that Redis keeps for a key: its name, two table entries, its time to live."""

    one: int
    """Decisions of one such limit, for each second that a server computes."""

    three: int
    """Decisions of three such limits."""


SERVER = "Redis 7.0.15, jemalloc-5.3.0"
MACHINE = "AMD EPYC"
DAY = "2026-11-21"
METHOD = (
    "memory: growth of INFO's used_memory over 100,000 states; decisions: EVALSHA over one socket, hundreds on the "
    "way, on 20,000 keys, all admitted, for each second of the processor that the server used"
)

NAME_BYTES = 64
"""Length of the names of the measured keys; a byte more of a name is a byte more of memory."""

ENTRY_BYTES = 11
"""Memory of one more request in a sliding log."""

COSTS = {
    "fixed_window": Costs(229, 166_600, 70_300),
    "sliding_window": Costs(229, 173_000, 60_100),
    "sliding_log": Costs(325, 86_900, 25_700),
    "token_bucket": Costs(229, 136_100, 57_500),
    "leaky_bucket": Costs(229, 141_300, 57_100),
    "leaky_queue": Costs(229, 134_400, 57_500),
}
