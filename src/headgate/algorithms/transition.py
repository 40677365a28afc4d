"""The common part of all algorithms: admit all checks, then charge all of them or none.

Stores keep states and call `decide`. Times in the arguments and results here are microseconds; the algorithms
compute in units of each limit. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.algorithms.table import ALGORITHMS, State, Transition
from headgate.decision import Reading
from headgate.units import LARGEST, CompiledLimit


class Step(NamedTuple):
    """One check. A `shadow` check is counted for itself and decides nothing."""

    limit: CompiledLimit
    state: State | None
    cost: int
    shadow: bool = False


class Part(NamedTuple):
    """What a hold charged at one moment, what it remembers of that, and the key's refunds until then."""

    limit: CompiledLimit
    cost: int
    marked: tuple[int, int]
    refunds: int


class Outcome(NamedTuple):
    """Whether all may pass, each limit's reading, the states to store (None: unchanged), and all as they stand.

    A state in `standing` is brought to the moment, with the charge.
    """

    allowed: bool
    readings: tuple[Reading, ...]
    states: tuple[State | None, ...]
    standing: tuple[State, ...] = ()


def decide(steps: Sequence[Step], now_us: int, *, commit: bool, max_delay_us: int | None = None) -> Outcome:
    """Decide several checks at one instant: all enforced ones are charged, or none.

    Without `commit` nothing is charged, and the readings of an admitted request are those after the charge. A request
    that a queue would delay beyond `max_delay_us` is refused until the queue is that short.
    """
    transitions = [transition_of(step.limit) for step in steps]
    rolled = [
        transition.roll(step.limit, step.state, _now(step, now_us))
        for step, transition in zip(steps, transitions, strict=True)
    ]
    delays = [_delay_us(step, state, now_us) for step, state in zip(steps, rolled, strict=True)]
    waits = [
        _wait_us(step, transition, state, now_us, delay, max_delay_us)
        for step, transition, state, delay in zip(steps, transitions, rolled, delays, strict=True)
    ]
    allowed = all(wait == 0 for step, wait in zip(steps, waits, strict=True) if not step.shadow)
    readings: list[Reading] = []
    states: list[State | None] = []
    standing: list[State] = []
    for step, transition, before, wait, delay in zip(steps, transitions, rolled, waits, delays, strict=True):
        charged = allowed and wait == 0
        after = transition.charge(step.limit, before, _now(step, now_us), step.cost) if charged else before
        readings.append(_reading(step, transition, after, now_us, wait, delay if charged else 0))
        states.append(after if charged and commit and step.cost else None)
        standing.append(after)
    return Outcome(allowed, tuple(readings), tuple(states), tuple(standing))


def transition_of(limit: CompiledLimit) -> Transition:
    """The functions of a limit's algorithm."""
    transition = ALGORITHMS[limit.algorithm].transition
    if transition is None:
        raise LookupError(f"{limit.algorithm} has no transition")
    return transition


def convert(limit: CompiledLimit, state: State, now_us: int, former: CompiledLimit) -> State | None:
    """The state of a limit whose numbers, or algorithm of one family, were `former`; None where nothing is left."""
    left: State | None
    if limit.algorithm == former.algorithm:
        left = transition_of(limit).convert(limit, state, now_us, former)
    else:
        left = ALGORITHMS[limit.algorithm].takes_over[former.algorithm](limit, state, now_us, former)
    return left


