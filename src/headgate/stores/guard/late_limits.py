"""Limits that a store could not bind when they were asked for: bound as soon as it can.

A zone knows so many limits. Where its list is full of others, or a stopped process holds it, a request is decided
by what the rule says for a store that fails, and the next one asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.operation import Operation, Receipt


def bound_or_late(bind: Callable[[], Any]) -> Any:
    """The limits, bound; or what binds them when they are asked. It has the methods that a policy needs."""
    try:
        return bind()
    except StoreError:
        return _LateLimits(bind)


class _LateLimits:
    """Limits that are bound when they are asked: each call raises StoreError until that is possible."""

    def __init__(self, bind: Callable[[], Any]) -> None:
        self._bind = bind
        self._bound: Any = None

    def decide(self, operation: Operation, /) -> Decision:
        decision: Decision = self._now().decide(operation)
        return decision

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        self._now().give_back(receipt, ago_us)

    def _now(self) -> Any:
        if self._bound is None:
            self._bound = self._bind()
        return self._bound
