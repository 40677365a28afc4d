"""The memory and time that a Redis needs for Headgate's states and decisions: the numbers of `headgate capacity`.

`python -m benchmarks.measure_capacity` starts a redis-server of its own, measures, and prints the module
`headgate/planning/redis_costs.py`; with `--write` it replaces that file.
"""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import median
from struct import unpack

import hiredis
import redis

from benchmarks.measure_holds import hold_costs
from benchmarks.servers import redis_server
from headgate.decision import NamedLimit, name_limits
from headgate.keys import Key
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.redis.codec import UNITS, KeyName
from headgate.stores.redis.commands import ScriptCall
from headgate.stores.redis.store import RedisStore

LIMITS = {
    "fixed_window": "1_000/day fixed",
    "sliding_window": "1_000/day",
    "sliding_log": "1_000/day log",
    "token_bucket": "1_000/day burst 1_000",
    "leaky_bucket": "1_000/day leaky 1_000",
    "leaky_queue": "1_000/day queue 1_000",
    "stepwise": "1_000/day bucket stepwise",
    "calendar_window": "1_000/year in UTC",
}
"""Limits that admit all requests here, and whose states outlive the measurement."""

TEMPLATE = '''\
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


SERVER = "{server}"
MACHINE = "{machine}"
DAY = "{day}"
METHOD = (
    "memory: growth of INFO's used_memory over {keys:,} states; decisions: EVALSHA over one socket, hundreds on the "
    "way, on {asked:,} keys, all admitted, for each second of the processor that the server used"
)

NAME_BYTES = {name_bytes}
"""The length of the names of the measured keys; each further byte of a name takes a byte more of memory."""

ENTRY_BYTES = {entry_bytes}
"""The memory of one more request in a sliding log."""

LISTED_ENTRIES = {listed_entries}
"""The most entries of a log with which Redis stores a key's fields in one list: hash-max-listpack-value is 64 bytes."""

TABLE_BYTES = {table_bytes}
"""The further memory of a key once a log of it has more entries than that: its fields are in a table then."""

FIELD_BYTES = {field_bytes}
"""The further memory of each other limit of the key then."""

HOLD_BYTES = {hold_bytes}
"""The memory of the record of a hold of one limit, which is stored for an hour, or the longest period of its limits."""

HELD_BYTES = {held_bytes}
"""The memory of each further limit of a hold in its record."""

HELD_FACTOR = {held_factor}
"""The cost of a rate that is held and settled with a concurrency limit, as a multiple of its cost in a hit."""

COSTS = {{
{costs}
}}
'''

MODULE = Path(__file__).parents[1] / "src" / "headgate" / "planning" / "redis_costs.py"
NAME_BYTES = 64
KEYS = 100_000
DECISION_KEYS = 20_000
LOGS, ENTRIES, ENTRY_GAP_US = 400, 400, 8_000_000
LISTED_ENTRIES = 2
AT_ONCE = 500
ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.measure_capacity", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"replace {MODULE.name}")
    options = parser.parse_args()
    with redis_server() as port:
        text = module(Measuring(port))
    if options.write:
        MODULE.write_text(text)
    print(text)


