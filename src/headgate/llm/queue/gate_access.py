"""A worker's access to a gate: how it reserves for a job, and which limits of the decision other jobs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headgate.decision import Decision, NamedLimit
from headgate.llm.call import AsyncCall
from headgate.llm.entry import Caller
from headgate.llm.inputs import InputCount
from headgate.llm.model_table import own_name


class HeldCall(Protocol):
    """What a gate holds for a job; `bool(call)` is whether it was admitted. Only the first settlement counts."""

    settled: bool
    """Whether it was settled here. Also set where another worker is to settle it."""

    @property
    def decision(self) -> Decision: ...

    def __bool__(self) -> bool: ...

    async def settle(self, answer: Any) -> Any:
        """Settle by the usage in an answer."""
        ...

    async def settle_failed(self) -> Any:
        """Settle a call that the provider refused: everything but the request is given back."""
        ...

    async def settle_unknown(self) -> Any:
        """Settle a call whose outcome is unknown: what was held stays charged."""
        ...

    async def cancel(self) -> Any:
        """Give everything back: the call was never sent."""
        ...

    async def __aenter__(self) -> Any:
        """Extend the lease of the call until the block ends."""
        ...

    async def __aexit__(self, *_: Any) -> Any: ...


async def has_lapsed(call: HeldCall) -> bool:
    """Whether a call that was held before for a job has lost its place in flight, as its lease is over."""
    if not isinstance(call, AsyncCall) or not (call and call.repeated and call.in_flight):
        return False
    return (await call.extend()).outcome == "lapsed"


class QueueGate(Protocol):
    """The gate that a worker reserves capacity from, such as an `AsyncLlmGate`."""

    async def reserve(
        self, *, model: str, key: str, user: str, team: str, organisation: str, tier: str,
        body: Mapping[str, Any] | None,
        input_tokens: InputCount | None, dialect: str, id: str | None,
    ) -> HeldCall:  # fmt: skip
        """Hold what a call needs, or report when that is possible; an id that was held before is not charged again.

        `input_tokens` is the count of the body's tokens; None where the gate is to count them.
        """
        ...

    def held_before(
        self, *, model: str, key: str, user: str, team: str, organisation: str, tier: str,
        body: Mapping[str, Any] | None, dialect: str, id: str,
    ) -> HeldCall:  # fmt: skip
        """Return what was held under this id before, by whatever estimate, so that it can be settled.

        The store is not queried.
        """
        ...


ScopeOf = Callable[[NamedLimit, Caller, str], str]
"""Names what a limit counts for a caller and a model: equal for all jobs that share it, "" where it is unknown."""


def scopes_by_rules(gate: Any) -> ScopeOf:
    """Return a `ScopeOf` by the rules of the gate's policy: a scope is what the limit's rule counts `by`.

    It is unknown ("") where a rule counts by an identity that a job does not have.
    """
    rules = {rule.name: rule.by for rule in getattr(getattr(gate, "policy", None), "rules", ())}

    def scope_of(limit: NamedLimit, caller: Caller, model: str) -> str:
        by = rules.get(limit.rule)
        values = {**caller._asdict(), "model": own_name(model)}
        if by is None or not set(by) <= set(values):
            return ""
        return "|".join([limit.scope, *(values[name] for name in by)])

    return scope_of


def never_reason(decision: Decision) -> tuple[str, str]:
    """Return the name of the limit that can never admit a job, and the error message for that."""
    binding = decision.binding
    if binding is None:
        return "", "it can never be admitted"
    return binding.name, f"it can never be admitted: the limit {binding.name} admits less at one time"
