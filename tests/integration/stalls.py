"""How long things take in this process, but for what a busy machine takes from it.

with timed() as own_s:
    ask()
assert own_s() < 0.5
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_S = 0.005


class Stalls:
    """When this process did not get to run: a machine that is busy with other things holds up everybody."""

    def __init__(self) -> None:
        self._found: deque[tuple[float, float, float]] = deque(maxlen=10_000)
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def __call__(self, start_s: float, end_s: float) -> float:
        """How many of these seconds of the monotonic clock the machine took for others."""
        overlaps = [(min(end_s, end) - max(start_s, start), lost) for start, end, lost in list(self._found)]
        return sum(min(overlap, lost) for overlap, lost in overlaps if overlap > 0)

    def _watch(self) -> None:
        while True:
            start, used = time.monotonic(), time.process_time()
            time.sleep(PAUSE_S)
            end = time.monotonic()
            # Who computes all the time, or holds the interpreter's lock while it does, is no other.
            lost = end - start - PAUSE_S - (time.process_time() - used)
            if lost > PAUSE_S:
                self._found.append((start, end, lost))


stalled_s = Stalls()


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """How many seconds the block took, once it has ended, but for what the machine took from this process."""
    start = end = time.monotonic()

    def own_s() -> float:
        return end - start - stalled_s(start, end)

    try:
        yield own_s
    finally:
        end = time.monotonic()
