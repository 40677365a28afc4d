"""Limits that a store could not bind when they were asked for: bound as soon as it can.

A zone knows so many limits. Where its list is full of others, or a stopped process holds it, a request is decided
by what the rule says for a store that fails, and the next one asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.holding import Amounts, Extension, Hold, Reserved, Settlement
from headgate.keys import Key
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

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        reserved: Reserved = self._now().reserve(operation, hold)
        return reserved

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        settlement: Settlement = self._now().commit(whole_id, actuals, now_us=now_us)
        return settlement

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        extension: Extension = self._now().extend(whole_id, lease_us, more, now_us=now_us)
        return extension

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        whole: str = self._now().id_of(key, name)
        return whole

    def _now(self) -> Any:
        if self._bound is None:
            self._bound = self._bind()
        return self._bound
