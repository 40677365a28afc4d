"""Soft limits: a call that passes is warned when a rule's limit is used up to the share that the rule says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.amounts import amount_text
from headgate.decision import Decision
from headgate.llm.entry import Caller


class SoftLimit(NamedTuple):
    """A limit that is nearly used up. `used` and `quota` count its unit, of money billionths."""

    limit: str
    rule: str
    percent: int
    used: int
    quota: int
    unit: str
    caller: Caller
    model: str
    reset_after_us: int

    def __str__(self) -> str:
        used, quota = (amount_text(number, self.unit) for number in (self.used, self.quota))
        return f"{self.limit}: {self.percent} % used, {used} of {quota}"

    @property
    def header(self) -> str:
        """The value of the header `headgate-warning`: `user.usd.day; used=83`."""
        return f"{self.limit}; used={self.percent}"


def reached(decision: Decision, warns: Mapping[str, int], caller: Caller, model: str) -> tuple[SoftLimit, ...]:
    """The soft limits that a decision has reached; `warns` are shares in percent by rule."""
    found = []
    for reading in decision.limits:
        definition = reading.definition
        warn = warns.get(definition.rule)
        quota = definition.limit.quota
        if warn is None or not quota or not definition.limit.is_rate:
            continue
        used, unit, reset_us = quota - reading.remaining, definition.limit.of, reading.reset_after_us
        percent = used * 100 // quota
        if percent >= warn:
            name = definition.name
            found.append(SoftLimit(name, definition.rule, percent, used, quota, unit, caller, model, reset_us))
    return tuple(found)
