"""What a Redis needs for Headgate's states and decisions: the numbers of `headgate capacity`.

`python -m benchmarks.measure_capacity` starts a redis-server of its own, measures, and prints the module
`headgate/policy/measured.py`; with `--write` it replaces that file.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import median

import redis

from benchmarks.servers import redis_server
from headgate import core
from headgate.decision import NamedLimit, name_limits
from headgate.limit_text import parse_limits
from headgate.stores.redis_calls import Call
from headgate.stores.redis_scripts import all_scripts
from headgate.stores.redis_store import RedisStore

LIMITS = {
    "fixed_window": "1_000_000/hour fixed",
    "sliding_window": "1_000_000/hour",
    "sliding_log": "1_000_000/hour log",
    "token_bucket": "1000/second burst 1_000_000",
    "leaky_bucket": "1000/second leaky 1_000_000",
    "leaky_queue": "1000/second queue 1_000_000",
}
"""Limits that admit all that is asked here."""

MODULE = Path(__file__).parents[1] / "src" / "headgate" / "policy" / "measured.py"
KEYS = 100_000
LOGS, ENTRIES, APART_US = 400, 500, 7_000_000
AT_ONCE = 500
ROUNDS = 5


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
    """A server, and commands that are sent to it as they are, many at once."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.client = redis.Redis(port=port, protocol=2)
        self.store = RedisStore(f"redis://127.0.0.1:{port}/0")
        for script in all_scripts():
            self.client.script_load(script.text)

    def fresh(self) -> None:
        """Forget all keys."""
        self.client.flushall()

    def used_memory(self) -> int:
        """Bytes that the server has in use, without the buffers of its clients."""
        used = self.client.info("memory")
        return int(used["used_memory"]) - int(used["mem_clients_normal"])

    def used_cpu_s(self) -> float:
        """Seconds of a processor that the server has used."""
        used = self.client.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def requests(self, limits: Sequence[NamedLimit], texts: Sequence[str], moment_us: int | None = None) -> list[bytes]:
        """A decision on each key, as it is sent."""
        calls = self.store.calls(limits)
        return [
            _encoded(next(calls.decide(calls.names([text]), [1] * len(limits), now_us=moment_us))) for text in texts
        ]

    def send(self, requests: Sequence[bytes]) -> None:
        """Send decisions, some hundred of them on the way at any time, until all are answered."""
        chunks = [requests[at : at + AT_ONCE] for at in range(0, len(requests), AT_ONCE)]
        due = 0
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            for chunk in [*chunks, []]:
                line.sendall(b"".join(chunk))
                while due > 0:  # what was sent before this
                    data = line.recv(1 << 20)
                    if not data or b"-" in data:  # numbers of an admission are not below 0
                        raise RuntimeError(f"not all were admitted: {data[:200]!r}")
                    due -= data.count(b"*")
                due += len(chunk)

    def bytes_a_key(self, algorithm: str) -> tuple[int, int, float]:
        """(bytes a key, bytes of its name, bytes for each more of its name)."""
        found = []
        for text in ("user|{:011d}", "user|{:043d}"):
            self.fresh()
            limits = limits_of(algorithm)
            requests = self.requests(limits, [text.format(number) for number in range(KEYS)])
            before = self.used_memory()
            self.send(requests)
            name = self.store.calls(limits).names([text.format(0)])[0]
            found.append(((self.used_memory() - before) / KEYS, len(name)))
        (least, shorter), (most, longer) = found
        return round(least), shorter, (most - least) / (longer - shorter)

    def bytes_an_entry(self) -> float:
        """Bytes of one more entry of a log."""
        self.fresh()
        limits = name_limits(parse_limits("1_000_000/hour log"), scope="shop/1/search", name="search")
        texts = [f"user|{number:011d}" for number in range(LOGS)]
        start_us = 1_800_000_000_000_000
        self.send(self.requests(limits, texts, start_us))
        before = self.used_memory()
        for entry in range(1, ENTRIES + 1):
            self.send(self.requests(limits, texts, start_us + entry * APART_US))
        return (self.used_memory() - before) / (LOGS * ENTRIES)

    def decisions_a_second(self, algorithm: str, count: int) -> int:
        """Decisions for each second that the server computes, of so many limits each."""
        self.fresh()
        requests = self.requests(limits_of(algorithm, count), [f"user|{number:011d}" for number in range(KEYS)])
        self.send(requests)  # makes the keys, and warms up
        rates = []
        for _ in range(ROUNDS):
            before_s = self.used_cpu_s()
            self.send(requests)
            rates.append(len(requests) / (self.used_cpu_s() - before_s))
        return round(median(rates), -2)  # type: ignore[return-value]  # a whole number


def limits_of(algorithm: str, count: int = 1) -> tuple[NamedLimit, ...]:
    """So many limits of one algorithm, as a rule has them."""
    return name_limits(parse_limits("; ".join([LIMITS[algorithm]] * count)), scope="shop/1/search", name="search")


def _encoded(call: Call) -> bytes:
    words = [b"EVALSHA", call.script.sha.encode(), b"%d" % len(call.keys), *call.keys, *call.arguments]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def module(measuring: Measuring) -> str:
    """The numbers as a module."""
    server = measuring.client.info("server")
    keys = {algorithm: measuring.bytes_a_key(algorithm) for algorithm in LIMITS}
    name_bytes = {shorter for _, shorter, _ in keys.values()}
    slopes = [slope for _, _, slope in keys.values()]
    one = {algorithm: measuring.decisions_a_second(algorithm, 1) for algorithm in LIMITS}
    three = {algorithm: measuring.decisions_a_second(algorithm, 3) for algorithm in LIMITS}
    rows = [
        f'    "{algorithm}": Costs({keys[algorithm][0]}, {keys[algorithm][1]}, {one[algorithm]:_}, {three[algorithm]:_}),'
        for algorithm in LIMITS
    ]
    print(name_bytes, slopes)
    return "\n".join(
        [
            '''"""What a Redis needs for states and decisions, as it was measured: written by benchmarks/measure_capacity.py.''',
            "",
            f"Redis {server['redis_version']} with {server['mem_allocator'] if 'mem_allocator' in server else 'its allocator'}",
            *rows,
            f"ENTRY_BYTES = {measuring.bytes_an_entry():.1f}",
        ]
    )


if __name__ == "__main__":
    main()
