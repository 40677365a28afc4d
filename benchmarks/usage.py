"""The share of a limit that is used where costs are held first and known later, by a simulated clock.

The rules of two other limiters are written down from their sources, for one bucket and without their I/O.
token-throttle's memory backend (`_capacity.py`, `_bucket.py`) refills all the time and gives a whole refund back, up to
the capacity. TensorZero's Postgres functions (`consume_multiple_resource_tickets`,
`return_multiple_resource_tickets`) refill whole intervals and give all back, up to the capacity.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from benchmarks.measuring import Section, Target
from headgate import Limiter, MemoryStore
from headgate.testing import ManualClock

TOKENS = 90_000
MINUTE_US = 60_000_000
HELD, USED = 900, 300
ANSWER_US = 5_000_000
EVERY_US = 25_000  # 40 requests a second: eight times as many tokens as the limit lets through
WARM_UP_MINUTES = 5
MOST_OF_A_SLIDING_WINDOW = 60 / (55 + 5 * HELD / USED)
"""Costs held in the last 5 seconds of a minute count threefold: more would exceed the limit if all were used."""

Settle = Callable[[int], object]
"""Settles a hold with the actual cost."""


class Subject(Protocol):
    """A limit on tokens a minute, by a clock of microseconds."""

    def at(self, now_us: int) -> None:
        """Set the time of the following calls."""

    def reserve(self, cost: int) -> Settle | None:
        """Hold a cost; None where it is refused."""


class Headgate:
    """A limiter of this project, on its memory store."""

    def __init__(self, text: str) -> None:
        self._clock = ManualClock(0)
        self._limiter = Limiter(text, clock=self._clock, store=MemoryStore(max_holds=1_000_000))

    def at(self, now_us: int) -> None:
        self._clock.set(now_us)

    def reserve(self, cost: int) -> Settle | None:
        held = self._limiter.reserve("team", cost)
        return (lambda used: self._limiter.commit(held.id, used)) if held else None


@dataclass
class TokenThrottle:
    """A bucket by token-throttle's rule."""

    level: float = TOKENS
    read_us: int = 0
    now_us: int = 0

    def _refilled(self) -> float:
        return min(TOKENS, self.level + (self.now_us - self.read_us) * TOKENS / MINUTE_US)

    def at(self, now_us: int) -> None:
        self.now_us = now_us

    def reserve(self, cost: int) -> Settle | None:
        level = self._refilled()
        if level < cost:
            return None
        self.level, self.read_us = level - cost, self.now_us
        return lambda used: self._refund(cost - used)

    def _refund(self, unused: int) -> None:
        self.level, self.read_us = self._refilled() + unused, self.now_us


