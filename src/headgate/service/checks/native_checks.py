"""Checks that the native core answers by itself, for a gate; those that only Python can answer are left to Python.

`rust/checks` gives the same responses in the same bytes; `tests/laws/test_native_checks.py` compares the two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headgate import core
from headgate.amounts import base_unit, is_money
from headgate.clock import Clock, SystemClock
from headgate.decision import NamedLimit
from headgate.http.fields.ratelimit import Form, form_of, policy_item_of
from headgate.policy.compiled import Policy, Rule
from headgate.policy.gate import AsyncGate, Gate

_LARGEST_WINDOW_US = 1 << 62
"""Python handles limits that would overflow the native writer's numbers."""


class LimitTexts(NamedTuple):
    """A limit, and the texts that responses about it are written from."""

    definition: NamedLimit
    form: Form
    text: str
    unit: str
    policy_item: str


def native_checks(gate: Gate | AsyncGate, tally: Any) -> Any:
    """The native checks of the policy in force on the store of a gate; a reload of the gate needs others.

    None on the Python core, with a store that the native core does not know, and for a policy with a function of
    Python. `tally`, a `CheckTally` of the native core, counts what is decided.
    """
    table = gate.store.native_table
    if core.native is None or table is None:
        return None
    policy = gate.policy
    return core.native.Checks.of(policy, _rules(policy), _money(policy), table, _given_clock(gate), tally)


def late_checks(gate: AsyncGate, queue: Any, tally: Any) -> Any:
    """`native_checks` on a store that waits for I/O: checks are in `queue`, a `CheckQueue`, until they are decided.

    None for a policy with a function of Python.
    """
    assert core.native is not None
    policy = gate.policy
    return core.native.LateChecks.of(policy, _rules(policy), _money(policy), gate.resolver, queue, tally)


def _rules(policy: Policy) -> list[tuple[bool, list[tuple[str, list[LimitTexts] | None]]]]:
    return [(_waits(rule, waits=policy.waits), _tiers(rule)) for rule in policy.rules]


def _money(policy: Policy) -> list[bool]:
    return [is_money(unit) for unit in policy.units]


def _waits(rule: Rule, *, waits: bool) -> bool:
    """Whether a single request under a rule may wait, or is refused because it would have to be held."""
    return bool(rule.wait_us) or (waits and rule.in_flight)


def _tiers(rule: Rule) -> list[tuple[str, list[LimitTexts] | None]]:
    return [(tier, _texts_of(limits)) for tier, limits in rule.limits.items()]


def _texts_of(limits: tuple[NamedLimit, ...]) -> list[LimitTexts] | None:
    if any(named.limit.window_us >= _LARGEST_WINDOW_US for named in limits):
        return None
    return [
        LimitTexts(named, form_of(named), str(named.limit), base_unit(named.limit.of), policy_item_of(named))
        for named in limits
    ]


def _given_clock(gate: Gate | AsyncGate) -> Clock | None:
    """The clock that was given to a gate; None where it is the store's own, which the native core reads by itself."""
    clock = gate.clock
    return None if clock is None or isinstance(clock, SystemClock) or clock is gate.store.clock else clock
