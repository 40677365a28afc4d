"""The measured costs of states and decisions on a Redis.

Written by benchmarks/measure_capacity.py, which says how. Other machines have other rates of decisions.
"""

from __future__ import annotations

from typing import NamedTuple


class Costs(NamedTuple):
    """The costs of a limit of one algorithm."""

    state_bytes: int
    """The memory of one state, with all that Redis stores for a key: its name, two table entries, its time to live."""

    more_bytes: int
    """The memory of one more such limit of the same rule and key: a field, or for a log another key."""

    one: int
    """Decisions of one such limit, for each second that a server computes; of a concurrency limit, a hold and its
    settling."""

    three: int
    """Decisions of three such limits."""


SERVER = "Redis 7.0.15, jemalloc-5.3.0"
MACHINE = "AMD EPYC"
DAY = "2026-11-22"
METHOD = (
    "memory: growth of INFO's used_memory over 100,000 states; decisions: EVALSHA over one socket, hundreds on the "
    "way, on 20,000 keys, all admitted, for each second of the processor that the server used"
)

NAME_BYTES = 64
"""The length of the names of the measured keys; each further byte of a name takes a byte more of memory."""

ENTRY_BYTES = 16
"""The memory of one more request in a sliding log."""

LISTED_ENTRIES = 2
"""The most entries of a log with which Redis stores a key's fields in one list: hash-max-listpack-value is 64 bytes."""

TABLE_BYTES = 136
"""The further memory of a key once a log of it has more entries than that: its fields are in a table then."""

FIELD_BYTES = 48
"""The further memory of each other limit of the key then."""

HOLD_BYTES = 447
"""The memory of the record of a hold of one limit, which is stored for an hour, or the longest period of its limits."""

HELD_BYTES = 136
"""The memory of each further limit of a hold in its record."""

HELD_FACTOR = 3
"""The cost of a rate that is held and settled with a concurrency limit, as a multiple of its cost in a hit."""

COSTS = {
    "fixed_window": Costs(229, 56, 161_100, 97_800),
    "sliding_window": Costs(245, 48, 152_700, 88_700),
    "sliding_log": Costs(245, 64, 116_200, 61_600),
    "token_bucket": Costs(245, 48, 157_700, 85_000),
    "leaky_bucket": Costs(245, 48, 165_900, 86_900),
    "leaky_queue": Costs(245, 48, 138_200, 76_900),
    "stepwise": Costs(245, 48, 156_600, 94_800),
    "calendar_window": Costs(245, 48, 166_000, 93_400),
    "concurrent": Costs(477, 228, 24_700, 13_600),
}
