"""The Redis store: round trips, the cost of a decision on the server, and its overhead in a process."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles
from typing import Any

import hiredis
import limits
import redis

from benchmarks.measuring import Section, Target, in_turns, timed_loop
from benchmarks.servers import program, redis_server
from headgate import Limiter
from headgate.decision import name_limits
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.redis.codec import read_state
from headgate.stores.redis.commands import Commands
from headgate.stores.redis.scripts import PACKED
from headgate.stores.redis.store import RedisStore

ADMITTING = {
    "fixed window": "1000000000/hour fixed",
    "sliding window counter": "1000000000/hour",
    "token bucket": "1000000/hour bucket",
    "leaky bucket": "1000000/hour leaky 1000000",
    "leaky queue": "1000000/hour queue 1000000",
    "sliding window log": "100000/hour log",
    "three token buckets": "1000000/hour bucket; 2000000/day bucket; 3000000/week bucket",
    "three different limits": "1000000/hour bucket; 1000000000/hour fixed; 1000000000/day",
}
REFUSING = {
    "fixed window": "1/week fixed",
    "sliding window counter": "1/week counter",
    "token bucket": "1/week bucket",
    "leaky bucket": "1/week leaky 1",
    "leaky queue": "1/week queue 1",
    "sliding window log": "1/week log",
    "three token buckets": "1/week bucket; 2000000/day bucket; 3000000/week bucket",
    "three different limits": "1/week bucket; 1000000000/hour fixed; 1000000000/day",
}
"""The same limits, each exhausted by one request."""

FIVE = "1000000/second; 1000000/minute; 10000000/hour; 10000000/day; 10000000/week"
ONE_GET_ONE_SET = """
local value = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
KEYS = 1000
RATE = 5000
CONCURRENT = 100
LOGS = 500
LOG_ROUND_S = 0.02
LOG_ROUNDS = 4 * PACKED
"""Rounds in which entries are moved into another field of a log a whole number of times."""

LOG_TARGETS = {10: 0.55, 100: 0.45}
"""The share of the rate of one GET and one SET that a log of so many entries has to reach."""


def run(quick: bool) -> Section:
    """Measure all of it."""
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    if program("redis-server"):
        with redis_server() as port:
            targets += [_round_trips(rows, port), *_server(rows, port, quick), *_logs(rows, port, quick)]
            targets += [_one_call(rows, port, quick), _joined(rows, port, quick)]
            _latency(rows, port, quick)
    return Section(
        "A fleet on Redis",
        "One Redis on loopback, which shares the two cores with its clients. A saturated server is sent calls of the "
        "scripts in one stream, 64 in a write, on 1,000 keys; its rate is compared with that of a script that does one "
        "GET and one SET with PX of a key as long and a value as large. Logs are asked at a pace that holds as many "
        "entries as the row says, and are compared by the time of the server's processor. The script called by "
        "redis-py is the baseline of a single call and of 100 concurrent ones; a PING at the same rate, on the same "
        "connection, that of the latency.",
        ("what", "subject", "measured", "in comparison"),
        rows,
        targets,
    )


def _round_trips(rows: list[tuple[str, ...]], port: int) -> Target:
    """Commands that a decision sends, counted by MONITOR."""
    url = f"redis://127.0.0.1:{port}?timeout=5s&remember=no"
    window = [limits.parse(text) for text in ("1000/second", "2000/minute", "3000/hour", "4000/day", "5000/month")]
    strategy = limits.strategies.MovingWindowRateLimiter(limits.storage.RedisStorage(f"redis://127.0.0.1:{port}"))
    subjects: dict[str, Callable[[], object]] = {
        "headgate, one limit": _hit(Limiter("1000000/hour", store=url)),
        "headgate, five limits": _hit(Limiter(FIVE, store=url)),
        "limits (as Flask-Limiter and slowapi ask it), five limits": lambda: [
            strategy.hit(item, "bench") for item in window
        ],
    }
    counted = {}
    for name, call in subjects.items():
        call()
        counted[name] = commands_sent(port, call, 20)
        rows.append(("commands sent for a decision", name, f"{counted[name]:g}", ""))
    one, five, _ = counted.values()
    return Target("one round trip a decision, for one limit and for five", f"{one:g} and {five:g}", one == five == 1)


def _hit(limiter: Limiter) -> Callable[[], object]:
    return lambda: limiter.hit("bench")


