"""The order of jobs in memory: by the tokens that users have had; a refused lane is parked until the promised time.

Jobs of one caller, model and priority are a lane, served first come, first served. Each account (a user) has a counter
of tokens, the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), section
4.2. `lua/queue.lua` does the same on Redis, with the same names; a test compares them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from headgate.llm.queue.backlog import Claim, Fairness
from headgate.llm.queue.lane import Account, Lane, Turn, Waiting

STRICT = 2
"""The refusals at promised times after which a lane claims the limit that refused it."""

MOST_WOKEN = 1000
"""The number of further wakes for which a scope whose capacity was given back is remembered."""

_TIDY = 64


class Lanes:
    """All lanes and accounts of a queue."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._accounts: dict[str, Account] = {}
        self._lanes: dict[str, Lane] = {}
        self._ready: list[tuple[int, str]] = []
        """A heap of (score, lane); outdated entries are skipped. The next three are heaps of the same kind."""

        self._parked: list[tuple[int, str]] = []
        self._active: list[tuple[int, str]] = []
        self._idle: list[tuple[int, str]] = []
        self._by_scope: dict[str, set[str]] = {}
        self._claims: dict[str, tuple[str, int]] = {}
        self.wakes = 0
        """How often capacity was given back."""

        self._woken: dict[str, int] = {}
        """By scope the number of its last wake, if that is among the last `MOST_WOKEN`."""

        self._floor = 0
        """The counter of the user that was the last to have no more jobs waiting."""

    def add(self, account: str, lane: str, priority: int, job: Waiting) -> None:
        """Add a job at the end of its lane. A returning user's counter is raised to the least of the waiting users."""
        user = self._accounts.get(account)
        if user is None or not user.waiting:
            floor = self._least()
            self._forget(floor)
            user = self._accounts.setdefault(account, Account(floor))
            if floor > user.counter:
                self._count(account, floor - user.counter)
        self._joined(account, user)
        self._lane(account, lane, priority, job.submitted_us, 0).jobs.append(job)
        self._add_tokens(lane, job.tokens)

    def put_back(self, account: str, lane: str, priority: int, job: Waiting, turn: tuple[int, int, int]) -> Lane:
        """Put a job that was taken back at the front of its lane.

        `turn` is the lane's former `since_us`, `refusals` and `promised_us`.
        """
        since_us, refusals, promised_us = turn
        user = self._accounts[account]
        user.running -= 1
        self._joined(account, user)
        target = self._lane(account, lane, priority, since_us, refusals)
        target.since_us, target.refusals = min(target.since_us, since_us), max(target.refusals, refusals)
        target.promised_us = max(target.promised_us, promised_us)
        target.jobs.appendleft(job)
        self._add_tokens(lane, job.tokens)
        self._count(account, -job.tokens)
        return target

    def take(self, now_us: int) -> Turn | None:
        """Take the job whose turn it is, and charge it to its user; None where all lanes are parked, or no job waits.

        A lane that was refused by a limit which a lane before it claims is parked until that lane may try again.
        """
        while (until_us := self.due_us()) is not None and until_us <= now_us:
            self._unpark(self._lanes[heappop(self._parked)[1]])
        claims = {claim.scope: claim for claim in self.claims(now_us)}
        while self._ready:
            score, name = self._ready[0]
            lane = self._lanes.get(name)
            if lane is None or lane.until_us or lane.score != score:
                heappop(self._ready)
                continue
            claim = claims.get(lane.scope)
            if claim is not None and claim.score < score:
                self._park_until(lane, now_us + claim.after_us, claim.scope)
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
        """Remove a waiting job, for which nothing was charged. A lane that loses its first job may try at once."""
        target = self._lanes[lane]
        job = next(waiting for waiting in target.jobs if waiting.id == id)
        is_first = target.jobs[0] is job
        target.jobs.remove(job)
        if is_first and target.until_us:
            self._unclaim(target)
            self._unpark(target)
        self._removed(target, job)

    def ended(self, account: str, correction: int) -> None:
        """Record that a taken job has ended; it used `correction` tokens more than it was charged."""
        user = self._accounts[account]
        user.running -= 1
        self._count(account, correction)
        if not user.waiting and not user.running:
            self._put(self._idle, (user.counter, account))

    def park(self, lane: Lane, now_us: int, until_us: int, scope: str, *, refused: bool) -> None:
        """Park a lane until `until_us`; after `STRICT` refusals at promised times it claims the limit that refused."""
        self._unpark(lane)
        self._park_until(lane, max(until_us, now_us + 1), scope)
        if refused and now_us >= lane.promised_us:
            lane.refusals += 1
            lane.promised_us = lane.until_us
        if scope and refused and lane.refusals >= STRICT:
            holder = self._lanes.get(self._claims.get(scope, ("", 0))[0])
            if holder is None or holder is lane or (lane.score, lane.name) < (holder.score, holder.name):
                self._claims[scope] = (lane.name, lane.until_us)

    def wake_scopes(self, scopes: tuple[str, ...]) -> None:
        """Note that capacity of limits of these scopes was given back; unpark the first lane that waits for each."""
        for scope in scopes:
            self._note_woken(scope)
            parked = [self._lanes[name] for name in self._by_scope.get(scope, ())]
            if parked:
                lane = min(parked, key=lambda candidate: (candidate.score, candidate.name))
                self._unpark(lane)

    def was_woken(self, scope: str, wakes: int) -> bool:
        """Whether capacity of a scope was given back since the number of wakes was `wakes`."""
        return self._woken.get(scope, 0) > wakes

    def _note_woken(self, scope: str) -> None:
        self.wakes += 1
        self._woken.pop(scope, None)
        self._woken[scope] = self.wakes
        while self._woken[first := next(iter(self._woken))] <= self.wakes - MOST_WOKEN:
            del self._woken[first]

    def claims(self, now_us: int) -> tuple[Claim, ...]:
        """Return the claims of limits that are in force."""
        for scope, (name, until_us) in list(self._claims.items()):
            if name not in self._lanes or until_us <= now_us:
                del self._claims[scope]
        return tuple(
            Claim(scope, self._lanes[name].score, until_us - now_us) for scope, (name, until_us) in self._claims.items()
        )

    def due_us(self) -> int | None:
        """Return when the next parked lane may try again; None where none is parked."""
        while self._parked:
            until_us, name = self._parked[0]
            lane = self._lanes.get(name)
            if lane is not None and lane.until_us == until_us:
                return until_us
            heappop(self._parked)
        return None

    def ahead(self, name: str, id: str) -> tuple[int, int]:
        """Estimate how many jobs come before a waiting job; return that, and until when its lane is parked (0: not)."""
        target = self._lanes[name]
        before, score = 0, target.score
        for job in target.jobs:
            if job.id == id:
                break
            before += 1
            score += job.tokens * 1000
        for lane in self._lanes.values():
            if lane is not target and lane.score < score:
                mean_score = max(1, lane.tokens * 1000 // len(lane.jobs))
                before += min(len(lane.jobs), -(-(score - lane.score) // mean_score))
        return before, target.until_us

    def counter(self, account: str) -> int:
        """Return the token counter of a user; 0 for an unknown user."""
        user = self._accounts.get(account)
        return 0 if user is None else user.counter

    def _lane(self, account: str, name: str, priority: int, since_us: int, refusals: int) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, account, priority, since_us, refusals=refusals)
            self._accounts[account].lanes[name] = lane
        return lane

    def _add_tokens(self, name: str, tokens: int) -> None:
        lane = self._lanes[name]
        lane.tokens += tokens
        self._score(lane)

    def _removed(self, lane: Lane, job: Waiting) -> None:
        account = self._accounts[lane.account]
        lane.tokens -= job.tokens
        account.waiting -= 1
        if not lane.jobs:
            self._unpark(lane)
            self._unclaim(lane)
            del self._lanes[lane.name], account.lanes[lane.name]
        else:
            self._score(lane)
        if not account.waiting:
            self._floor = max(self._floor, account.counter)
            self._put(self._idle, (account.counter, lane.account))

    def _joined(self, name: str, account: Account) -> None:
        account.waiting += 1
        if account.waiting == 1:
            self._put(self._active, (account.counter, name))

    def _count(self, name: str, tokens: int) -> None:
        """Charge a user, which changes the scores of its lanes."""
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
        """Push an entry on a heap; rebuild the heap if it has many outdated entries."""
        heappush(heap, entry)
        if len(heap) <= 4 * max(len(self._lanes), len(self._accounts)) + _TIDY:
            return
        lanes, accounts = self._lanes.values(), self._accounts.items()
        if heap is self._ready:
            heap[:] = [(lane.score, lane.name) for lane in lanes if not lane.until_us]
        elif heap is self._parked:
            heap[:] = [(lane.until_us, lane.name) for lane in lanes if lane.until_us]
        else:
            is_waiting = heap is self._active
            heap[:] = [(account.counter, name) for name, account in accounts if bool(account.waiting) == is_waiting]
        heapify(heap)

    def _park_until(self, lane: Lane, until_us: int, scope: str) -> None:
        lane.until_us, lane.scope = until_us, scope
        if scope:
            self._by_scope.setdefault(scope, set()).add(lane.name)
        self._put(self._parked, (until_us, lane.name))

    def _unpark(self, lane: Lane) -> None:
        """Let a lane try now, whether it is parked or not."""
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
        """Return the counter at which a new or returning user begins."""
        while self._active:
            counter, name = self._active[0]
            account = self._accounts.get(name)
            if account is not None and account.waiting and account.counter == counter:
                return counter
            heappop(self._active)
        return self._floor

    def _forget(self, floor: int) -> None:
        """Forget idle users whose counters would be raised to the floor if they returned."""
        while self._idle and self._idle[0][0] <= floor:
            counter, name = heappop(self._idle)
            account = self._accounts.get(name)
            if account is not None and account.counter == counter and not account.waiting and not account.running:
                del self._accounts[name]
