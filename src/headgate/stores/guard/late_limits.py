"""Limits that a store could not bind when they were asked for: bound as soon as it can.

A zone knows so many limits. Where its list is full of others, or a stopped process holds it, a request is decided
by what the rule says for a store that fails, and the next one asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit
from headgate.errors import StoreError
from headgate.keys import Key
from headgate.operation import Operation, Receipt
from headgate.stores.protocol import Store


def bound_or_late(store: Store, limits: Sequence[NamedLimit], clock: Clock | None) -> Any:
    """The limits, bound; or what binds them when they are asked. It has the methods that a policy needs."""
    try:
        return store.bind(limits, clock=clock)
    except StoreError:
        return _LateLimits(store, limits, clock)


class _LateLimits:
    """Limits that are bound when they are asked: each call raises StoreError until that is possible."""

    def __init__(self, store: Store, limits: Sequence[NamedLimit], clock: Clock | None) -> None:
        self._store, self._limits, self._clock = store, limits, clock
        self._bound: Any = None

    def hit(self, key: Key, cost: int = 1) -> Decision:
        decision: Decision = self._now().hit(key, cost)
        return decision

    def decide(self, operation: Operation, /) -> Decision:
        decision: Decision = self._now().decide(operation)
        return decision

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        self._now().give_back(receipt, ago_us)

    def _now(self) -> Any:
        if self._bound is None:
            self._bound = self._store.bind(self._limits, clock=self._clock)
        return self._bound