def give_back(
    limit: CompiledLimit, state: State, now_us: int, cost: int, earliest_us: int, former: CompiledLimit
) -> State | None:
    """What is left of a state in `former` numbers without a charge made at `earliest_us` or later.

    None where that is the same as none. A state stays in its numbers; where those count in another way than `limit`,
    it is unknown how much of a charge is left, and nothing is given back.
    """
    if cost == 0 or cost > former.quota or not counts_alike(limit, former):
        return state
    unit_us = former.unit_us
    left: State | None = transition_of(former).give_back(former, state, now_us // unit_us, cost, earliest_us // unit_us)
    return left


def mark(limit: CompiledLimit, standing: State, now_us: int) -> tuple[int, int]:
    """What a hold remembers of a limit right after its charge, see `settle`."""
    return transition_of(limit).mark(limit, standing, now_us // limit.unit_us)


def settle(
    limit: CompiledLimit, state: State | None, now_us: int, parts: Sequence[Part], change: int, refunds: int
) -> tuple[State, int]:
    """(the state as it stands, all refunds) after the charge of a hold has changed: reduced where `change` is below 0.

    Its `parts` were charged one after another: unused units are taken off the last ones first, missing ones are added
    to the last, as far as their numbers count like those of the state.
    """
    transition = transition_of(limit)
    now = now_us // limit.unit_us
    standing = transition.roll(limit, state, now)
    if change >= 0:
        alike = counts_alike(parts[-1].limit, limit)
        marked = parts[-1].marked if alike else transition.mark(limit, standing, now)
        return transition.settle(limit, standing, now, marked, change, 0)[0], refunds
    for part in reversed(parts):
        unused = min(-change, part.cost)
        change += unused
        if counts_alike(part.limit, limit):
            standing, refund = transition.settle(limit, standing, now, part.marked, -unused, refunds - part.refunds)
            refunds += refund
    return standing, refunds


def fits(limit: CompiledLimit, standing: State) -> bool:
    """Whether exact arithmetic holds this state, after a debt was charged."""
    return transition_of(limit).fits(limit, standing)


def to_present(limit: CompiledLimit, state: State, now_us: int) -> State | None:
    """A state from a clock that was once far ahead, moved to the present; None for any other state.

    A store writes the moved state at the first hit: it then counts from that moment; else a wait would never end.
    """
    now = now_us // limit.unit_us
    latest = _latest(limit, state)
    if latest <= now:
        return None
    rolled: State = transition_of(limit).roll(limit, state, now)
    return rolled if _latest(limit, rolled) < latest else None


def counts_alike(limit: CompiledLimit, former: CompiledLimit) -> bool:
    """Whether a charge under `limit` still counts in full in a state that is in the numbers of `former`.

    A bucket that became smaller has lost what did not fit into it.
    """
    if limit is former:
        return True
    return limit.same_scale(former) and (limit.refill == 0 or former.quota >= limit.quota)


def measure_us(limit: CompiledLimit, state: State, now_us: int) -> tuple[int, int]:
    """(remaining, reset_after_us) of a stored state; the latter is 0 when the state has become the same as none."""
    transition = transition_of(limit)
    now = now_us // limit.unit_us
    remaining, reset_after, _ = transition.measure(limit, transition.roll(limit, state, now), now)
    return remaining, _until_us(limit, reset_after, now_us)


def _latest(limit: CompiledLimit, state: State) -> int:
    latest = ALGORITHMS[limit.algorithm].latest
    return 0 if latest is None else latest(limit, state)


def _reading(
    step: Step, transition: Transition, state: State, now_us: int, wait_us: int | None, delay_us: int
) -> Reading:
    remaining, reset_after, next_after = transition.measure(step.limit, state, _now(step, now_us))
    return Reading(
        allowed=wait_us == 0,
        remaining=remaining,
        reset_after_us=_until_us(step.limit, reset_after, now_us),
        retry_after_us=wait_us,
        next_after_us=_until_us(step.limit, next_after, now_us),
        delay_us=delay_us,
    )


def _wait_us(
    step: Step, transition: Transition, state: State, now_us: int, delay_us: int, max_delay_us: int | None
) -> int | None:
    wait = transition.admit(step.limit, state, _now(step, now_us), step.cost)
    if wait is None:
        return None
    wait_us = _until_us(step.limit, wait, now_us)
    if step.cost and max_delay_us is not None:
        wait_us = max(wait_us, delay_us - max_delay_us)
    return wait_us


def _delay_us(step: Step, state: State, now_us: int) -> int:
    delay = ALGORITHMS[step.limit.algorithm].delay
    if delay is None or step.cost == 0:
        return 0
    return _until_us(step.limit, delay(step.limit, state, _now(step, now_us)), now_us)


def _now(step: Step, now_us: int) -> int:
    return now_us // step.limit.unit_us


def _until_us(limit: CompiledLimit, duration: int, now_us: int) -> int:
    """From `now_us` to the first microsecond that is `duration` units after now's unit; 0 stays 0.

    No clock reaches beyond LARGEST, so a longer time is reported as that: 142 years.
    """
    if duration == 0:
        return 0
    moment_us = (now_us // limit.unit_us + duration) * limit.unit_us
    return min(moment_us - now_us, LARGEST)
