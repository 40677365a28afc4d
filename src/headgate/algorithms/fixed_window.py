"""Fixed window, aligned to the Unix epoch: a counter that restarts with every window.

State is (window, count), or None for a key never seen. `window` is the index of the window that is
counted. Times are integers of the limit's unit. Pure. See docs/algorithms.md#fixed-window.
"""

from __future__ import annotations

from headgate.units import LARGEST, CompiledLimit

State = tuple[int, int]


def roll(limit: CompiledLimit, state: State | None, now: int) -> State:
    """The state as it stands at `now`. A clock behind the window stays in it: it never admits more."""
    index = now // limit.period
    if state is None:
        return (index, 0)
    window, count = state
    if index > window:
        return (index, 0)
    if window - index > 2:  # no clock steps back that far: the state is from a clock once far ahead
        return (index, count)
    return state


def admit(limit: CompiledLimit, state: State, now: int, cost: int) -> int | None:
    """How long this cost must wait: 0 to pass now, None for never."""
    window, count = state
    if cost == 0 or count + cost <= limit.quota:
        return 0
    if cost > limit.quota:
        return None
    return (window + 1) * limit.period - now


def charge(limit: CompiledLimit, state: State, now: int, cost: int) -> State:
    """The state after an admitted cost."""
    window, count = state
    return (window, count + cost)


def measure(limit: CompiledLimit, state: State, now: int) -> tuple[int, int, int]:
    """(remaining, reset_after, next_after): what is left, when all of it is back, when one more is."""
    window, count = state
    reset_after = (window + 1) * limit.period - now if count else 0
    remaining = max(0, limit.quota - count)
    return remaining, reset_after, reset_after


def convert(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    """The state of a limit whose numbers were `former`: what was used in a live window stays used."""
    if limit.same_scale(former):
        return state
    window, count = roll(former, state, now_us // former.unit_us)
    if count == 0:
        return None
    moment_us = max(now_us, window * former.period * former.unit_us)
    return (moment_us // limit.unit_us // limit.period, min(count, LARGEST))


def give_back(limit: CompiledLimit, state: State, now: int, cost: int, earliest: int) -> State | None:
    """The state without what is left of a charge made at `earliest` or later; None where nothing is left."""
    window, count = state
    if window == earliest // limit.period:
        count = max(0, count - cost)
    return (window, count) if count else None


def mark(limit: CompiledLimit, state: State, now: int) -> tuple[int, int]:
    """What a hold remembers right after its charge: the window that counts it."""
    return state[0], 0


def settle(
    limit: CompiledLimit, state: State, now: int, marked: tuple[int, int], change: int, refunded: int
) -> tuple[State, int]:
    """(the state, what was given back) after a hold's charge has changed: in its window, if that is still counted."""
    window, count = state
    if window != marked[0]:
        return state, 0
    after = max(0, count + change)
    return (window, after), max(0, count - after)


def fits(limit: CompiledLimit, state: State) -> bool:
    """Whether exact arithmetic holds this state, after a debt was charged."""
    return state[1] <= LARGEST
