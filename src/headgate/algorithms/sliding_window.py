"""Sliding window counter: this window's count and the share of the last one that still overlaps.

The share is rounded down to whole units, so that evenly spaced requests at exactly the limit are not refused.
State is (window, current, previous), or None for a key never seen. `window` is the index of the
window that `current` counts. Times are integers of the limit's unit. Pure.
See docs/algorithms.md#sliding-window-counter.
"""

from __future__ import annotations

from headgate.units import LARGEST, CompiledLimit

State = tuple[int, int, int]


def roll(limit: CompiledLimit, state: State | None, now: int) -> State:
    """The state as it stands at `now`. A clock behind the window stays in it: it never admits more."""
    index = now // limit.period
    if state is None:
        return (index, 0, 0)
    window, current, previous = state
    if index == window + 1:
        return (index, 0, current)
    if index > window:
        return (index, 0, 0)
    if window - index > 2:  # no clock steps back that far: the state is from a clock once far ahead
        return (index + 1, current, previous)  # the start of a window, where all of `previous` counts
    return state


def admit(limit: CompiledLimit, state: State, now: int, cost: int) -> int | None:
    """How long this cost must wait: 0 to pass now, None for never."""
    window, current, previous = state
    if cost == 0:
        return 0
    if cost > limit.quota:
        return None
    left, behind = _to_come(limit, window, now)
    if previous * left < (limit.quota - current - cost + 1) * limit.period:
        return 0
    if current + cost <= limit.quota:
        return gone(limit, previous, limit.quota - current - cost) - (limit.period - left) + behind
    return left + max(0, gone(limit, current, limit.quota - cost)) + behind


def charge(limit: CompiledLimit, state: State, now: int, cost: int) -> State:
    """The state after an admitted cost."""
    window, current, previous = state
    return (window, current + cost, previous)


def measure(limit: CompiledLimit, state: State, now: int) -> tuple[int, int, int]:
    """(remaining, reset_after, next_after): what is left, when all of it is back, when one more is."""
    window, current, previous = state
    left, behind = _to_come(limit, window, now)
    remaining = max(0, limit.quota - current - previous * left // limit.period)  # without those `used`
    if current:
        reset_after = limit.period + left + behind
    elif previous:
        reset_after = left + behind
    else:
        return remaining, 0, 0
    return remaining, reset_after, admit(limit, state, now, remaining + 1) or reset_after


def convert(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    """The state of a limit whose numbers were `former`: what counts as used now stays used."""
    if limit.same_scale(former):
        return state
    now = now_us // former.unit_us
    state = roll(former, state, now)
    counted = used(former, state, now)
    if counted == 0:
        return None
    moment = max(now, state[0] * former.period) * former.unit_us // limit.unit_us
    return (moment // limit.period, min(counted, LARGEST // limit.period), 0)


def give_back(limit: CompiledLimit, state: State, now: int, cost: int, earliest: int) -> State | None:
    """The state without what is left of a charge made at `earliest` or later; None where nothing is left.

    A charge that may be of this window or of the last one is taken off the last, where it counts for less.
    """
    window, current, previous = state
    charged = earliest // limit.period
    if window == charged:
        current = max(0, current - cost)
    elif window == charged + 1:
        previous = max(0, previous - cost)
    return (window, current, previous) if current or previous else None


def mark(limit: CompiledLimit, state: State, now: int) -> tuple[int, int]:
    """What a hold remembers right after its charge: the window that counts it."""
    return state[0], 0


def settle(
    limit: CompiledLimit, state: State, now: int, marked: tuple[int, int], change: int, refunded: int
) -> tuple[State, int]:
    """(the state, what was given back) after a hold's charge has changed: in its window, where that is now."""
    window, current, previous = state
    before = current + previous
    if window == marked[0]:
        current = max(0, current + change)
    elif window == marked[0] + 1:
        previous = max(0, previous + change)
    return (window, current, previous), max(0, before - current - previous)


def fits(limit: CompiledLimit, state: State) -> bool:
    """Whether exact arithmetic holds this state, after a debt was charged."""
    return max(state[1:]) * limit.period <= LARGEST


def used(limit: CompiledLimit, state: State, now: int) -> int:
    """How many units count: this window's, and the share of the last one's, in whole units."""
    window, current, previous = state
    left, _ = _to_come(limit, window, now)
    return current + previous * left // limit.period


def gone(limit: CompiledLimit, count: int, most: int) -> int:
    """How far into a window at most `most` of the `count` units of the window before it still count."""
    return limit.period - ((most + 1) * limit.period - 1) // count


def _to_come(limit: CompiledLimit, window: int, now: int) -> tuple[int, int]:
    """(how much of the window is still to come, how far the clock is behind its start)."""
    start = window * limit.period
    if now < start:
        return limit.period, start - now
    return start + limit.period - now, 0
