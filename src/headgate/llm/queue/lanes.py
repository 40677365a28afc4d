"""The order of jobs in memory: by tokens that users have had, with lanes that wait for a limit's moment.

Jobs of one caller, model and priority are a lane, served first come, first served. Each account (a user) has a counter
of tokens, the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), section
4.2. `lua/queue.lua` does the same on Redis, by the same names; a law compares them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from headgate.llm.queue.backlog import Claim, Fairness
from headgate.llm.queue.lane import Account, Lane, Turn, Waiting

STRICT = 2
"""A lane that was refused so often at its promised moments claims the limit that refused it."""

MOST_WOKEN = 1000
"""Scopes to which something was given back are remembered for so many times."""

_TIDY = 64


class Lanes:
    """All lanes and accounts of a queue."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._accounts: dict[str, Account] = {}
        self._lanes: dict[str, Lane] = {}
        self._ready: list[tuple[int, str]] = []
        """A heap of scores and lanes; what does not agree with its lane any more is passed over. So are these."""

        self._parked: list[tuple[int, str]] = []
        self._active: list[tuple[int, str]] = []
        self._left: list[tuple[int, str]] = []
        self._by_scope: dict[str, set[str]] = {}
        self._claims: dict[str, tuple[str, int]] = {}
        self.wakes = 0
        """How often something was given back."""

        self._woken: dict[str, int] = {}
        """By scope the number of the last time, of the last `MOST_WOKEN`."""

        self._floor = 0
        """Where the last user stood that had nothing waiting any more."""

    def add(self, account: str, lane: str, priority: int, job: Waiting) -> None:
        """Let a job wait behind those of its lane. A user that comes back is lifted to the least of the active."""
        known = self._accounts.get(account)
        if known is None or not known.waiting:
            floor = self._least()
            self._forget(floor)
            known = self._accounts.setdefault(account, Account(floor))
            if floor > known.counter:
                self._count(account, floor - known.counter)
        self._joined(account, known)
        self._lane(account, lane, priority, job.submitted_us, 0).jobs.append(job)
        self._changed(lane, job.tokens)

    def put_back(self, account: str, lane: str, priority: int, job: Waiting, turn: tuple[int, int, int]) -> Lane:
        """Let a job that was taken wait again where it was; `turn` is since when its lane waited, its
        refusals, and the moment that it was promised last."""
        since_us, refusals, promised_us = turn
        known = self._accounts[account]
        known.running -= 1
        self._joined(account, known)
        found = self._lane(account, lane, priority, since_us, refusals)
        found.since_us, found.refusals = min(found.since_us, since_us), max(found.refusals, refusals)
        found.promised_us = max(found.promised_us, promised_us)
        found.jobs.appendleft(job)
        self._changed(lane, job.tokens)
        self._count(account, -job.tokens)
        return found

    def take(self, now_us: int) -> Turn | None:
        """The job whose turn it is, charged to its user; None where all are parked, or none waits.

        What was refused by a limit that one before it claims is not asked about, and waits with that one.
        """
        while (until_us := self.due_us()) is not None and until_us <= now_us:
            self._let_go(self._lanes[heappop(self._parked)[1]])
        claims = {claim.scope: claim for claim in self.claims(now_us)}
        while self._ready:
            score, name = self._ready[0]
            lane = self._lanes.get(name)
            if lane is None or lane.until_us or lane.score != score:
                heappop(self._ready)
                continue
            claim = claims.get(lane.scope)
            if claim is not None and claim.score < score:
                self._leave_alone(lane, now_us + claim.after_us, claim.scope)
                continue
            job = lane.jobs.popleft()
            turn = Turn(job, lane.since_us, score, lane.refusals, lane.promised_us)
            self._unclaim(lane)
            lane.since_us, lane.refusals, lane.promised_us = max(now_us, lane.since_us), 0, 0
            self._removed(lane, job)
            account = self._accounts[lane.account]
            account.running += 1
            self._count(lane.account, job.tokens)
            return turn
        return None

    def remove(self, lane: str, id: str) -> None:
        """Take out a job that waits, of which nothing was charged. A lane that loses its first may ask at once."""
        found = self._lanes[lane]
        job = next(each for each in found.jobs if each.id == id)
        is_first = found.jobs[0] is job
        found.jobs.remove(job)
        if is_first and found.until_us:
            self._unclaim(found)
            self._let_go(found)
        self._removed(found, job)

    def ended(self, account: str, correction: int) -> None:
        """A job that was taken has ended; it took so many tokens more than it was charged."""
        known = self._accounts[account]
        known.running -= 1
        self._count(account, correction)
        if not known.waiting and not known.running:
            self._put(self._left, (known.counter, account))

    def park(self, lane: Lane, now_us: int, until_us: int, scope: str, *, refused: bool) -> None:
        """Leave a lane alone until a moment; refused by a limit when that was promised, it claims that limit."""
        self._let_go(lane)
        self._leave_alone(lane, max(until_us, now_us + 1), scope)
        if refused and now_us >= lane.promised_us:
            lane.refusals += 1
            lane.promised_us = lane.until_us
        if scope and refused and lane.refusals >= STRICT:
            holder = self._lanes.get(self._claims.get(scope, ("", 0))[0])
            if holder is None or holder is lane or (lane.score, lane.name) < (holder.score, holder.name):
                self._claims[scope] = (lane.name, lane.until_us)

    def wake_scopes(self, scopes: tuple[str, ...]) -> None:
        """Something was given back to limits of these scopes: of each the first that waits for it may ask again."""
        for scope in scopes:
            self._note_woken(scope)
            found = [self._lanes[name] for name in self._by_scope.get(scope, ())]
            if found:
                lane = min(found, key=lambda each: (each.score, each.name))
                self._let_go(lane)

    def was_woken(self, scope: str, wakes: int) -> bool:
        """Whether something was given back to a scope since there were so many `wakes`."""
        return self._woken.get(scope, 0) > wakes

    def _note_woken(self, scope: str) -> None:
        self.wakes += 1
        self._woken.pop(scope, None)
        self._woken[scope] = self.wakes
        while self._woken[first := next(iter(self._woken))] <= self.wakes - MOST_WOKEN:
            del self._woken[first]

    def claims(self, now_us: int) -> tuple[Claim, ...]:
        """Claims of limits."""
        for scope, (name, until_us) in list(self._claims.items()):
            if name not in self._lanes or until_us <= now_us:
                del self._claims[scope]
        return tuple(
            Claim(scope, self._lanes[name].score, until_us - now_us) for scope, (name, until_us) in self._claims.items()
        )

    def due_us(self) -> int | None:
        """When the next parked lane may ask."""
        while self._parked:
            until_us, name = self._parked[0]
            lane = self._lanes.get(name)
            if lane is not None and lane.until_us == until_us:
                return until_us
            heappop(self._parked)
        return None

    def ahead(self, name: str, id: str) -> tuple[int, int]:
        """About how many jobs come before one that waits, and until when its lane is parked (0: it is not)."""
        own = self._lanes[name]
        before, score = 0, own.score
        for job in own.jobs:
            if job.id == id:
                break
            before += 1
            score += job.tokens * 1000
        for lane in self._lanes.values():
            if lane is not own and lane.score < score:
                each = max(1, lane.tokens * 1000 // len(lane.jobs))
                before += min(len(lane.jobs), -(-(score - lane.score) // each))
        return before, own.until_us

    def counter(self, account: str) -> int:
        """The tokens that a user is taken to have had; 0 for one that is unknown."""
        known = self._accounts.get(account)
        return 0 if known is None else known.counter

    def _lane(self, account: str, name: str, priority: int, since_us: int, refusals: int) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, account, priority, since_us, refusals=refusals)
            self._accounts[account].lanes[name] = lane
        return lane

    def _changed(self, name: str, tokens: int) -> None:
        lane = self._lanes[name]
        lane.tokens += tokens
        self._score(lane)

    def _removed(self, lane: Lane, job: Waiting) -> None:
        account = self._accounts[lane.account]
        lane.tokens -= job.tokens
        account.waiting -= 1
        if not lane.jobs:
            self._let_go(lane)
            self._unclaim(lane)
            del self._lanes[lane.name], account.lanes[lane.name]
        else:
            self._score(lane)
        if not account.waiting:
            self._floor = max(self._floor, account.counter)
            self._put(self._left, (account.counter, lane.account))

    def _joined(self, name: str, account: Account) -> None:
        account.waiting += 1
        if account.waiting == 1:
            self._put(self._active, (account.counter, name))

    def _count(self, name: str, tokens: int) -> None:
        """Charge a user, which changes where its lanes stand."""
        account = self._accounts[name]
        account.counter += tokens
        for lane in account.lanes.values():
            self._score(lane)
        if account.waiting:
            self._put(self._active, (account.counter, name))

    def _score(self, lane: Lane) -> None:
        lane.score = self._fairness.score(self._accounts[lane.account].counter, lane.since_us, lane.priority)
        if not lane.until_us:
            self._put(self._ready, (lane.score, lane.name))

    def _put(self, heap: list[tuple[int, str]], entry: tuple[int, str]) -> None:
        """Push on a heap, which has few entries that agree with nothing any more."""
        heappush(heap, entry)
        if len(heap) <= 4 * max(len(self._lanes), len(self._accounts)) + _TIDY:
            return
        lanes, accounts = self._lanes.values(), self._accounts.items()
        if heap is self._ready:
            heap[:] = [(lane.score, lane.name) for lane in lanes if not lane.until_us]
        elif heap is self._parked:
            heap[:] = [(lane.until_us, lane.name) for lane in lanes if lane.until_us]
        else:
            wanted = heap is self._active
            heap[:] = [(each.counter, name) for name, each in accounts if bool(each.waiting) == wanted]
        heapify(heap)

    def _leave_alone(self, lane: Lane, until_us: int, scope: str) -> None:
        lane.until_us, lane.scope = until_us, scope
        if scope:
            self._by_scope.setdefault(scope, set()).add(lane.name)
        self._put(self._parked, (until_us, lane.name))

    def _let_go(self, lane: Lane) -> None:
        """Let a lane ask that may be parked."""
        names = self._by_scope.get(lane.scope)
        if names is not None:
            names.discard(lane.name)
            if not names:
                del self._by_scope[lane.scope]
        lane.until_us = 0
        if lane.jobs:
            self._score(lane)

    def _unclaim(self, lane: Lane) -> None:
        if self._claims.get(lane.scope, ("", 0))[0] == lane.name:
            del self._claims[lane.scope]

    def _least(self) -> int:
        """Where a user begins that comes now."""
        while self._active:
            counter, name = self._active[0]
            account = self._accounts.get(name)
            if account is not None and account.waiting and account.counter == counter:
                return counter
            heappop(self._active)
        return self._floor

    def _forget(self, floor: int) -> None:
        """Forget users that would be lifted to the floor if they came back."""
        while self._left and self._left[0][0] <= floor:
            counter, name = heappop(self._left)
            account = self._accounts.get(name)
            if account is not None and account.counter == counter and not account.waiting and not account.running:
                del self._accounts[name]
