"""Sliding window log: never more than the limit in any interval of one period, exactly.

State is a tuple of (time, cost) entries, oldest first, or None for a key never seen; requests of
one instant share an entry. An entry leaves when it is a whole period old. Times are integers of the
limit's unit. Pure. See docs/algorithms.md#sliding-window-log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from headgate.units import LARGEST, CompiledLimit

State = tuple[tuple[int, int], ...]

MOST_SINCE = 200
"""A charge with this many entries since is not given back: all of them might have to be moved."""


def roll(limit: CompiledLimit, state: State | None, now: int) -> State:
    """The state as it stands at `now`, or at its last entry if the clock is behind that."""
    if not state:
        return ()
    last = state[-1][0]
    if last - now > 2 * limit.period:  # no clock steps back that far: the state is from a clock once far ahead
        state = tuple((time - last + now, cost) for time, cost in state)
        last = now
    border = max(now, last) - limit.period
    expired = 0
    while expired < len(state) and state[expired][0] <= border:
        expired += 1
    return state[expired:]


def admit(limit: CompiledLimit, state: State, now: int, cost: int) -> int | None:
    """How long this cost must wait: 0 to pass now, None for never."""
    excess = _used(state) + cost - limit.quota
    if cost == 0 or excess <= 0:
        return 0
    if cost > limit.quota:
        return None
    return _freed(limit, state, now, excess)


def charge(limit: CompiledLimit, state: State, now: int, cost: int) -> State:
    """The state after an admitted cost."""
    if cost == 0:
        return state
    if not state or now > state[-1][0]:
        return (*state, (now, cost))
    last, before = state[-1]
    return (*state[:-1], (last, before + cost))


def measure(limit: CompiledLimit, state: State, now: int) -> tuple[int, int, int]:
    """(remaining, reset_after, next_after): what is left, when all of it is back, when one more is."""
    if not state:
        return limit.quota, 0, 0
    used = _used(state)
    reset_after = state[-1][0] + limit.period - now
    next_after = _freed(limit, state, now, max(1, used - limit.quota + 1))
    return max(0, limit.quota - used), reset_after, next_after


def convert(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    """The state of a limit whose numbers were `former`: entries that had left under those are dropped."""
    return roll(former, state, now_us // former.unit_us) or None


def give_back(limit: CompiledLimit, state: State, now: int, cost: int, earliest: int) -> State | None:
    """The state without what is left of a charge made at `earliest` or later; None where nothing is left.

    Units are taken off the oldest entries since then: the charge's own entry is not older than these, so the units
    would not have stayed longer. Where the caller's slow clock has missed it, the newest entries before `earliest` go.
    """
    last = state[-1][0]
    border = max(now, last) - limit.period
    if last <= border or earliest <= border:
        return state  # it may have left already
    retained, moved = state[:-MOST_SINCE], state[-MOST_SINCE:]
    if retained and moved[0][0] >= earliest:
        return state
    before = tuple(entry for entry in moved if entry[0] < earliest)
    since = moved[len(before) :]
    taken = min(cost, _used(since))
    return (*retained, *_without(before[::-1], cost - taken)[::-1], *_without(since, taken)) or None


def mark(limit: CompiledLimit, state: State, now: int) -> tuple[int, int]:
    """What a hold remembers right after its charge: the time of its entry."""
    return (max(now, state[-1][0]) if state else now), 0


def settle(
    limit: CompiledLimit, state: State, now: int, marked: tuple[int, int], change: int, refunded: int
) -> tuple[State, int]:
    """(the state, what was given back) after a hold's charge has changed: in its own entry, if that still counts."""
    moment = marked[0]
    if moment <= max(now, state[-1][0] if state else now) - limit.period:
        return state, 0
    place = bisect_left(state, (moment,))
    there = place < len(state) and state[place][0] == moment
    before = state[place][1] if there else 0
    after = max(0, before + change)
    entry = ((moment, after),) if after else ()
    return (*state[:place], *entry, *state[place + there :]), max(0, before - after)


def fits(limit: CompiledLimit, state: State) -> bool:
    """Whether exact arithmetic holds this state, after a debt was charged."""
    return _used(state) <= LARGEST


def _used(state: State) -> int:
    return sum(cost for _, cost in state)


def _freed(limit: CompiledLimit, state: State, now: int, needed: int) -> int:
    """How long until the oldest entries that hold `needed` units have left."""
    for time, cost in state:
        needed -= cost
        if needed <= 0:
            return time + limit.period - now
    return state[-1][0] + limit.period - now


def _without(entries: Sequence[tuple[int, int]], needed: int) -> Sequence[tuple[int, int]]:
    """The entries without their first `needed` units."""
    for number, (time, cost) in enumerate(entries):
        if cost > needed:
            return [(time, cost - needed), *entries[number + 1 :]]
        needed -= cost
    return []