def commands_sent(port: int, call: Callable[[], object], times: int) -> float:
    """Commands of clients, not of scripts, that one call sends."""
    client: Any = redis.Redis(port=port, protocol=2)
    received = 0
    with client.monitor() as monitor:
        for _ in range(times):
            call()
        redis.Redis(port=port).echo("the end")
        for command in monitor.listen():
            if command["command"].startswith("ECHO the end"):
                break
            words = command["command"].split(" ", 1)[0].upper()
            received += command["client_type"] != "lua" and words not in ("HELLO", "CLIENT", "AUTH", "SELECT")
    return received / times


def _server(rows: list[tuple[str, ...]], port: int, quick: bool) -> list[Target]:
    """Decisions a second of a saturated server, in comparison with a script of one GET and one SET."""
    client: Any = redis.Redis(port=port)
    baseline = client.script_load(ONE_GET_ONE_SET)
    names = [name for key in range(KEYS) for name in _commands_for("1/second bucket", "b0").names((f"user:{key}",))]
    random.Random(1).shuffle(names)
    streams = {"one GET, one SET with PX": [command_of(baseline, [name], [b"x" * 42, b"60000"]) for name in names]}
    for name, text in ADMITTING.items():
        streams[name] = _stream(client, text, "admitting")
    for name, text in REFUSING.items():
        streams[f"{name}, refusing"] = _stream(client, text, "refusing")
    rates: dict[str, list[float]] = {name: [] for name in streams}
    calls = 12_000
    for _ in range(5 if quick else 41):  # many short ones: a busy machine slows down neighbours in time alike
        client.flushall()
        for name, commands in streams.items():
            saturate(port, commands, 2 * KEYS)  # each limit has a state, or is exhausted, before it is measured
            rates[name].append(saturate(port, commands, calls))
    base = rates["one GET, one SET with PX"]
    share = {name: median(own / one for own, one in zip(samples, base, strict=True)) for name, samples in rates.items()}
    for name, samples in rates.items():
        spread = f"{median(samples):,.0f}/s ({min(samples):,.0f} to {max(samples):,.0f})"
        rows.append(("a saturated server", name, spread, f"{share[name]:.2f} of one GET and one SET"))
    three = share["three token buckets"] / share["token bucket"]
    cheaper = min(share[f"{name}, refusing"] / share[name] for name in REFUSING)
    return [
        Target(
            "a token bucket costs the server at most a third more than one GET and one SET (75 % of its rate)",
            f"{share['token bucket']:.0%}",
            share["token bucket"] >= 0.75,
        ),
        Target("three limits at least half as many a second as one", f"{three:.0%}", three >= 0.5),
        Target("refusals are cheaper than admissions", f"{cheaper:.2f} times the rate at the least", cheaper > 1),
    ]


def _logs(rows: list[tuple[str, ...]], port: int, quick: bool) -> list[Target]:
    """Sliding window logs with a constant number of entries: one expires for each new one, or all stay and refuse.

    Each key gets one call in a round, and rounds come at a fixed pace, so a period of N rounds holds N entries. A rate
    is the number of calls by the server's processor time, which does not count the time between rounds.
    """
    client: Any = redis.Redis(port=port)
    baseline = client.script_load(ONE_GET_ONE_SET)
    names = [name for key in range(LOGS) for name in _commands_for("1/second bucket", "b0").names((f"user:{key}",))]
    random.Random(1).shuffle(names)
    one = [command_of(baseline, [name], [b"x" * 42, b"60000"]) for name in names]
    subjects = [(many, kind) for many in LOG_TARGETS for kind in ("", ", refusing")]
    rates: dict[tuple[int, str], list[float]] = {subject: [] for subject in subjects}
    shares: dict[tuple[int, str], list[float]] = {subject: [] for subject in subjects}
    held: dict[tuple[int, str], list[float]] = {subject: [] for subject in subjects}
    for _ in range(3 if quick else 9):
        for subject in subjects:
            many, kind = subject
            client.flushall()
            if kind:
                commands = _stream(client, f"{many}/week log", "refusing", LOGS)
            else:
                period_us = round((many - 0.5) * LOG_ROUND_S * 1e6)
                commands = _stream(client, f"1000000/{period_us} us log", "admitting", LOGS)
            before = _paced(client, port, one, LOG_ROUNDS)
            _paced(client, port, commands, many + PACKED)
            rates[subject].append(_paced(client, port, commands, LOG_ROUNDS))
            held[subject].append(_entries(client))
            shares[subject].append(rates[subject][-1] / median((before, _paced(client, port, one, LOG_ROUNDS))))
    targets = []
    for (many, kind), samples in rates.items():
        share, entries = median(shares[many, kind]), median(held[many, kind])
        spread = f"{median(samples):,.0f} ({min(samples):,.0f} to {max(samples):,.0f})"
        subject_name = f"sliding window log, {entries:.0f} entries{kind}"
        rows.append(("calls a second of its processor", subject_name, spread, f"{share:.2f} of one GET and one SET"))
        targets.append(
            Target(
                f"a log of {many} entries{kind}: {LOG_TARGETS[many]:.0%} of the rate of one GET and one SET",
                f"{share:.0%}",
                share >= LOG_TARGETS[many],
            )
        )
    return targets