class Measuring:
    """A server, and encoded commands that are sent to it, many at once."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.client = redis.Redis(port=port, protocol=2)
        self.store = RedisStore(f"redis://127.0.0.1:{port}/0")

    def fresh(self) -> None:
        """Delete all keys."""
        self.client.flushall()

    def used_memory(self) -> int:
        """Bytes that the server has in use, without the buffers of its clients."""
        used = self.client.info("memory")
        return int(used["used_memory"]) - int(used["mem_clients_normal"])

    def used_cpu_s(self) -> float:
        """Seconds of a processor that the server has used."""
        used = self.client.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def buffers(self, limits: Sequence[NamedLimit], keys: Sequence[Key], now_us: int | None = None) -> list[bytes]:
        """The encoded decisions on each key, AT_ONCE of them in each buffer."""
        commands = self.store.commands(limits)
        calls = [next(commands.decide(Operation((key,), (1,), now_us=now_us))) for key in keys]
        for text in {call.script.text for call in calls}:
            self.client.script_load(text)
        encoded_calls = [encoded(call) for call in calls]
        return [b"".join(encoded_calls[at : at + AT_ONCE]) for at in range(0, len(encoded_calls), AT_ONCE)]

    def send(self, buffers: Sequence[bytes]) -> None:
        """Send decisions, at most two buffers of them at a time, until all are answered."""
        due, replies = 0, hiredis.Reader()
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            for buffer in [*buffers, b""]:
                connection.sendall(buffer)
                while due > 0:  # the replies to the previous buffer
                    replies.feed(connection.recv(1 << 20))
                    while (reply := replies.gets()) is not False:
                        if not _is_admission(reply):
                            raise RuntimeError(f"not all were admitted: {reply!r}")
                        due -= 1
                due += buffer.count(b"EVALSHA")

    def bytes_a_key(self, algorithm: str, count: int = 1) -> int:
        """Bytes of the states of `count` limits of a key, where the first one's name has NAME_BYTES bytes."""
        self.fresh()
        limits = limits_of(algorithm, count)
        keys = keys_of(KEYS, limits)
        assert len(self.store.commands(limits).names(keys[:1])[0]) == NAME_BYTES
        buffers = self.buffers(limits, keys)
        before = self.used_memory()
        self.send(buffers)
        return round((self.used_memory() - before) / KEYS)

    def bytes_an_entry(self) -> float:
        """Bytes of one more entry of a log."""
        self.fresh()
        limits = limits_of("sliding_log")
        keys = keys_of(LOGS, limits)
        now_us = 1_800_000_000_000_000
        self.send(self.buffers(limits, keys, now_us))
        before = self.used_memory()
        for entry in range(1, ENTRIES + 1):
            self.send(self.buffers(limits, keys, now_us + entry * ENTRY_GAP_US))
        return (self.used_memory() - before) / (LOGS * ENTRIES)

    def bytes_of_a_table(self, fixed_windows: int = 0) -> float:
        """Additional bytes of a log, and of other limits of its key, once it has more than LISTED_ENTRIES entries."""
        self.fresh()
        texts = [LIMITS["sliding_log"], *[LIMITS["fixed_window"]] * fixed_windows]
        limits = name_limits(parse_limits("; ".join(texts)), scope="shop/1/search", name="search")
        keys = keys_of(DECISION_KEYS, limits)
        used = []
        for entry in range(1, LISTED_ENTRIES + 2):
            self.send(self.buffers(limits, keys, 1_800_000_000_000_000 + entry * ENTRY_GAP_US))
            encodings = {self.client.object("encoding", name) for name in self.client.scan_iter(count=1000)}
            assert encodings == {b"hashtable" if entry > LISTED_ENTRIES else b"listpack"}, encodings
            used.append(self.used_memory())
        return (used[-1] - used[-2]) / DECISION_KEYS

    def decisions_a_second(self) -> dict[tuple[str, int], int]:
        """Decisions for each second that the server computes, by algorithm and number of limits; measured in turns."""
        self.fresh()
        subjects = {
            (algorithm, count): self.buffers(limits_of(algorithm, count), keys_of(DECISION_KEYS, limits_of(algorithm)))
            for algorithm in LIMITS
            for count in (1, 3)
        }
        rates: dict[tuple[str, int], list[float]] = {subject: [] for subject in subjects}
        for round_number in range(ROUNDS + 1):
            for subject, buffers in subjects.items():
                before_s = self.used_cpu_s()
                self.send(buffers)
                if round_number:  # the first creates the keys, and warms up
                    rates[subject].append(DECISION_KEYS / (self.used_cpu_s() - before_s))
        return {subject: int(median(found)) // 100 * 100 for subject, found in rates.items()}


def limits_of(algorithm: str, count: int = 1) -> tuple[NamedLimit, ...]:
    """`count` limits of one algorithm, as those of a rule; each algorithm's rule has states of its own."""
    texts = "; ".join([LIMITS[algorithm]] * count)
    return name_limits(parse_limits(texts), scope=f"shop/1/{algorithm}", name=algorithm)


def machine() -> str:
    """The processor, as the system names it."""
    found = re.search("model name\\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else "an unknown machine"


def keys_of(count: int, limits: Sequence[NamedLimit]) -> list[Key]:
    """Users, whose keys have names of NAME_BYTES bytes under the first of these limits."""
    digits = NAME_BYTES - len(KeyName("hg", limits[0]).of("user|"))
    return [("user", f"{number:0{digits}d}") for number in range(count)]


def _is_admission(reply: object) -> bool:
    """Whether a script's reply has no wait: five numbers for each limit may have one, states of buckets have none."""
    if not isinstance(reply, bytes) or len(reply) == UNITS:
        return False
    return len(reply) % 40 != 0 or not any(unpack(f"<{len(reply) // 8}d", reply)[3::5])


def encoded(call: ScriptCall) -> bytes:
    words = [b"EVALSHA", call.script.sha.encode(), b"%d" % len(call.keys), *call.keys, *call.arguments]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def module(measuring: Measuring) -> str:
    """The numbers as the text of a module."""
    server, allocator = measuring.client.info("server"), measuring.client.info("memory")["mem_allocator"]
    rates = measuring.decisions_a_second()
    costs = []
    for algorithm in LIMITS:
        one, three = measuring.bytes_a_key(algorithm), measuring.bytes_a_key(algorithm, 3)
        numbers = f"{one}, {round((three - one) / 2)}, {rates[algorithm, 1]:_}, {rates[algorithm, 3]:_}"
        costs.append(f'    "{algorithm}": Costs({numbers}),')
    held = hold_costs(measuring, (1 / rates["fixed_window", 3] - 1 / rates["fixed_window", 1]) / 2)
    costs.append(f'    "concurrent": Costs({held.concurrent}),')
    return TEMPLATE.format(
        hold_bytes=held.hold_bytes,
        held_bytes=held.held_bytes,
        held_factor=held.held_factor,
        server=f"Redis {server['redis_version']}, {allocator}",
        machine=machine(),
        day=date.today(),
        keys=KEYS,
        asked=DECISION_KEYS,
        name_bytes=NAME_BYTES,
        costs="\n".join(costs),
        entry_bytes=round(measuring.bytes_an_entry() + 0.5),
        listed_entries=LISTED_ENTRIES,
        table_bytes=(table := round(measuring.bytes_of_a_table())),
        field_bytes=round((measuring.bytes_of_a_table(2) - table) / 2),
    )


if __name__ == "__main__":
    main()
