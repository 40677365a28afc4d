"""Places in flight: a number of units at one time, each held for the time of its lease.

State is (request, used, last): the leases of a key and the end of the requested one, the places in use, and when
the last of them is over, None where there is none. What a decision takes is in `used` and `last`; the store adds its
lease. A lease is over at its end. Times are microseconds. Pure. See docs/algorithms.md#places-in-flight.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.algorithms.leases import LeaseRequest
from headgate.units import CompiledLimit


class State(NamedTuple):
    request: LeaseRequest
    used: int
    last: int | None


_NO_REQUEST = LeaseRequest(None, None)


def roll(limit: CompiledLimit, state: LeaseRequest | None, now: int) -> State:
    """The state as it stands at `now`."""
    if state is None or state.leases is None:
        return State(state or _NO_REQUEST, 0, None)
    return State(state, state.leases.used(now), state.leases.last(now))


def admit(limit: CompiledLimit, state: State, now: int, cost: int) -> int | None:
    """How long this cost must wait at the most: 0 to pass now, None for never."""
    if cost == 0 or state.used + cost <= limit.quota:
        return 0
    if cost > limit.quota:
        return None
    return _freed(state, now, state.used + cost - limit.quota)


def charge(limit: CompiledLimit, state: State, now: int, cost: int) -> State:
    """The state after an admitted cost."""
    request, used, last = state
    until = request.until if cost else None
    if until is not None:
        last = until if last is None else max(last, until)
    return State(request, used + cost, last)


def measure(limit: CompiledLimit, state: State, now: int) -> tuple[int, int, int]:
    """(remaining, reset_after, next_after): what is free, when all of it is, when one more is."""
    remaining = max(0, limit.quota - state.used)
    if state.last is None:
        return remaining, 0, 0
    return remaining, state.last - now, _freed(state, now, max(1, state.used - limit.quota + 1))


def convert(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    """The state of a limit whose numbers were `former`: what is in flight remains in flight."""
    return state


def give_back(limit: CompiledLimit, state: State, now: int, cost: int, earliest: int) -> State | None:
    """The unchanged state: only settling frees places."""
    return state


def mark(limit: CompiledLimit, state: State, now: int) -> tuple[int, int]:
    """What a hold remembers: nothing, as the store keeps its lease."""
    return 0, 0


def settle(
    limit: CompiledLimit, state: State, now: int, marked: tuple[int, int], change: int, refunded: int
) -> tuple[State, int]:
    """The unchanged state: the store removes the lease."""
    return state, 0


def fits(limit: CompiledLimit, state: State) -> bool:
    """Whether exact arithmetic holds this state, after a debt was charged."""
    return True


def _freed(state: State, now: int, needed: int) -> int:
    (leases, _), _, last = state
    if leases is not None and needed <= leases.used(now):
        return leases.freed_at(now, needed) - now
    return 0 if last is None else last - now
