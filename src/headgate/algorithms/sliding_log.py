"""Sliding window log: never more than the limit in any interval of one period, exactly.

State is a tuple of (time, cost) entries, oldest first, or None for a key never seen; requests of
one instant share an entry. An entry leaves when it is a whole period old. Times are integers of the
limit's unit. Pure. See docs/algorithms.md#sliding-window-log.
"""

from __future__ import annotations

from headgate.units import CompiledLimit

State = tuple[tuple[int, int], ...]


def roll(limit: CompiledLimit, state: State | None, now: int) -> State:
    """The state as it stands at `now`, or at its last entry if the clock is behind that."""
    if not state:
        return ()
    last = state[-1][0]
    if last - now > 2 * limit.period:  # no clock steps back that far: the state is from a clock once far ahead
        state = tuple((time - last + now, cost) for time, cost in state)
        last = now
    border = max(now, last) - limit.period
    gone = 0
    while gone < len(state) and state[gone][0] <= border:
        gone += 1
    return state[gone:]


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
    """The state of a limit whose numbers were `former`: what had left under those is gone, the rest stays."""
    return roll(former, state, now_us // former.unit_us) or None


def _used(state: State) -> int:
    return sum(cost for _, cost in state)


def _freed(limit: CompiledLimit, state: State, now: int, needed: int) -> int:
    """How long until the oldest entries that hold `needed` units have left."""
    for time, cost in state:
        needed -= cost
        if needed <= 0:
            return time + limit.period - now
    return state[-1][0] + limit.period - now
