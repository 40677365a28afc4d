"""The sums of calls, in integers, so that those of entries, of months and of everything are exact."""

from __future__ import annotations

from collections.abc import Iterable
from operator import add, sub
from typing import NamedTuple, Self

from headgate.llm.books.records import Correction
from headgate.llm.entry import Entry
from headgate.llm.usage import Usage


class Sums(NamedTuple):
    """Counts of calls, tokens, and costs in billionths of a dollar. Differences of sums may be negative."""

    calls: int = 0
    """Admitted; `cancelled` and `failed` among them."""

    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    """A part of `input`."""

    cost: int = 0
    """Of settled calls."""

    unpriced: int = 0
    """Calls whose cost is not known, and which are therefore in neither `cost` nor `unsettled_cost`."""

    unsettled: int = 0
    """Calls that are held and not settled; what they hold is not in `input`, `output` and `cost`."""

    unsettled_input: int = 0
    unsettled_output: int = 0
    unsettled_cost: int = 0
    measured: int = 0
    """Calls whose exact usage is known, to be compared with what they held."""

    used_more: int = 0
    """Measured calls that used more tokens than they held."""

    used_less: int = 0
    corrected: int = 0
    """The number of corrections."""

    estimated: int = 0
    """Measured calls that were held by an estimate of their output."""

    covered: int = 0
    """Estimated calls with at most as much output as was estimated."""

    def plus(self, other: Self) -> Sums:
        return Sums(*map(add, self, other))

    def minus(self, other: Self) -> Sums:
        return Sums(*map(sub, self, other))


NOTHING = Sums()
REFUSED = Sums(refused=1)


def total(sums: Iterable[Sums]) -> Sums:
    """The total of several sums."""
    return Sums(*map(sum, zip(*sums, strict=True))) if (sums := list(sums)) else NOTHING


def of_hold(entry: Entry) -> Sums:
    """The sums of a call until it is settled."""
    return Sums(
        calls=1,
        unpriced=int(entry.held_cost is None),
        unsettled=1,
        unsettled_input=entry.held_input,
        unsettled_output=entry.held_output,
        unsettled_cost=entry.held_cost or 0,
    )


def of_settling(entry: Entry) -> Sums:
    """The sums of a settled call; where its usage is unknown, what it held counts."""
    usage = entry.usage
    is_void = entry.mode in ("cancelled", "failed")
    if usage is None:
        usage = Usage(0, 0) if is_void else Usage(entry.held_input, entry.held_output)
    measured = entry.mode == "exact" and entry.usage is not None
    estimated = measured and entry.estimate is not None
    more = usage.input + usage.output - entry.held_input - entry.held_output
    return Sums(
        calls=1,
        cancelled=int(entry.mode == "cancelled"),
        failed=int(entry.mode == "failed"),
        input=usage.input,
        output=usage.output,
        cache_read=usage.cache_read,
        cost=entry.cost or 0,
        unpriced=int(entry.cost is None and not is_void),
        measured=int(measured),
        used_more=int(measured and more > 0),
        used_less=int(measured and more < 0),
        estimated=int(estimated),
        covered=int(estimated and usage.output <= (entry.estimate or 0)),
    )


def of_correction(correction: Correction, before: Sums) -> Sums:
    """The sums of a call after a correction, from those `before`, which have no calls where the call was unknown.

    Amounts that were only held count as used from now on, unless the correction says otherwise.
    """
    entry = correction.entry
    usage, cost = entry.usage, entry.cost
    was_held = before.unsettled > 0
    return before._replace(
        calls=1,
        input=usage.input if usage is not None else before.input + before.unsettled_input,
        output=usage.output if usage is not None else before.output + before.unsettled_output,
        cache_read=usage.cache_read if usage is not None else before.cache_read,
        cost=cost if cost is not None else before.cost + before.unsettled_cost,
        unpriced=int(cost is None and (before.unpriced > 0 or not before.calls)),
        unsettled=0,
        unsettled_input=0,
        unsettled_output=0,
        unsettled_cost=0,
        measured=0 if was_held else before.measured,
        corrected=before.corrected + 1,
    )
