"""Settles the holds of a gate: its ids say what a hold is made of, and amounts are given as costs are."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from itertools import islice
from typing import Any

from headgate.costs import Cost
from headgate.holding import Extension, Settlement, check_lease
from headgate.policy.held_groups import NOTHING_HELD, read_held
from headgate.policy.rule_costs import GroupAmounts
from headgate.waiting.arrivals import ArrivalLines, LineName

_MOST_KNOWN = 100_000
_FORGOTTEN_AT_ONCE = 100


class LinesOfHolds:
    """In which lines requests wait for the places that holds of one gate have, by the ids of these in the store.

    It is true where any are known. Of more than 100,000 the oldest are forgotten: callers that wait for their places
    ask at the end of their time.
    """

    def __init__(self, lines: ArrivalLines) -> None:
        self._lines = lines
        self._names: dict[str, tuple[LineName, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, whole_id: str, names: tuple[LineName, ...]) -> None:
        """Note a hold that was made."""
        self._names[whole_id] = names
        if len(self._names) > _MOST_KNOWN:
            for oldest in list(islice(self._names, _FORGOTTEN_AT_ONCE)):
                self._names.pop(oldest, None)

    def settled(self, whole_id: str) -> None:
        """Wake those that are first in line for the places of a hold."""
        names = self._names.pop(whole_id, None)
        if names is not None:
            self._lines.call(names)


class GateHolds:
    """What a reservation of a gate settles by, in both colours: what a store that waits for I/O gives is awaited.

    `bound` are any limits on the gate's store, `known` the units that amounts may name, `lines` those that are called
    when places are free.
    """

    __slots__ = ("_bound", "_known", "_lines")

    def __init__(self, bound: Any, known: Collection[str], lines: LinesOfHolds) -> None:
        self._bound = bound
        self._known = known
        self._lines = lines

    def commit(self, id: str, actual: Cost | None = None) -> Settlement | Awaitable[Settlement]:
        """Settle with what counts; see `Gate.commit`."""
        actuals: Any
        if isinstance(actual, GroupAmounts):
            whole, actuals = id.partition(".")[0], actual
        else:
            whole, groups = read_held(id)
            actuals = groups.actuals(actual, self._known)
        if whole == NOTHING_HELD:
            return Settlement("settled", (), ())
        settlement: Settlement | Awaitable[Settlement] = self._bound.commit(whole, actuals)
        if self._lines:
            if not isinstance(settlement, Settlement):
                return self._settled(whole, settlement)
            self._lines.settled(whole)
        return settlement

    async def _settled(self, whole: str, settling: Awaitable[Settlement]) -> Settlement:
        settlement = await settling
        self._lines.settled(whole)
        return settlement

    def extend(self, id: str, lease_us: int, more: Sequence[Cost]) -> Extension | Awaitable[Extension]:
        """Extend a lease; see `Gate.extend`."""
        (amount,) = more
        amounts: Any
        if isinstance(amount, GroupAmounts):
            whole, amounts = id.partition(".")[0], amount
        else:
            whole, groups = read_held(id)
            amounts = groups.more(amount, self._known)
        if whole == NOTHING_HELD:
            check_lease(lease_us)
            return Extension("extended", (), None)
        extension: Extension | Awaitable[Extension] = self._bound.extend(whole, lease_us, amounts)
        return extension