def _paced(client: Any, port: int, commands: Sequence[bytes], rounds: int) -> float:
    """Calls by the seconds of processor time of a server that gets all commands in every round."""
    writes = [b"".join(commands[start : start + 64]) for start in range(0, len(commands), 64)]
    replies = hiredis.Reader()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        start, used_s = time.perf_counter(), _used_s(client)
        for number in range(rounds):
            time.sleep(max(0.0, start + number * LOG_ROUND_S - time.perf_counter()))
            for write in writes:
                connection.sendall(write)
            received = 0
            while received < len(commands):
                replies.feed(connection.recv(1 << 20))
                while (reply := replies.gets()) is not False:
                    if isinstance(reply, Exception):
                        raise reply
                    received += 1
        return rounds * len(commands) / (_used_s(client) - used_s)


def _used_s(client: Any) -> float:
    """The processor time of a server in seconds."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _entries(client: Any) -> float:
    """The mean number of entries that are not expired, of some logs."""
    counts = []
    for name in client.scan_iter(match="*user:*", count=LOGS):
        if client.type(name) == b"hash":
            fields = {field.decode(): value for field, value in client.hgetall(name).items()}
            split_fields = {int(field[3:]): value for field, value in fields.items() if ":" in field}
            former, entries = read_state("sliding_log", fields["w0"], split_fields)
            counts.append(sum(time > entries[-1][0] - former.period for time, _ in entries))
            if len(counts) == 20:
                break
    return float(sum(counts) / len(counts))


def _commands_for(text: str, prefix: str) -> Commands:
    return Commands(name_limits(parse_limits(text), scope="bench", name="bench"), prefix, None)


def _stream(client: Any, text: str, prefix: str, keys: int = KEYS) -> list[bytes]:
    """The commands that decide these limits on each key."""
    limits = _commands_for(text, prefix)
    commands = []
    for key in range(keys):
        call = next(limits.decide(Operation((f"user:{key}",), (1,))))
        client.script_load(call.script.text)
        commands.append(command_of(call.script.sha, call.keys, call.arguments))
    random.Random(1).shuffle(commands)
    return commands


def command_of(sha: str, keys: Sequence[bytes], arguments: Sequence[bytes]) -> bytes:
    words = [b"EVALSHA", sha.encode(), b"%d" % len(keys), *keys, *arguments]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def saturate(port: int, commands: Sequence[bytes], calls: int) -> float:
    """Calls a second of a server that gets the commands in one stream."""
    writes = [b"".join(commands[start : start + 64]) for start in range(0, len(commands) // 64 * 64, 64)]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        total = calls // 64 * 64

        def read() -> None:
            replies, received = hiredis.Reader(), 0
            while received < total:
                replies.feed(connection.recv(1 << 20))
                while replies.gets() is not False:
                    received += 1

        reader = threading.Thread(target=read)
        start = time.perf_counter()
        reader.start()
        for number in range(calls // 64):
            connection.sendall(writes[number % len(writes)])
        reader.join()
        return total / (time.perf_counter() - start)


def _bare(port: int, definitions: Any) -> tuple[str, list[Any]]:
    """The script of a token bucket for a call by redis-py: its text, and the arguments of EVALSHA."""
    call = next(Commands(definitions, "bare", None).decide(Operation(("bench",), (1,))))
    client: Any = redis.Redis(port=port)
    client.script_load(call.script.text)
    return call.script.text, [call.script.sha, len(call.keys), *call.keys, *call.arguments]


def _one_call(rows: list[tuple[str, ...]], port: int, quick: bool) -> Target:
    """The time of a call from a thread, in comparison with redis-py."""
    definitions = name_limits(parse_limits("1000000/hour bucket"), scope="bench", name="bench")
    _, arguments = _bare(port, definitions)
    client: Any = redis.Redis(port=port, protocol=2)
    execute = client.execute_command
    guarded = Limiter("1000000/hour bucket", store=f"redis://127.0.0.1:{port}?timeout=5s").hit
    raw = RedisStore(f"redis://127.0.0.1:{port}?timeout=5s").bind(definitions).hit
    calls = 500 if quick else 3000

    def loop(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                call()

        return run

    subjects = {
        "redis-py, EVALSHA": timed_loop(loop(lambda: execute("EVALSHA", *arguments)), calls),
        "headgate": timed_loop(loop(lambda: guarded("bench")), calls),
        "headgate, without its guard": timed_loop(loop(lambda: raw("bench")), calls),
    }
    measured = in_turns(subjects, rounds=3 if quick else 9)
    base = measured["redis-py, EVALSHA"].median_ns
    for name, one in measured.items():
        rows.append(("a single call", name, str(one), f"{one.median_ns / base:.2f} times redis-py"))
    ratio = measured["headgate"].median_ns / base
    return Target("a single sync call takes at most 1.2 times a bare EVALSHA", f"{ratio:.2f} times", ratio <= 1.2)


def _joined(rows: list[tuple[str, ...]], port: int, quick: bool) -> Target:
    """Decisions a second of one event loop with 100 callers, in comparison with redis-py."""
    definitions = name_limits(parse_limits("1000000000/hour bucket"), scope="bench", name="bench")
    _, arguments = _bare(port, definitions)
    each = 20 if quick else 100

    async def crowd(ask: Callable[[], Awaitable[object]]) -> float:
        async def caller() -> None:
            for _ in range(each):
                await ask()

        await asyncio.gather(*[ask() for _ in range(CONCURRENT)])
        start = time.perf_counter()
        await asyncio.gather(*[caller() for _ in range(CONCURRENT)])
        return CONCURRENT * each / (time.perf_counter() - start)

    async def measure() -> dict[str, list[float]]:
        client: Any = redis.asyncio.Redis(port=port, protocol=2)
        store = RedisStore(f"redis://127.0.0.1:{port}?timeout=30s")
        bound = store.bind_async(definitions)
        rates: dict[str, list[float]] = {"redis-py, EVALSHA": [], "headgate": []}
        for _ in range(3 if quick else 9):
            rates["redis-py, EVALSHA"].append(await crowd(lambda: client.execute_command("EVALSHA", *arguments)))
            rates["headgate"].append(await crowd(lambda: bound.hit("bench")))
        await client.aclose()
        await store.aclose()
        return rates

    rates = asyncio.run(measure())
    base = rates["redis-py, EVALSHA"]
    ratios = {name: median(a / b for a, b in zip(samples, base, strict=True)) for name, samples in rates.items()}
    for name, samples in rates.items():
        spread = f"{median(samples):,.0f}/s ({min(samples):,.0f} to {max(samples):,.0f})"
        rows.append(("100 concurrent callers, one event loop", name, spread, f"{ratios[name]:.1f} times redis-py"))
    return Target(
        "one event loop does at least 3 times the decisions of redis-py calling the same script",
        f"{ratios['headgate']:.1f} times",
        ratios["headgate"] >= 3,
    )


def _latency(rows: list[tuple[str, ...]], port: int, quick: bool) -> None:
    """The latency of decisions at 5,000 a second from one process, in comparison with a PING at the same rate."""
    definitions = name_limits(parse_limits("1000000000/hour bucket"), scope="bench", name="bench")

    async def at_rate(ask: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
        samples: list[float] = []

        async def one() -> None:
            start = time.perf_counter()
            await ask()
            samples.append(time.perf_counter() - start)

        start, tasks = time.perf_counter(), set()
        for number in range(int(RATE * seconds)):
            while time.perf_counter() - start < number / RATE:  # noqa: ASYNC110 - a timer is too coarse
                await asyncio.sleep(0)
            task = asyncio.create_task(one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        return samples

    async def measure() -> dict[str, list[float]]:
        store = RedisStore(f"redis://127.0.0.1:{port}?timeout=30s")
        bound = store.bind_async(definitions)
        await bound.hit("bench")
        samples: dict[str, list[float]] = {"a PING on the same connection": [], "headgate": []}
        for _ in range(2 if quick else 5):
            samples["a PING on the same connection"] += await at_rate(store.ping_async, 0.3 if quick else 1)
            samples["headgate"] += await at_rate(lambda: bound.hit("bench"), 0.3 if quick else 1)
        await store.aclose()
        return samples

    measured = asyncio.run(measure())
    base: list[float] = []
    for name, samples in measured.items():
        hundredths = quantiles(samples, n=100)
        middle, high = hundredths[49], hundredths[98]
        base = base or [middle, high]
        compared = f"{(middle - base[0]) * 1e6:+.0f} and {(high - base[1]) * 1e6:+.0f} us"
        shown = f"p50 {middle * 1e6:,.0f} us, p99 {high * 1e6:,.0f} us"
        rows.append((f"latency at {RATE:,} decisions a second", name, shown, compared))
