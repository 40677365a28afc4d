"""Calendar window: a counter that restarts where a day, week, month or year of a time zone begins.

State is (start, end, count), or None for a key never seen: it has the borders of the counted window, so its meaning
depends on no time zone. Times are microseconds, which are the unit of these limits. Pure.
See docs/algorithms.md#calendar-window.
"""

from __future__ import annotations

from headgate.units import LARGEST, CompiledLimit

State = tuple[int, int, int]


def roll(limit: CompiledLimit, state: State | None, now: int) -> State:
    """The state as it stands at `now`. A clock behind the window stays in it: it never admits more."""
    if state is None:
        return (*_window(limit, now), 0)
    start, end, count = state
    if now >= end:
        return (*_window(limit, now), 0)
    if now < start and start > _latest(limit, now):  # no clock steps back that far: it was once far ahead
        return (*_window(limit, now), count)
    return state


def admit(limit: CompiledLimit, state: State, now: int, cost: int) -> int | None:
    """How long this cost must wait: 0 to pass now, None for never."""
    _, end, count = state
    if cost == 0 or count + cost <= limit.quota:
        return 0
    if cost > limit.quota:
        return None
    return end - now


def charge(limit: CompiledLimit, state: State, now: int, cost: int) -> State:
    """The state after an admitted cost."""
    start, end, count = state
    return (start, end, count + cost)


def measure(limit: CompiledLimit, state: State, now: int) -> tuple[int, int, int]:
    """(remaining, reset_after, next_after): what is left, when all of it is back, when one more is."""
    _, end, count = state
    reset_after = end - now if count else 0
    remaining = max(0, limit.quota - count)
    return remaining, reset_after, reset_after


def convert(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    """The state of a limit whose numbers or calendar were `former`: what was used in a live window stays used."""
    if limit.same_scale(former):
        return state
    start, end, count = state
    if count == 0 or now_us >= end:
        return None
    start, end = _window(limit, max(now_us, start))
    if start > _latest(limit, now_us):
        start, end = _window(limit, now_us)
    return (start, end, min(count, LARGEST))


def give_back(limit: CompiledLimit, state: State, now: int, cost: int, earliest: int) -> State | None:
    """The state without what is left of a charge made at `earliest` or later; None where nothing is left."""
    start, end, count = state
    if start <= earliest < end:
        count = max(0, count - cost)
    return (start, end, count) if count else None


def mark(limit: CompiledLimit, state: State, now: int) -> tuple[int, int]:
    """What a hold remembers right after its charge: the window that counts it."""
    return state[0], 0


def settle(
    limit: CompiledLimit, state: State, now: int, marked: tuple[int, int], change: int, refunded: int
) -> tuple[State, int]:
    """(the state, what was given back) after a hold's charge has changed: in its window, if that is still counted."""
    start, end, count = state
    if start != marked[0]:
        return state, 0
    after = max(0, count + change)
    return (start, end, after), max(0, count - after)


def fits(limit: CompiledLimit, state: State) -> bool:
    """Whether exact arithmetic holds this state, after a debt was charged."""
    return state[2] <= LARGEST


def _window(limit: CompiledLimit, now: int) -> tuple[int, int]:
    """(start, end) of the window of a moment; an empty one, which counts nothing, where the calendar is unknown."""
    return (now, now) if limit.calendar is None else limit.calendar.window(now)


def _latest(limit: CompiledLimit, now: int) -> int:
    return LARGEST * 2 if limit.calendar is None else limit.calendar.latest(now)
