"""Repeated requests for a hold of a Python table: whether they are for the same hold, and its first answer.

The limits may be in another order, as after a rewrite of the policy: they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.decision import NamedLimit, Reading
from headgate.errors import ConflictingId
from headgate.stores.python_holds import HoldRecord
from headgate.stores.python_table import StateKey


def check_same(
    record: HoldRecord,
    limits: Sequence[NamedLimit],
    names: Sequence[StateKey],
    costs: tuple[int, ...],
    *,
    at_once: bool,
) -> None:
    """Raise ConflictingId where a request for a hold has the id of another one."""
    if record.at_once != at_once:
        kinds = ("a hold", "a hit")
        raise ConflictingId(f"this id is that of {kinds[record.at_once]}, and is now given to {kinds[at_once]}")
    if record.costs != costs:
        raise ConflictingId(
            f"this id was given with cost {_costs_text(record.costs)}, and is now given with {_costs_text(costs)}"
        )
    if {limit.name for limit in record.limits} != set(names):
        scopes = {limit.definition.scope for limit in record.limits}
        other = "limits" if scopes != {limit.scope for limit in limits} else "keys"
        raise ConflictingId(f"this id was given with other {other}; what is new needs an id of its own")


def readings_again(record: HoldRecord, names: Sequence[StateKey]) -> tuple[Reading, ...]:
    """The readings of the first answer, in the order of these limits, which are all of the hold's."""
    readings = {limit.name: reading for limit, reading in zip(record.limits, record.readings, strict=True)}
    return tuple([readings[name] for name in names])


def _costs_text(costs: tuple[int, ...]) -> str:
    return str(costs[0] if len(costs) == 1 else costs)
