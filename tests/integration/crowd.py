"""Many processes and threads that decide in one shared zone at once, for more than the limit.

Run as a program, it prints one JSON object an algorithm:
`python crowd.py exact ROUNDS` starts all at once, round after round, each with a key of its own;
`python crowd.py killed PROCESSES` lets all decide while so many, one after another, are killed at random.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from headgate import SharedStore, parse_limits
from headgate.decision import name_limits
from headgate.operation import Operation
from headgate.stores.protocol import BoundLimits

PROCESSES = 3
THREADS = 2
LIMIT = 24
KEYS = 27_000
"""Without holds, the states of these keys nearly fill a zone, and do not quite fill its fullest part."""
ALGORITHMS = {
    "fixed window": f"{LIMIT}/week fixed",
    "sliding window log": f"{LIMIT}/week log",
    "sliding window counter": f"{LIMIT}/week",
    "token bucket": f"{LIMIT}/week bucket",
    "leaky bucket": f"{LIMIT}/week leaky {LIMIT}",
    "leaky queue": f"{LIMIT}/week queue {LIMIT - 1}",
    "token bucket in steps": f"{LIMIT}/week bucket stepwise",
    "calendar window": f"{LIMIT}/year in Europe/Zurich",
    "three at once": f"{LIMIT}/week; {LIMIT + 5}/week log; {LIMIT + 3}/week bucket",
}
CONTEXT = multiprocessing.get_context("fork")


@contextmanager
def zone(size: int = 64 << 20, **options: Any) -> Iterator[SharedStore]:
    """Create a zone that is removed at the end of the block."""
    path = Path("/dev/shm") / f"headgate-crowd-{os.getpid()}-{uuid4().hex}"
    store = SharedStore(path, size=size, log_percent=50, **options)
    try:
        yield store
    finally:
        path.unlink()


def bind(path: Path, text: str) -> BoundLimits:
    """Bind the limit of a shared key, and one of each caller that never refuses: two shards at once."""
    own = name_limits(parse_limits("1000000000/week"), scope="own", name="own", group=1)
    return SharedStore.existing(path).bind([*name_limits(parse_limits(text), scope="all", name="all"), *own])


def fork(work: Callable[[], None]) -> int:
    """Fork a process that runs `work` and ends; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def exact(text: str, rounds: int) -> dict[str, object]:
    """Let all decide at once: in every round exactly the limit passes."""
    with zone(max_holds=0) as store:  # all of its room is for states, which nearly fill it
        callers = PROCESSES * THREADS
        barrier = CONTEXT.Barrier(callers)
        passed = mmap.mmap(-1, rounds * callers)

        def decide_rounds(caller: int, bound: BoundLimits) -> None:
            for number in range(rounds):
                barrier.wait(60)
                operation = Operation((f"round {number}", f"caller {caller}"), (1, 1))
                passed[number * callers + caller] = sum(bound.decide(operation).allowed for _ in range(LIMIT // 2))

        def work(process: int) -> None:
            bound = bind(store.path, text)  # each process opens the zone for itself
            threads = [
                threading.Thread(target=decide_rounds, args=(process * THREADS + thread, bound))
                for thread in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        pids = [fork(lambda process=process: work(process)) for process in range(PROCESSES)]  # type: ignore[misc]
        ended = [os.waitpid(pid, 0)[1] for pid in pids]
        sums = [sum(passed[number * callers : (number + 1) * callers]) for number in range(rounds)]
        return {
            "rounds": rounds,
            "ended_well": ended == [0] * PROCESSES,
            "exact": sums.count(LIMIT),
            "shared_by_several": sum(
                sum(count > 0 for count in passed[number * callers : (number + 1) * callers]) > 1
                for number in range(rounds)
            ),
            "fault": store._zone.check(),
        }


def killed(text: str, most_workers: int) -> dict[str, object]:
    """Kill processes: none is blocked, and no charge is lost but one that a dying process did not report."""
    chance = random.Random(os.environ.get("HEADGATE_SEED", text))
    with zone(max_holds=0) as store:  # all of its room is for states, which nearly fill it
        # A counter for each key of each process, which only this process writes.
        counts = mmap.mmap(-1, most_workers * KEYS)

        def work(worker: int) -> None:
            bound = bind(store.path, text)
            order = random.Random(worker)
            while True:
                key = order.randrange(KEYS)
                decision = bound.decide(Operation((f"key {key}", f"worker {worker % 7}"), (1, 1)))
                if decision.allowed:
                    counts[worker * KEYS + key] += 1

        workers = 0
        alive: list[int] = []
        while workers < most_workers:
            while len(alive) < PROCESSES:
                worker = workers
                alive.append(fork(lambda worker=worker: work(worker)))  # type: ignore[misc]
                workers += 1
            time.sleep(chance.uniform(0.002, 0.02))
            victim = alive.pop(chance.randrange(len(alive)))
            os.kill(victim, signal.SIGKILL)
            _, status = os.waitpid(victim, 0)
            assert os.WIFSIGNALED(status), status
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        # The process that remains uses up every key.
        bound = bind(store.path, text)
        last = [0] * KEYS
        for key in range(KEYS):
            while bound.decide(Operation((f"key {key}", "last"), (1, 1))).allowed:
                last[key] += 1
        charged = [last[key] + sum(counts[worker * KEYS + key] for worker in range(workers)) for key in range(KEYS)]
        return {
            "killed": workers,
            "keys": KEYS,
            "too_many": sum(max(0, count - LIMIT) for count in charged),
            "charged": sum(charged),
            "unreported": sum(max(0, LIMIT - count) for count in charged),
            "mended": store.info()["mended"],
            "fault": store._zone.check(),
        }


def main() -> None:
    mode, amount = sys.argv[1], sys.argv[2]
    for name, text in ALGORITHMS.items():
        result: dict[str, Any] = (exact if mode == "exact" else killed)(text, int(amount))
        print(json.dumps({"algorithm": name, **result}), flush=True)


if __name__ == "__main__":
    main()
