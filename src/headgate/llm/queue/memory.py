"""Jobs in the memory of one process: gone with it. For one event loop."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from headgate.clock import Clock
from headgate.errors import ConflictingId
from headgate.llm.queue.backlog import Bounds, Fairness, Finished, Gone, Nothing, Taken
from headgate.llm.queue.job import Job, JobState, Order, Position, QueueFull, UnknownJob
from headgate.llm.queue.lane import Waiting
from headgate.llm.queue.lanes import Lanes
from headgate.llm.queue.news import News

RATED = 32
"""The speed of the queue is that of so many jobs that were started last."""


@dataclass(slots=True)
class _Kept:
    """A job, and how it stands."""

    order: Order
    submitted_us: int
    state: JobState = "waiting"
    tokens: int = 0
    worker: str = ""
    hold: int = 1
    former: int = 0
    attempts: int = 0
    deliveries: int = 0
    started_us: int = 0
    wakes: int = 0  # of its lanes when it was taken
    ended_us: int = 0
    answer: bytes = b""
    error: str = ""
    limit: str = ""


@dataclass(slots=True)
class _Used:
    """What an account has in the queue."""

    jobs: int = 0
    bytes: int = 0


class MemoryBacklog:
    """`Backlog` in memory."""

    lease_us: int | None = None

    def __init__(self, bounds: Bounds, fairness: Fairness, clock: Clock) -> None:
        self.bounds = bounds
        self.news = News()
        self._clock = clock
        self._lanes = Lanes(fairness)
        self._jobs: dict[str, _Kept] = {}
        self._waiting = 0
        self._used = _Used()
        self._by_account: dict[str, _Used] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._kept: deque[str] = deque()
        """Jobs that have ended, the earliest first."""

        self._answers_bytes = 0
        self._started: deque[int] = deque(maxlen=RATED)

    async def submit(self, order: Order) -> Job:
        now_us = self._now()
        known = self._jobs.get(order.id)
        if known is not None:
            if known.order.digest != order.digest:
                raise ConflictingId(f"the id {order.id!r} is that of another job: a new job needs an id of its own")
            return self._job(known, repeated=True)
        own = self._by_account.get(order.account) or _Used()
        check_room(self.bounds, order, (self._used.jobs, self._used.bytes), (own.jobs, own.bytes))
        if order.deadline_us:
            order = order._replace(deadline_us=now_us + order.deadline_us)
        kept = self._jobs[order.id] = _Kept(order, now_us, tokens=order.tokens)
        self._by_account[order.account] = own
        self._use(kept, 1)
        if order.deadline_us:
            heappush(self._deadlines, (order.deadline_us, order.id))
            if len(self._deadlines) > 2 * self._used.jobs + RATED:
                self._deadlines = [each for each in self._deadlines if self._is_waiting(each[1])]
                heapify(self._deadlines)
        self._waiting += 1
        self._lanes.add(order.account, order.lane, order.priority, Waiting(order.id, order.tokens, now_us))
        self.news.tell("submitted", order.id)
        return self._job(kept)

    async def take(self, worker: str) -> Taken | Nothing:
        now_us = self._now()
        turn = self._lanes.take(now_us)
        if turn is None:
            moments = [moment for moment in (self._lanes.due_us(), self._next_deadline()) if moment is not None]
            return Nothing(min((max(0, moment - now_us) for moment in moments), default=None))
        kept = self._jobs[turn.job.id]
        kept.state, kept.worker, kept.started_us = "running", worker, now_us
        kept.deliveries += 1
        kept.wakes = self._lanes.wakes
        self._waiting -= 1
        self._started.append(now_us)
        self.news.tell("taken", turn.job.id)
        order = kept.order
        return Taken(
            order.id, order.caller, order.model, order.path, order.body, "running", kept.hold, kept.attempts,
            kept.deliveries, turn.since_us, turn.score, turn.refusals, turn.promised_us, self._lanes.claims(now_us),
            former=kept.former,
        )  # fmt: skip

    async def park(
        self, worker: str, taken: Taken, after_us: int, scope: str = "", *, refused: bool, burnt: bool, failed: bool
    ) -> bool:
        kept, now_us = self._jobs.get(taken.id), self._now()
        if kept is None or kept.state != "running" or kept.worker != worker:
            return False
        if refused and self._lanes.was_woken(scope, kept.wakes):  # after the gate refused it: it may ask at once
            after_us, scope, refused = 0, "", False
        order = kept.order
        kept.state, kept.worker, kept.started_us = "waiting", "", 0
        kept.hold += burnt
        kept.attempts += failed
        kept.deliveries = 0
        self._waiting += 1
        job = Waiting(order.id, order.tokens, kept.submitted_us)
        turn = (taken.since_us, taken.refusals, taken.promised_us)
        lane = self._lanes.put_back(order.account, order.lane, order.priority, job, turn)
        self._lanes.park(lane, now_us, now_us + after_us, scope, refused=refused)
        if order.deadline_us:
            heappush(self._deadlines, (order.deadline_us, order.id))
        self.news.tell("parked", order.id)
        return True

    async def renew(self, worker: str, taken: Taken) -> Taken | None:
        kept = self._jobs.get(taken.id)
        if kept is None or kept.state != "running" or kept.worker != worker:
            return None
        kept.former, kept.hold = kept.hold, kept.hold + 1
        return taken._replace(hold=kept.hold, former=kept.former)

    async def finish(
        self, worker: str, taken: Taken, state: JobState, *, answer: bytes = b"", error: str = "", limit: str = "",
        scopes: tuple[str, ...] = (), tokens: int | None = None, settled: bool = True,
    ) -> Finished:  # fmt: skip
        kept, now_us = self._jobs.get(taken.id), self._now()
        if kept is None or kept.worker != worker:
            return "lost"
        kept.worker = ""
        took = kept.tokens if tokens is None else tokens
        self._lanes.ended(kept.order.account, took - kept.tokens)
        kept.tokens = took
        self._lanes.wake_scopes(scopes)
        is_first = kept.state == "running"
        if is_first:
            kept.answer, kept.error, kept.limit = answer, error, limit
            self._end(kept, state, now_us)
        self.news.tell("ended", taken.id)
        return "ended" if is_first else "was ended"

    async def release(self, worker: str, taken: Taken) -> None:
        """Nothing is left to do: a worker that settles here lives as long as the job."""

    async def wake(self, scopes: tuple[str, ...]) -> None:
        self._lanes.wake_scopes(scopes)
        self.news.tell("freed", "")

    async def keep(self, worker: str, ids: tuple[str, ...]) -> dict[str, Gone]:
        gone: dict[str, Gone] = {}
        for id in ids:
            kept = self._jobs.get(id)
            if kept is None or kept.worker != worker:
                gone[id] = "lost"
            elif kept.state == "cancelled":
                gone[id] = "cancelled"
        return gone

    async def cancel(self, id: str) -> Job:
        now_us = self._now()
        kept = self._found(id)
        if kept.state == "waiting":
            self._take_out(kept, "cancelled", now_us)
        elif kept.state == "running":
            self._end(kept, "cancelled", now_us)
            self.news.tell("cancelled", id)
        return self._job(kept)

    async def get(self, id: str) -> Job:
        self._now()
        return self._job(self._found(id))

    async def position(self, id: str) -> Position:
        now_us = self._now()
        kept = self._found(id)
        if kept.state != "waiting":
            return Position(kept.state, 0, self._waiting, None)
        ahead, until_us = self._lanes.ahead(kept.order.lane, id)
        ahead = min(ahead, self._waiting - 1)
        since_us = now_us - self._started[0] if self._started else 0
        after_us = max(0, until_us - now_us)
        return Position("waiting", ahead, self._waiting, starts_in(ahead, after_us, since_us, len(self._started)))

    async def close(self) -> None:
        """Nothing runs in the background."""

    def counter(self, account: str) -> int:
        """The tokens that an account is taken to have had."""
        return self._lanes.counter(account)

    def _now(self) -> int:
        """The moment; what was to happen before it has happened."""
        now_us = self._clock.now_us()
        while (deadline_us := self._next_deadline()) is not None and deadline_us <= now_us:
            kept = self._jobs[heappop(self._deadlines)[1]]
            kept.error = "it was not started before its deadline"
            self._take_out(kept, "expired", now_us)
        while self._kept:
            kept = self._jobs[self._kept[0]]
            is_old = kept.ended_us + self.bounds.results_us <= now_us
            if kept.worker or not (is_old or self._answers_bytes > self.bounds.answers_bytes):
                break
            self._answers_bytes -= len(kept.answer)
            del self._jobs[self._kept.popleft()]
        return now_us

    def _next_deadline(self) -> int | None:
        while self._deadlines and not self._is_waiting(self._deadlines[0][1]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _is_waiting(self, id: str) -> bool:
        kept = self._jobs.get(id)
        return kept is not None and kept.state == "waiting"

    def _found(self, id: str) -> _Kept:
        kept = self._jobs.get(id)
        if kept is None:
            raise UnknownJob(id)
        return kept

    def _take_out(self, kept: _Kept, state: JobState, now_us: int) -> None:
        self._lanes.remove(kept.order.lane, kept.order.id)
        self._waiting -= 1
        kept.tokens = 0
        self._end(kept, state, now_us)
        self.news.tell("ended", kept.order.id)

    def _end(self, kept: _Kept, state: JobState, now_us: int) -> None:
        kept.state, kept.ended_us = state, now_us
        self._use(kept, -1)
        kept.order = kept.order._replace(body=b"")
        self._answers_bytes += len(kept.answer)
        self._kept.append(kept.order.id)

    def _use(self, kept: _Kept, sign: int) -> None:
        own = self._by_account[kept.order.account]
        for used in (self._used, own):
            used.jobs += sign
            used.bytes += sign * kept.order.size
        if not own.jobs:
            del self._by_account[kept.order.account]

    def _job(self, kept: _Kept, *, repeated: bool = False) -> Job:
        order = kept.order
        return Job(
            order.id, order.caller, order.model, kept.state, order.priority, kept.tokens, kept.submitted_us,
            kept.started_us, kept.ended_us, order.deadline_us, kept.attempts, answer_of(kept.answer), kept.error,
            kept.limit, repeated,
        )  # fmt: skip


def answer_of(written: bytes) -> Any:
    """An answer as it was given, None for none."""
    return json.loads(written) if written else None


def check_room(bounds: Bounds, order: Order, used: tuple[int, int], own: tuple[int, int]) -> None:
    """Raise QueueFull where a job more is too many; `used` and `own` are jobs and bytes of all and of the account."""
    for name, sum_ in (
        ("user_jobs", own[0] + 1),
        ("user_bytes", own[1] + order.size),
        ("jobs", used[0] + 1),
        ("bytes", used[1] + order.size),
    ):
        if sum_ > getattr(bounds, name):
            raise QueueFull(name, getattr(bounds, name))


def starts_in(ahead: int, after_us: int, since_us: int, started: int) -> float | None:
    """In how many seconds a job may start, not before its limit's moment: those before it as fast as others lately.

    So many were `started` since then; None if none was.
    """
    return max(ahead * (since_us // started), after_us) / 1e6 if started else None
