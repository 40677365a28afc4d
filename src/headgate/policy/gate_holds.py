"""Settles the holds of a gate: a gate's id contains the groups of the hold, and amounts are given as costs are."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from itertools import islice
from typing import Any

from headgate.costs import Cost
from headgate.holding import Extension, Settlement, check_lease
from headgate.policy.held_groups import NOTHING_HELD, read_held
from headgate.policy.rule_costs import GroupAmounts
from headgate.waiting.arrivals import ArrivalLines, LineName

_MOST_HOLDS = 100_000
_FORGOTTEN_AT_ONCE = 100


class HoldLines:
    """The lines in which requests wait for the places that holds of one gate occupy, by the holds' ids in the store.

    True where any hold is recorded. Of more than 100,000 holds the oldest are forgotten: callers that wait for their
    places try again when their own time ends.
    """

    def __init__(self, lines: ArrivalLines) -> None:
        self._lines = lines
        self._names: dict[str, tuple[LineName, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, store_id: str, names: tuple[LineName, ...]) -> None:
        """Record a new hold, and the lines for the places that it occupies."""
        self._names[store_id] = names
        if len(self._names) > _MOST_HOLDS:
            for oldest in list(islice(self._names, _FORGOTTEN_AT_ONCE)):
                self._names.pop(oldest, None)

    def settled(self, store_id: str) -> None:
        """Forget a settled hold, and wake the first request of each line for its places."""
        names = self._names.pop(store_id, None)
        if names is not None:
            self._lines.call(names)


class GateHolds:
    """Commits and extends holds of a gate, in both colours: where the store waits for I/O, results are awaitable.

    `bound` are any limits on the gate's store, `known` the units that amounts may name, `lines` the lines whose first
    request is woken when places are free.
    """

    __slots__ = ("_bound", "_known", "_lines")

    def __init__(self, bound: Any, known: Collection[str], lines: HoldLines) -> None:
        self._bound = bound
        self._known = known
        self._lines = lines

    def commit(self, id: str, actual: Cost | None = None) -> Settlement | Awaitable[Settlement]:
        """Settle a hold at its actual amounts; see `Gate.commit`."""
        actuals: Any
        if isinstance(actual, GroupAmounts):
            store_id, actuals = id.partition(".")[0], actual
        else:
            store_id, groups = read_held(id)
            actuals = groups.actuals(actual, self._known)
        if store_id == NOTHING_HELD:
            return Settlement("settled", (), ())
        settlement: Settlement | Awaitable[Settlement] = self._bound.commit(store_id, actuals)
        if self._lines:
            if not isinstance(settlement, Settlement):
                return self._settled(store_id, settlement)
            self._lines.settled(store_id)
        return settlement

    async def _settled(self, store_id: str, settling: Awaitable[Settlement]) -> Settlement:
        settlement = await settling
        self._lines.settled(store_id)
        return settlement

    def extend(self, id: str, lease_us: int, more: Sequence[Cost]) -> Extension | Awaitable[Extension]:
        """Extend a lease; see `Gate.extend`."""
        (amount,) = more
        amounts: Any
        if isinstance(amount, GroupAmounts):
            store_id, amounts = id.partition(".")[0], amount
        else:
            store_id, groups = read_held(id)
            amounts = groups.more(amount, self._known)
        if store_id == NOTHING_HELD:
            check_lease(lease_us)
            return Extension("extended", (), None)
        extension: Extension | Awaitable[Extension] = self._bound.extend(store_id, lease_us, amounts)
        return extension
