"""Jobs in the memory of one process, with which they end. For one event loop."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from headgate.clock import Clock
from headgate.errors import ConflictingId
from headgate.llm.queue.backlog import Bounds, Fairness, Finished, Nothing, StopReason, Taken
from headgate.llm.queue.job import Job, JobRequest, JobState, Position, QueueFull, UnknownJob
from headgate.llm.queue.lane import Waiting
from headgate.llm.queue.lanes import Lanes
from headgate.llm.queue.news import News

RATED = 32
"""The speed of the queue is measured over this many of the latest starts."""


@dataclass(slots=True)
class _Entry:
    """A job and its state."""

    request: JobRequest
    submitted_us: int
    state: JobState = "waiting"
    tokens: int = 0
    worker: str = ""
    hold: int = 0
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
class _Use:
    """How many jobs, and bytes of bodies, an account has in the queue."""

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
        self._jobs: dict[str, _Entry] = {}
        self._waiting = 0
        self._used = _Use()
        self._by_account: dict[str, _Use] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._ended: deque[str] = deque()
        """The ids of jobs that have ended, the earliest first."""

        self._answers_bytes = 0
        self._started: deque[int] = deque(maxlen=RATED)

    async def submit(self, request: JobRequest) -> Job:
        now_us = self._now()
        existing = self._jobs.get(request.id)
        if existing is not None:
            if existing.request.digest != request.digest:
                raise ConflictingId(f"the id {request.id!r} is that of another job: a new job needs an id of its own")
            return self._job(existing, repeated=True)
        account_use = self._by_account.get(request.account) or _Use()
        check_bounds(self.bounds, request, (self._used.jobs, self._used.bytes), (account_use.jobs, account_use.bytes))
        if request.deadline_us:
            request = request._replace(deadline_us=now_us + request.deadline_us)
        entry = self._jobs[request.id] = _Entry(request, now_us, tokens=request.tokens, hold=now_us)
        self._by_account[request.account] = account_use
        self._use(entry, 1)
        if request.deadline_us:
            heappush(self._deadlines, (request.deadline_us, request.id))
            if len(self._deadlines) > 2 * self._used.jobs + RATED:
                self._deadlines = [item for item in self._deadlines if self._is_pending(*item)]
                heapify(self._deadlines)
        self._waiting += 1
        self._lanes.add(request.account, request.lane, request.priority, Waiting(request.id, request.tokens, now_us))
        self.news.publish("submitted", request.id)
        return self._job(entry)

    async def take(self, worker: str) -> Taken | Nothing:
        now_us = self._now()
        turn = self._lanes.take(now_us)
        if turn is None:
            due_times = [due_us for due_us in (self._lanes.due_us(), self._next_deadline()) if due_us is not None]
            return Nothing(min((max(0, due_us - now_us) for due_us in due_times), default=None))
        entry = self._jobs[turn.job.id]
        entry.state, entry.worker, entry.started_us = "running", worker, now_us
        entry.deliveries += 1
        entry.wakes = self._lanes.wakes
        self._waiting -= 1
        self._started.append(now_us)
        self.news.publish("taken", turn.job.id)
        request = entry.request
        return Taken(
            request.id, request.caller, request.model, request.path, request.body, "running", entry.hold,
            entry.attempts, entry.deliveries, turn.since_us, turn.score, turn.refusals, turn.promised_us,
            self._lanes.claims(now_us), former=entry.former,
        )  # fmt: skip

    async def park(
        self, worker: str, taken: Taken, after_us: int, scope: str = "", *, refused: bool, settled: bool, failed: bool
    ) -> bool:
        entry, now_us = self._jobs.get(taken.id), self._now()
        if entry is None or entry.state != "running" or entry.worker != worker:
            return False
        if refused and self._lanes.was_woken(scope, entry.wakes):  # since it was taken: it may try again at once
            after_us, scope, refused = 0, "", False
        request = entry.request
        entry.state, entry.worker, entry.started_us = "waiting", "", 0
        entry.hold += settled
        entry.attempts += failed
        entry.deliveries = 0
        self._waiting += 1
        job = Waiting(request.id, request.tokens, entry.submitted_us)
        turn = (taken.since_us, taken.refusals, taken.promised_us)
        lane = self._lanes.put_back(request.account, request.lane, request.priority, job, turn)
        self._lanes.park(lane, now_us, now_us + after_us, scope, refused=refused)
        if request.deadline_us:
            heappush(self._deadlines, (request.deadline_us, request.id))
        self.news.publish("parked", request.id)
        return True

    async def renew(self, worker: str, taken: Taken) -> Taken | None:
        entry = self._jobs.get(taken.id)
        if entry is None or entry.state != "running" or entry.worker != worker:
            return None
        entry.former, entry.hold = entry.hold, entry.hold + 1
        return taken._replace(hold=entry.hold, former=entry.former)

    async def finish(
        self, worker: str, taken: Taken, state: JobState, *, answer: bytes = b"", error: str = "", limit: str = "",
        scopes: tuple[str, ...] = (), tokens: int | None = None, settled: bool = True,
    ) -> Finished:  # fmt: skip
        entry, now_us = self._jobs.get(taken.id), self._now()
        if entry is None or entry.worker != worker:
            return "lost"
        entry.worker = ""
        used = entry.tokens if tokens is None else tokens
        self._lanes.ended(entry.request.account, used - entry.tokens)
        entry.tokens = used
        self._lanes.wake_scopes(scopes)
        is_first = entry.state == "running"
        if is_first:
            entry.answer, entry.error, entry.limit = answer, error, limit
            self._end(entry, state, now_us)
        self.news.publish("ended", taken.id)
        return "ended" if is_first else "was ended"

    async def release(self, worker: str, taken: Taken) -> None:
        """Do nothing: the worker that settles ends with the jobs."""

    async def wake(self, scopes: tuple[str, ...]) -> None:
        self._lanes.wake_scopes(scopes)
        self.news.publish("freed", "")

    async def keep(self, worker: str, ids: tuple[str, ...]) -> dict[str, StopReason]:
        stop_reasons: dict[str, StopReason] = {}
        for id in ids:
            entry = self._jobs.get(id)
            if entry is None or entry.worker != worker:
                stop_reasons[id] = "lost"
            elif entry.state == "cancelled":
                stop_reasons[id] = "cancelled"
        return stop_reasons

    async def cancel(self, id: str) -> Job:
        now_us = self._now()
        entry = self._entry(id)
        if entry.state == "waiting":
            self._withdraw(entry, "cancelled", now_us)
        elif entry.state == "running":
            self._end(entry, "cancelled", now_us)
            self.news.publish("cancelled", id)
        return self._job(entry)

    async def get(self, id: str) -> Job:
        self._now()
        return self._job(self._entry(id))

    async def position(self, id: str) -> Position:
        now_us = self._now()
        entry = self._entry(id)
        if entry.state != "waiting":
            return Position(entry.state, 0, self._waiting, None)
        ahead, until_us = self._lanes.ahead(entry.request.lane, id)
        ahead = min(ahead, self._waiting - 1)
        since_us = now_us - self._started[0] if self._started else 0
        after_us = max(0, until_us - now_us)
        return Position("waiting", ahead, self._waiting, starts_in(ahead, after_us, since_us, len(self._started)))

    async def close(self) -> None:
        """Do nothing: nothing runs in the background."""

    def counter(self, account: str) -> int:
        """Return the token counter of an account."""
        return self._lanes.counter(account)

    def _now(self) -> int:
        """Return the current time, after ending jobs past their deadline and dropping old results."""
        now_us = self._clock.now_us()
        while (deadline_us := self._next_deadline()) is not None and deadline_us <= now_us:
            entry = self._jobs[heappop(self._deadlines)[1]]
            entry.error = "it was not started before its deadline"
            self._withdraw(entry, "expired", now_us)
        while self._ended:
            entry = self._jobs[self._ended[0]]
            is_old = entry.ended_us + self.bounds.results_us <= now_us
            if entry.worker or not (is_old or self._answers_bytes > self.bounds.answers_bytes):
                break
            self._answers_bytes -= len(entry.answer)
            del self._jobs[self._ended.popleft()]
        return now_us

    def _next_deadline(self) -> int | None:
        while self._deadlines and not self._is_pending(*self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _is_pending(self, deadline_us: int, id: str) -> bool:
        """Whether a job waits under this deadline, which may be that of an earlier job with the same id."""
        entry = self._jobs.get(id)
        return entry is not None and entry.state == "waiting" and entry.request.deadline_us == deadline_us

    def _entry(self, id: str) -> _Entry:
        entry = self._jobs.get(id)
        if entry is None:
            raise UnknownJob(id)
        return entry

    def _withdraw(self, entry: _Entry, state: JobState, now_us: int) -> None:
        self._lanes.remove(entry.request.lane, entry.request.id)
        self._waiting -= 1
        entry.tokens = 0
        self._end(entry, state, now_us)
        self.news.publish("ended", entry.request.id)

    def _end(self, entry: _Entry, state: JobState, now_us: int) -> None:
        entry.state, entry.ended_us = state, now_us
        self._use(entry, -1)
        entry.request = entry.request._replace(body=b"")
        self._answers_bytes += len(entry.answer)
        self._ended.append(entry.request.id)

    def _use(self, entry: _Entry, sign: int) -> None:
        account_use = self._by_account[entry.request.account]
        for used in (self._used, account_use):
            used.jobs += sign
            used.bytes += sign * entry.request.size
        if not account_use.jobs:
            del self._by_account[entry.request.account]

    def _job(self, entry: _Entry, *, repeated: bool = False) -> Job:
        request = entry.request
        return Job(
            request.id, request.caller, request.model, entry.state, request.priority, entry.tokens, entry.submitted_us,
            entry.started_us, entry.ended_us, request.deadline_us, entry.attempts, answer_of(entry.answer), entry.error,
            entry.limit, repeated,
        )  # fmt: skip


def answer_of(encoded: bytes) -> Any:
    """Parse a stored answer; None for none."""
    return json.loads(encoded) if encoded else None


def check_bounds(bounds: Bounds, request: JobRequest, used: tuple[int, int], account_use: tuple[int, int]) -> None:
    """Raise QueueFull if one more job exceeds a bound; `used` is all (jobs, bytes), `account_use` the account's."""
    for name, total in (
        ("user_jobs", account_use[0] + 1),
        ("user_bytes", account_use[1] + request.size),
        ("jobs", used[0] + 1),
        ("bytes", used[1] + request.size),
    ):
        if total > getattr(bounds, name):
            raise QueueFull(name, getattr(bounds, name))


def starts_in(ahead: int, after_us: int, since_us: int, started: int) -> float | None:
    """Estimate in how many seconds a job may start: those before it at the recent rate, but not before `after_us`.

    `started` jobs were started in the last `since_us` microseconds; None if there were none.
    """
    return max(ahead * (since_us // started), after_us) / 1e6 if started else None
