"""Token bucket in steps: whole refills at the end of full periods, counted from the first charge of a full bucket.

State is (tokens, stepped), or None for a key never seen, which is a full bucket. `stepped` is the moment of the last
refill, or of the charge that began the count; `tokens` may be below zero where a debt was charged. Times are integers
of the limit's unit. Pure. See docs/algorithms.md#token-bucket-in-steps.
"""

from __future__ import annotations

from headgate.algorithms.integers import ceil_div
from headgate.units import LARGEST, CompiledLimit

State = tuple[int, int]


def roll(limit: CompiledLimit, state: State | None, now: int) -> State:
    """The state as it stands at `now`. While the clock is behind, nothing flows in."""
    full = limit.quota
    if state is None:
        return (full, now)
    tokens, stepped = state
    if tokens >= full:
        return (full, now)
    if now >= stepped + limit.period:
        steps = (now - stepped) // limit.period
        tokens += limit.refill * steps
        if tokens >= full:
            return (full, now)
        return (tokens, stepped + limit.period * steps)
    if stepped - now > _horizon(limit):  # no clock steps back that far: the state is from a clock once far ahead
        return (tokens, now)
    return state


def admit(limit: CompiledLimit, state: State, now: int, cost: int) -> int | None:
    """How long this cost must wait: 0 to pass now, None for never."""
    tokens, stepped = state
    if cost > limit.quota:
        return None
    missing = cost - tokens
    if missing <= 0:
        return 0
    return stepped + ceil_div(missing, limit.refill) * limit.period - now


def charge(limit: CompiledLimit, state: State, now: int, cost: int) -> State:
    """The state after an admitted cost."""
    tokens, stepped = state
    return (tokens - cost, stepped)


def measure(limit: CompiledLimit, state: State, now: int) -> tuple[int, int, int]:
    """(remaining, reset_after, next_after): what is left, when all of it is back, when one more is."""
    tokens, stepped = state
    missing = limit.quota - tokens
    if missing == 0:
        return limit.quota, 0, 0
    reset_after = stepped + ceil_div(missing, limit.refill) * limit.period - now
    next_after = stepped + limit.period - now
    return tokens, reset_after, next_after


def convert(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    """The state of a limit whose numbers were `former`: the tokens left stay, up to the new capacity."""
    tokens, stepped = roll(former, state, now_us // former.unit_us)
    if tokens == former.quota:
        return None
    if limit.same_scale(former):
        return state
    return (max(-limit.quota, min(tokens, limit.quota)), ceil_div(stepped * former.unit_us, limit.unit_us))


def give_back(limit: CompiledLimit, state: State, now: int, cost: int, earliest: int) -> State | None:
    """The state without what is left of a charge made at `earliest` or later; None where nothing is left.

    All steps since `earliest` may have given units of the charge back. `stepped` counts as one of them even where
    it is the beginning of the count, which a state does not record.
    """
    tokens, stepped = roll(limit, state, now)
    steps = ceil_div(max(0, stepped - earliest), limit.period)
    tokens = min(limit.quota, tokens + max(0, cost - limit.refill * steps))
    return (tokens, stepped) if tokens < limit.quota else None


def mark(limit: CompiledLimit, state: State, now: int) -> tuple[int, int]:
    """What a hold remembers right after its charge: the moment of the last refill, and what was missing then."""
    tokens, stepped = state
    return stepped, limit.quota - tokens


def settle(
    limit: CompiledLimit, state: State, now: int, marked: tuple[int, int], change: int, refunded: int
) -> tuple[State, int]:
    """(the state, what was given back) after a hold's charge has changed, in tokens.

    Missing tokens are charged now. Of unused ones, at most as many are given back as cannot have flowed back since the
    hold: what was missing then, less what steps since have brought, and less what was given back (`refunded`).
    """
    tokens, stepped = state
    if change >= 0:
        return (tokens - change, stepped), 0
    moment, missing = marked
    flowed = limit.refill * ceil_div(max(0, stepped - moment), limit.period)
    left = missing - flowed - refunded
    given = max(0, min(-change, left, limit.quota - tokens))
    return (tokens + given, stepped), given


def fits(limit: CompiledLimit, state: State) -> bool:
    """Whether exact arithmetic holds this state, after a debt was charged."""
    return state[0] >= -(LARGEST // limit.period)


def _horizon(limit: CompiledLimit) -> int:
    """How far a clock may fall behind a state before the state is held to be wrong."""
    return ceil_div(limit.quota, limit.refill) * limit.period
