"""Settles the holds of a gate: its ids say what a hold is made of, and amounts are given as costs are."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from typing import Any

from headgate.costs import Cost
from headgate.holding import Extension, Settlement, check_lease
from headgate.policy.held_groups import NOTHING_HELD, read_held


class GateHolds:
    """What a reservation of a gate settles by, in both colours: what a store that waits for I/O gives is awaited.

    `bound` are any limits on the gate's store, `known` the units that amounts may name.
    """

    __slots__ = ("_bound", "_known")

    def __init__(self, bound: Any, known: Collection[str]) -> None:
        self._bound = bound
        self._known = known

    def commit(self, id: str, actual: Cost | None = None) -> Settlement | Awaitable[Settlement]:
        """Settle with what counts; see `Gate.commit`."""
        whole, groups = read_held(id)
        actuals = groups.actuals(actual, self._known)
        if whole == NOTHING_HELD:
            return Settlement("settled", (), ())
        settlement: Settlement | Awaitable[Settlement] = self._bound.commit(whole, actuals)
        return settlement

    def extend(self, id: str, lease_us: int, more: Sequence[Cost]) -> Extension | Awaitable[Extension]:
        """Extend a lease; see `Gate.extend`."""
        whole, groups = read_held(id)
        (amount,) = more
        amounts = groups.more(amount, self._known)
        if whole == NOTHING_HELD:
            check_lease(lease_us)
            return Extension("extended", (), None)
        extension: Extension | Awaitable[Extension] = self._bound.extend(whole, lease_us, amounts)
        return extension
