"""Token bucket with greedy refill, without any rounding.

State is (units, updated), or None for a key never seen, which is a full bucket. One token is
`limit.period` scaled units, of which `limit.refill` flow in per unit of time; `units` may be below
zero where a debt was charged. Times are integers of the limit's unit. Pure.
See docs/algorithms.md#token-bucket.
"""

from __future__ import annotations

from headgate.algorithms.integers import ceil_div
from headgate.units import LARGEST, CompiledLimit

State = tuple[int, int]


def roll(limit: CompiledLimit, state: State | None, now: int) -> State:
    """The state as it stands at `now`. While the clock is behind, nothing flows in."""
    full = limit.full
    if state is None:
        return (full, now)
    units, updated = state
    if units >= full:
        return (full, now)
    if now > updated:
        return (min(full, units + limit.refill * (now - updated)), now)
    if updated - now > _horizon(limit):  # no clock steps back that far: the state is from a clock once far ahead
        return (units, now)
    return state


def admit(limit: CompiledLimit, state: State, now: int, cost: int) -> int | None:
    """How long this cost must wait: 0 to pass now, None for never."""
    units, updated = state
    if cost > limit.quota:
        return None
    missing = cost * limit.period - units
    if missing <= 0:
        return 0
    return ceil_div(missing, limit.refill) + updated - now


def charge(limit: CompiledLimit, state: State, now: int, cost: int) -> State:
    """The state after an admitted cost."""
    units, updated = state
    return (units - cost * limit.period, updated)


def measure(limit: CompiledLimit, state: State, now: int) -> tuple[int, int, int]:
    """(remaining, reset_after, next_after): what is left, when all of it is back, when one more is."""
    units, updated = state
    missing = limit.full - units
    if missing == 0:
        return limit.quota, 0, 0
    behind = updated - now
    remaining = units // limit.period
    reset_after = ceil_div(missing, limit.refill) + behind
    next_after = ceil_div((remaining + 1) * limit.period - units, limit.refill) + behind
    return remaining, reset_after, next_after


def convert(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    """The state of a limit whose numbers were `former`: the tokens left stay, up to the new capacity."""
    units, updated = roll(former, state, now_us // former.unit_us)
    if units == former.full:
        return None
    if limit.same_scale(former):
        return state
    tokens = units * limit.period // former.period
    return (max(-limit.full, min(tokens, limit.full)), ceil_div(updated * former.unit_us, limit.unit_us))


def give_back(limit: CompiledLimit, state: State, now: int, cost: int, earliest: int) -> State | None:
    """The state without what is left of a charge made at `earliest` or later; None where nothing is left.

    The units of a charge flow back from its moment on at the soonest; where others were missing, those flow back first.
    """
    units, updated = state
    passed = max(now, updated) - earliest
    units = min(limit.full, units + max(0, cost * limit.period - limit.refill * passed))
    return (units, updated) if units < limit.full else None


def mark(limit: CompiledLimit, state: State, now: int) -> tuple[int, int]:
    """What a hold remembers right after its charge: the state's moment, and what was missing then."""
    units, updated = state
    return updated, limit.full - units


def settle(
    limit: CompiledLimit, state: State, now: int, marked: tuple[int, int], change: int, refunded: int
) -> tuple[State, int]:
    """(the state, what was given back) after a hold's charge has changed, in scaled units.

    Missing units are charged now. Of unused ones, at most as many are given back as cannot have flowed back since the
    hold: what was missing then, less what has flowed in since, and less what was given back (`refunded`).
    """
    units, updated = state
    if change >= 0:
        return (units - change * limit.period, updated), 0
    moment, missing = marked
    left = missing - limit.refill * (updated - moment) - refunded
    given = max(0, min(-change * limit.period, left, limit.full - units))
    return (units + given, updated), given


def fits(limit: CompiledLimit, state: State) -> bool:
    """Whether exact arithmetic holds this state, after a debt was charged."""
    return state[0] >= -LARGEST


def _horizon(limit: CompiledLimit) -> int:
    """How far a clock may fall behind a state before the state is held to be wrong."""
    return ceil_div(limit.full, limit.refill)
