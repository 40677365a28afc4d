"""Processes on one zone that reload a policy with changed numbers again and again, and decide after each reload.

Run as a program, it prints one JSON object with the result of each process and the content of the zone:
`python reloading.py RELOADS`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from headgate import Gate, Request, SharedStore
from headgate.errors import HeadgateError

PROCESSES = 2
RULES = 36
KINDS = (*("fixed", "counter") * 6, "log")
"""In all kinds, used units stay used for a day. Few are logs, whose entries would fill the zone."""
CONTEXT = multiprocessing.get_context("spawn")


def policy(number: int) -> dict[str, Any]:
    """Return the same rules with other numbers, which are large enough for all requests of this program."""
    rules = [
        {"name": f"rule{place}", "by": ["ip"], "limits": f"{10_000 + number}/day {KINDS[place % len(KINDS)]}"}
        for place in range(RULES)
    ]
    return {"version": 1, "rules": rules}


def reload(path: str, process: int, reloads: int, results: Any) -> None:
    """Reload `reloads` times with numbers of this process, and hit after each reload."""
    busy, own = (Request("GET", "/", client_ip=f"192.0.2.{last}") for last in (1, 100 + process))
    gate = Gate(policy(process), store=SharedStore.existing(Path(path)))
    hits, degraded, errors = 0, [], []
    for number in range(1, reloads + 1):
        try:
            gate.reload(policy(PROCESSES * number + process))
            for request in (busy, own):
                decision = gate.hit(request)
                hits += request is busy
                if decision.degraded:
                    degraded.append(f"{number}: {decision.degraded} by {decision.binding}")
        except HeadgateError as error:
            errors.append(f"{number}: {error!r}")
    results.put({"hits": hits, "degraded": degraded, "errors": errors})


def used(store: SharedStore) -> Iterator[int]:
    """Yield what each rule has counted for the key that all processes hit."""
    last = Gate(policy(0), store=store).peek(Request("GET", "/", client_ip="192.0.2.1"), 0)
    for reading in last.limits:
        yield reading.limit - reading.remaining


def main() -> None:
    path = Path("/dev/shm") / f"headgate-reloading-{os.getpid()}-{uuid4().hex}"
    store = SharedStore(path, size=2 << 20, log_percent=50)
    try:
        results: Any = CONTEXT.Queue()
        processes = [
            CONTEXT.Process(target=reload, args=(str(path), process, int(sys.argv[1]), results))
            for process in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        process_results = [results.get(timeout=600) for _ in processes]
        for process in processes:
            process.join(60)
        print(
            json.dumps(
                {
                    "processes": process_results,
                    "known": len(store.known_limits()),
                    "most": store.info()["max_limits"],
                    "used": sorted(used(store)),
                    "fault": store._zone.check(),
                }
            )
        )
    finally:
        path.unlink()


if __name__ == "__main__":
    main()
