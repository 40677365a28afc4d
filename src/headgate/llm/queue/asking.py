"""Asking a gate for a job: what it is given, and which limits of its answer jobs of others share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headgate.decision import Decision, NamedLimit
from headgate.llm.call import AsyncCall
from headgate.llm.entry import Caller
from headgate.llm.inputs import InputCount
from headgate.llm.model_table import own_name


class HeldCall(Protocol):
    """What a gate holds for a job; `bool(call)` is whether it does. The first settling counts."""

    settled: bool
    """Whether it was settled here; where it is to be settled by others, too."""

    @property
    def decision(self) -> Decision: ...

    def __bool__(self) -> bool: ...

    async def settle(self, answer: Any) -> Any:
        """By the usage that an answer tells."""
        ...

    async def settle_failed(self) -> Any:
        """The provider refused: all but the request is given back."""
        ...

    async def settle_unknown(self) -> Any:
        """It stays as held."""
        ...

    async def cancel(self) -> Any:
        """It was never sent."""
        ...

    async def __aenter__(self) -> Any:
        """Extend its lease until the block ends."""
        ...

    async def __aexit__(self, *_: Any) -> Any: ...


async def has_lapsed(call: HeldCall) -> bool:
    """Whether a call was held before for a job, and its place in flight is free since: its lease is over."""
    if not isinstance(call, AsyncCall) or not (call and call.repeated and call.in_flight):
        return False
    return (await call.extend()).outcome == "lapsed"


class AskedGate(Protocol):
    """What a worker asks for capacity, as `AsyncLlmGate` is."""

    async def reserve(
        self, *, model: str, key: str, user: str, team: str, organisation: str, tier: str,
        body: Mapping[str, Any] | None,
        input_tokens: InputCount | None, dialect: str, id: str | None,
    ) -> HeldCall:  # fmt: skip
        """Hold what a call needs, or tell when that may be; an id that was held before is not charged again.

        `input_tokens` were counted of the body before; None where the gate is to count them.
        """
        ...

    def held_before(
        self, *, model: str, key: str, user: str, team: str, organisation: str, tier: str,
        body: Mapping[str, Any] | None, dialect: str, id: str,
    ) -> HeldCall:  # fmt: skip
        """What was held under this id before, by whatever estimate, to be settled; nothing is asked."""
        ...


ScopeOf = Callable[[NamedLimit, Caller, str], str]
"""Names what a limit counts for a caller and a model: the same for all that share it, "" where that is unknown."""


def scopes_by_rules(gate: Any) -> ScopeOf:
    """By the rules of the gate's policy: what a rule counts `by`, of those identities that a job has."""
    rules = {rule.name: rule.by for rule in getattr(getattr(gate, "policy", None), "rules", ())}

    def scope_of(limit: NamedLimit, caller: Caller, model: str) -> str:
        by = rules.get(limit.rule)
        values = {**caller._asdict(), "model": own_name(model)}
        if by is None or not set(by) <= set(values):
            return ""
        return "|".join([limit.scope, *(values[name] for name in by)])

    return scope_of


def never_reason(decision: Decision) -> tuple[str, str]:
    """The limit that can never admit a job, and the same in words."""
    binding = decision.binding
    if binding is None:
        return "", "it can never be admitted"
    return binding.name, f"it can never be admitted: the limit {binding.name} admits less at one time"
