"""What a store is asked to decide, and what is needed to give it back.

Every store's bound limits take an `Operation` and answer with a Decision; `Receipt.of` both is what `give_back`
takes. What a store is to know of a request besides is a new field here, and no new argument there.

An `Operation` is made for many requests, so where the native core is at hand its class is native; the class here has
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

    Without `commit` nothing is charged. It is decided at `now_us`, or at the moment of the limits' clock. A request
    that a queue would delay for longer than `max_delay_us` is refused instead.
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
        """The same for other keys, a tuple or a list; natively it is made faster than anew."""
        return self._replace(keys=tuple(keys))

    def with_key(self, key: Key) -> Operation:
        """The same with one key for all groups."""
        return self._replace(keys=(key,) * len(self.costs))


class Receipt(NamedTuple):
    """What a decision charged, and what decided: all that is needed to give it back.

    `costs` may be a part of what was charged. `degraded` is the decision's own: what was decided in place of the
    store is given back there. `charged` tells of each limit whether it was charged, None for all: a shadow limit that
    did not admit was not.
    """

    keys: tuple[Key, ...]
    costs: tuple[int, ...]
    degraded: str = ""
    charged: Sequence[bool] | None = None

    @classmethod
    def of(cls, operation: Operation, decision: Decision) -> Receipt:
        """The receipt of an operation that was decided and allowed; nothing of it is made before it is needed."""
        return cls(operation.keys, operation.costs, decision.degraded, _charged_by(decision))


def _charged_by(decision: Decision) -> list[bool] | None:
    """Which of its limits a decision charged; None for all, as it is without shadows."""
    if not any(definition.shadow for definition in decision.definitions):
        return None
    return [reading.allowed for reading in decision.limits]


if not TYPE_CHECKING and core.native is not None:
    Operation = core.native.Operation
