"""Many processes that hold places and units of one shared zone, settle each other's holds, and are killed.

Run as a program, it prints one JSON object: `python crowd_holds.py flood ROUNDS` lets processes hold as much as
they can, and each settles the holds of another one; `python crowd_holds.py killed PROCESSES` kills processes meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from crowd import CONTEXT, fork, zone

from headgate import Limiter, SharedStore

PROCESSES = 4
PLACES = 20
LEASE_S = 0.3
KEYS = 50
TEXT = f"{PLACES} concurrent; 1000000/week; 1000000/week bucket"


def limiter(path: Path) -> Limiter:
    return Limiter(TEXT, store=SharedStore.existing(path), name="crowd")


def flood(rounds: int) -> dict[str, object]:
    """Hold no more places than there are; each process settles the holds of the one before it."""
    with zone(8 << 20) as store:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(PROCESSES)]
        in_flight, most, settled = (CONTEXT.Value("q", 0) for _ in range(3))

        def settle(crowd: Limiter, hold: tuple[str, int] | None) -> bool:
            if hold is None:
                return False
            whole_id, cost = hold
            with in_flight.get_lock():
                in_flight.value -= cost
            outcome = crowd.commit(whole_id, cost).outcome
            assert outcome == "settled", outcome
            with settled.get_lock():
                settled.value += 1
            return True

        def work(process: int) -> None:
            crowd, chance = limiter(store.path), random.Random(process)
            own_holds, next_process = pipes[process][0], pipes[(process + 1) % PROCESSES][1]
            has_more = True
            for _ in range(rounds):
                cost = chance.randrange(1, 8)
                while not (reservation := crowd.reserve("key", cost, lease=600)):
                    while has_more and own_holds.poll(0.001):
                        has_more = settle(crowd, own_holds.recv())
                with in_flight.get_lock():
                    in_flight.value += cost
                    most.value = max(most.value, in_flight.value)
                next_process.send((reservation.id, cost))
            next_process.send(None)
            while has_more:
                has_more = settle(crowd, own_holds.recv())

        pids = [fork(lambda process=process: work(process)) for process in range(PROCESSES)]  # type: ignore[misc]
        ended = [os.waitpid(pid, 0)[1] for pid in pids]
        remaining = [reading.remaining for reading in limiter(store.path).peek("key", 0).limits]
        return {
            "ended_well": ended == [0] * PROCESSES,
            "most": most.value,
            "settled": settled.value,
            "places_left": remaining[0],
            "mended": store.info()["mended"],
            "fault": store._zone.check(),
        }


def killed(most_workers: int) -> dict[str, Any]:
    """Kill processes: their places are free when the lease ends, their units stay charged, and each is settled once."""
    with zone(8 << 20) as store:
        reader, writer = CONTEXT.Pipe(duplex=False)

        def work(worker: int) -> None:
            crowd, order = limiter(store.path), random.Random(worker)
            while True:
                reservation = crowd.reserve(f"key {order.randrange(KEYS)}", 2, lease=LEASE_S)
                if not reservation:
                    continue
                choice = order.randrange(4)
                if choice == 0:
                    os.write(writer.fileno(), f"{reservation.id}\n".encode())  # another process settles it later
                elif choice == 1:
                    reservation.extend(lease=2 * LEASE_S, more=1)
                    reservation.cancel()
                else:
                    reservation.cancel()

        os.set_blocking(reader.fileno(), False)
        chance, workers, reported = random.Random(7), 0, b""
        alive: list[int] = []
        while workers < most_workers:
            while len(alive) < PROCESSES:
                alive.append(fork(lambda worker=workers: work(worker)))  # type: ignore[misc]
                workers += 1
            time.sleep(chance.uniform(0.002, 0.02))
            reported += read_all(reader.fileno())
            victim = alive.pop(chance.randrange(len(alive)))
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        reported += read_all(reader.fileno())
        ids = [line.decode() for line in reported.split(b"\n")[:-1]]
        time.sleep(2 * LEASE_S + 0.1)
        crowd = limiter(store.path)
        free = [crowd.peek(f"key {key}", 0).limits[0].remaining for key in range(KEYS)]
        fault = store._zone.check()
        before = charged(crowd)
        outcomes = [crowd.cancel(whole_id).outcome for whole_id in ids]
        after = charged(crowd)
        again = {crowd.cancel(whole_id).outcome for whole_id in ids}
        return {
            "killed": workers,
            "reported": len(ids),
            "free": sorted(set(free)),
            "settled": outcomes.count("settled"),
            "again": sorted(again),
            "given_back": before - after,
            # Each process that dies may have a hold that it did not report: of 2 units, or 3 once extended.
            "unreported": after,
            "mended": store.info()["mended"],
            "fault": fault or store._zone.check(),
        }


def charged(crowd: Limiter) -> int:
    """Return the units of all keys that count in the window."""
    return sum(1_000_000 - crowd.peek(f"key {key}", 0).limits[1].remaining for key in range(KEYS))


def read_all(descriptor: int) -> bytes:
    """Return what a pipe contains now."""
    received = b""
    try:
        while part := os.read(descriptor, 1 << 16):
            received += part
    except BlockingIOError:
        pass
    return received


def main() -> None:
    mode, amount = sys.argv[1], sys.argv[2]
    print(json.dumps((flood if mode == "flood" else killed)(int(amount))), flush=True)


if __name__ == "__main__":
    main()