@dataclass
class TensorZero:
    """A bucket by TensorZero's rule, refilled every second or every minute."""

    interval_us: int
    tickets: int = TOKENS
    as_of_us: int = 0
    now_us: int = 0

    def at(self, now_us: int) -> None:
        self.now_us = now_us

    def _refill(self) -> None:
        passed = (self.now_us - self.as_of_us) // self.interval_us
        self.tickets = min(TOKENS, self.tickets + passed * (TOKENS * self.interval_us // MINUTE_US))
        self.as_of_us += passed * self.interval_us

    def reserve(self, cost: int) -> Settle | None:
        self._refill()
        if self.tickets < cost:
            return None
        self.tickets -= cost
        return lambda used: self._return(cost - used)

    def _return(self, unused: int) -> None:
        self._refill()
        self.tickets = min(TOKENS, self.tickets + unused)


@dataclass
class TakesOffAllThatFlowedBack:
    """A bucket whose refunds are reduced by the refill since the hold, as for a plain request that is given back."""

    level: float = TOKENS
    now_us: int = 0
    flowed: float = 0

    def at(self, now_us: int) -> None:
        flow = min(TOKENS - self.level, (now_us - self.now_us) * TOKENS / MINUTE_US)
        self.level, self.flowed, self.now_us = self.level + flow, self.flowed + flow, now_us

    def reserve(self, cost: int) -> Settle | None:
        if self.level < cost:
            return None
        self.level -= cost
        before = self.flowed
        return lambda used: self._refund(max(0.0, cost - used - (self.flowed - before)))

    def _refund(self, refund: float) -> None:
        self.level = min(TOKENS, self.level + refund)


@dataclass(frozen=True)
class Used:
    """The result: the used share of the limit after the warm-up, and the most used within one minute."""

    share: float
    most_in_a_minute: int


def simulate(subject: Subject, arrivals: Iterator[int]) -> Used:
    """Reserve for each arrival, and settle each admitted one when its answer is complete."""
    running: list[tuple[int, int, Settle]] = []
    within: deque[int] = deque()  # the moments of those admitted in the last minute
    most = admitted = number = last_us = 0
    first_us = WARM_UP_MINUTES * MINUTE_US
    for now_us in arrivals:
        while running and running[0][0] <= now_us:
            ended_us, _, settle = heapq.heappop(running)
            subject.at(ended_us)
            settle(USED)
        last_us = now_us
        subject.at(now_us)
        settle_later = subject.reserve(HELD)
        if settle_later is None:
            continue
        number += 1
        heapq.heappush(running, (now_us + ANSWER_US, number, settle_later))
        within.append(now_us)
        while within[0] <= now_us - MINUTE_US:
            within.popleft()
        if now_us >= first_us:
            admitted += 1
            most = max(most, len(within))
    return Used(admitted * USED / ((last_us - first_us) * TOKENS / MINUTE_US), most * USED)


def steady(minutes: int) -> Iterator[int]:
    """A request every 25 ms."""
    return iter(range(0, minutes * MINUTE_US, EVERY_US))


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "Headgate, token bucket": lambda: Headgate(f"{TOKENS}/minute bucket"),
    "Headgate, sliding window counter": lambda: Headgate(f"{TOKENS}/minute"),
    "Headgate, sliding window log": lambda: Headgate(f"{TOKENS}/minute log"),
    "Headgate, fixed window": lambda: Headgate(f"{TOKENS}/minute fixed"),
    "token-throttle's rule": TokenThrottle,
    "TensorZero's rule, refilled every minute": lambda: TensorZero(MINUTE_US),
    "TensorZero's rule, refilled every second": lambda: TensorZero(1_000_000),
    "all that flowed back is taken off": TakesOffAllThatFlowedBack,
}


def run(quick: bool) -> Section:
    """Simulate every subject under the same load, and a burst of holds that are given back after a refill."""
    minutes = WARM_UP_MINUTES + (5 if quick else 25)
    rows, targets = [], []
    for name, make in SUBJECTS.items():
        used, twice = simulate(make(), steady(minutes)), after_a_pause(make())
        rows.append((name, f"{used.share:.1%}", f"{used.most_in_a_minute:,}", f"{twice:,}"))
        if not name.startswith("Headgate"):
            continue
        least = 0.98 * MOST_OF_A_SLIDING_WINDOW if "sliding" in name else 0.95
        requirement = f"{name}: used where answers take 5 s and use a third of what they hold, at least {least:.0%}"
        targets.append(Target(requirement, f"{used.share:.1%}", used.share >= least))
        requirement = f"{name}: tokens that pass within a second around late refunds, at most"
        most = TOKENS + TOKENS // 60
        targets.append(Target(f"{requirement} {most:,}", f"{twice:,}", twice <= most))
    return Section(
        "Use of a limit under holds",
        f"{TOKENS:,} tokens a minute by a simulated clock. A request every {EVERY_US // 1000} ms holds {HELD} tokens; "
        f"its answer comes after {ANSWER_US // 1_000_000} s and used {USED}. What passed after {WARM_UP_MINUTES} "
        "minutes, as a share of the limit, and the most within one minute. No sliding window can use more than "
        f"{MOST_OF_A_SLIDING_WINDOW:.1%} of its limit and be sure to keep it. Last, how many tokens pass within a "
        f"second around a late refund: ten holds of a tenth each, two minutes later {TOKENS:,} tokens are used, then "
        f"the holds are settled with 0. More than {TOKENS + TOKENS // 60:,} means that something was given back twice.",
        ("rule", "used of the limit", "most in a minute", "in one second after late refunds"),
        rows,
        targets,
    )


def after_a_pause(subject: Subject) -> int:
    """Hold the whole limit; after a refill use all of it; return what passes once the holds end unused."""
    subject.at(0)
    held = [subject.reserve(TOKENS // 10) for _ in range(10)]
    subject.at(2 * MINUTE_US)
    passed = all_that_passes(subject)
    subject.at(2 * MINUTE_US + 500_000)
    for settle in held:
        assert settle is not None
        settle(0)
    subject.at(2 * MINUTE_US + 900_000)
    return passed + all_that_passes(subject)


def all_that_passes(subject: Subject) -> int:
    """Use all that remains; return how much that was."""
    passed = 0
    while (settle := subject.reserve(HELD)) is not None:
        settle(HELD)
        passed += HELD
    return passed
