"""The operation that a store decides, and the receipt by which its charge is given back.

Every store's bound limits take an `Operation` and answer with a Decision; `give_back` takes `Receipt.of` both. Whatever
else a store needs to know of a request becomes a new field here, not a new argument there.

An `Operation` is made for many requests, so where the native core is available its class is native; the class here has
the same fields and is what type checkers see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headgate import core
from headgate.decision import Decision
from headgate.keys import Key


class _Fields(NamedTuple):
    keys: tuple[Key, ...]
    costs: tuple[int, ...]
    commit: bool
    now_us: int | None
    max_delay_us: int | None


class Operation(_Fields):
    """One request to limits that are bound to a store: a key and a cost for each of their groups.

    Without `commit` nothing is charged. The request is decided at `now_us`, None for the current moment of the limits'
    clock. A request that a queue would delay for longer than `max_delay_us` is refused instead.
    """

    __slots__ = ()

    def __new__(
        cls,
        keys: tuple[Key, ...],
        costs: tuple[int, ...],
        *,
        commit: bool = True,
        now_us: int | None = None,
        max_delay_us: int | None = None,
    ) -> Operation:
        return super().__new__(cls, keys, costs, commit, now_us, max_delay_us)

    def with_keys(self, keys: Sequence[Key]) -> Operation:
        """The same for other keys, a tuple or a list; the native class makes this copy faster than a new operation."""
        return self._replace(keys=tuple(keys))

    def with_key(self, key: Key) -> Operation:
        """The same with one key for all groups."""
        return self._replace(keys=(key,) * len(self.costs))


class Receipt(NamedTuple):
    """What a decision charged, and where it was decided: all that is needed to give the charge back.

    `costs` may be a part of the charge. `degraded` is the decision's own: a charge that was made in place of the store
    is given back there. `charged` states for each limit whether it was charged, None for all: a shadow limit that did
    not admit the request was not.
    """

    keys: tuple[Key, ...]
    costs: tuple[int, ...]
    degraded: str = ""
    charged: Sequence[bool] | None = None

    @classmethod
    def of(cls, operation: Operation, decision: Decision) -> Receipt:
        """The receipt of an operation that was decided and allowed; it is made only when it is needed."""
        return cls(operation.keys, operation.costs, decision.degraded, _charged_by(decision))


def _charged_by(decision: Decision) -> list[bool] | None:
    """Which of its limits a decision charged; None for all, as always without shadow limits."""
    if not any(definition.shadow for definition in decision.definitions):
        return None
    return [reading.allowed for reading in decision.limits]


if not TYPE_CHECKING and core.native is not None:
    Operation = core.native.Operation
