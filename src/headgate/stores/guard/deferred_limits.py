"""Limits that a store could not bind at first: they are bound as soon as it can.

A zone has room for a bounded number of limits. Where its list is full of others, or a stopped process holds it, the
rule's choice for a failing store decides the request, and the next request tries to bind again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.holding import Amounts, Extension, Hold, Reserved, Settlement
from headgate.keys import Key
from headgate.operation import Operation, Receipt


def bind_or_defer(bind: Callable[[], Any]) -> Any:
    """The bound limits; or limits that are bound at their first use, with the methods that a policy needs."""
    try:
        return bind()
    except StoreError:
        return _DeferredLimits(bind)


class _DeferredLimits:
    """Limits that are bound when they are used: each call raises StoreError until that is possible."""

    def __init__(self, bind: Callable[[], Any]) -> None:
        self._bind = bind
        self._bound: Any = None

    def decide(self, operation: Operation, /) -> Decision:
        decision: Decision = self._resolve().decide(operation)
        return decision

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        self._resolve().give_back(receipt, ago_us)

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        reserved: Reserved = self._resolve().reserve(operation, hold)
        return reserved

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        settlement: Settlement = self._resolve().commit(whole_id, actuals, now_us=now_us)
        return settlement

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        extension: Extension = self._resolve().extend(whole_id, lease_us, more, now_us=now_us)
        return extension

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        whole_id: str = self._resolve().id_of(key, name)
        return whole_id

    def _resolve(self) -> Any:
        if self._bound is None:
            self._bound = self._bind()
        return self._bound
