"""Limits bound to a Python table with holds, and to a clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.algorithms.table import ALGORITHMS
from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit
from headgate.holding import (
    Amounts,
    Extension,
    Hold,
    Reserved,
    Settlement,
    amounts_of,
    check_amount,
    check_lease,
    check_remember,
    new_digest,
    read_id,
    remembered_us,
    whole_id,
    write_id,
)
from headgate.keys import Key, check_cost, check_now, encode_key
from headgate.limits import never_ends
from headgate.operation import Operation
from headgate.stores.python_holding import HoldingTable, HoldRequest
from headgate.stores.python_table import PythonBoundLimits, PythonDecisions


class PythonHoldingLimits(PythonBoundLimits):
    """See `headgate.stores.protocol.BoundLimits`."""

    def __init__(self, table: HoldingTable, limits: tuple[NamedLimit, ...], clock: Clock | None = None) -> None:
        super().__init__(table, limits, clock)
        self._holding = table
        in_flight = [limit for limit in limits if ALGORITHMS[limit.limit.algorithm].in_flight]
        self._in_flight = in_flight[0] if in_flight else None
        self._remember_us = remembered_us(limits, 0)

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        self._check_rates_only()
        return super().hit_many(keys, costs)

    def decide(self, operation: Operation, /) -> Decision:
        if operation.commit:
            self._check_rates_only()
        return super().decide(operation)

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        keys, costs, now_us = operation.keys, operation.costs, operation.now_us
        if len(keys) != self._groups or len(costs) != self._groups:
            raise ValueError(f"these limits take {self._groups} keys and costs")
        if not operation.commit:
            raise ValueError("what is held is charged: the operation has to commit")
        if hold.at_once:
            self._check_rates_only()
        texts = tuple([encode_key(key) for key in keys])
        checked = tuple([check_cost(cost) for cost in costs])
        lease_us = 0 if hold.at_once else check_lease(hold.lease_us)
        remember_us = max(self._remember_us, check_remember(hold.remember_us))
        if hold.name is None:
            digest = new_digest()
            id_text = write_id(digest, 0)
        else:
            id_text = whole_id(texts[0] if texts else "", hold.name, 0)
            digest, _ = read_id(id_text)
        moment = check_now(self._now_us() if now_us is None else now_us)
        decision, repeated = self._holding.reserve(
            self._limits,
            self._names(texts),
            checked,
            HoldRequest(digest, lease_us, remember_us, hold.at_once),
            moment,
            operation.max_delay_us,
        )
        return Reserved(decision, id_text, repeated)

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        digest, _ = read_id(whole_id)
        return self._holding.commit(self._limits, digest, amounts_of(actuals), self._moment_us(now_us))

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        digest, _ = read_id(whole_id)
        amounts = [check_amount(amount) for amount in more]
        return self._holding.extend(self._limits, digest, check_lease(lease_us), amounts, self._moment_us(now_us))

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        return whole_id(encode_key(key), name, 0)

    def _moment_us(self, now_us: int | None) -> int:
        return check_now(self._now_us() if now_us is None else now_us)

    def _check_rates_only(self) -> None:
        if self._in_flight is not None:
            raise never_ends(self._in_flight.limit)
