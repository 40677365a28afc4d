"""The decisions while a store does not answer, by the configured choice of each limit.

`open` passes and counts nothing, `closed` refuses, `local` decides in this process by a share of the limit.
Of several limits the strictest choice decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

from headgate.clock import Clock
from headgate.decision import ON_STORE_ERROR, Decision, NamedLimit, OnStoreError, Reading, binding_of
from headgate.errors import ConfigError, without_credentials
from headgate.holding import Hold, Reserved, Standing, check_lease, check_name, check_remember
from headgate.keys import Key, check_cost, encode_key
from headgate.limits import check_hits
from headgate.operation import Operation, Receipt
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import BoundLimits, StatesAt, read_receipt

MAX_LOCAL_KEYS = 100_000
RETRY_AFTER_US = 1_000_000
"""The wait that a refusal without a store states: about when a probe tries the store again."""


class Fallback:
    """Decides limits without their store. `local` keeps the states of all `local` limits."""

    def __init__(
        self,
        definitions: Sequence[NamedLimit],
        choice: OnStoreError,
        share: Fraction,
        local: MemoryStore,
        clock: Clock | None,
    ) -> None:
        self.definitions = tuple(definitions)
        self.groups = max((definition.group + 1 for definition in definitions), default=0)
        self._choices = [definition.on_store_error or choice for definition in definitions]
        self._closed_groups = {
            definition.group
            for limit_choice, definition in zip(self._choices, self.definitions, strict=True)
            if limit_choice == "closed" and not definition.shadow
        }
        self._local = [number for number, limit_choice in enumerate(self._choices) if limit_choice == "local"]
        self.local_groups = sorted({self.definitions[number].group for number in self._local})
        """The groups whose limits this process decides, which are those of `bound`."""

        self._by_scope = {definition.scope: definition for definition in self.definitions}
        self.bound: BoundLimits = local.bind(
            [
                replace(
                    self.definitions[number],
                    limit=self.definitions[number].limit.scaled(share),
                    group=self.local_groups.index(self.definitions[number].group),
                )
                for number in self._local
            ],
            clock=clock,
        )

    def decide(self, operation: Operation) -> Decision:
        """Decide an operation; `degraded` of the decision is the choice that decided."""
        return self._decide(operation, self.bound.decide)

    def reserve(self, operation: Operation, hold: Hold) -> Reserved:
        """`decide`, and hold what is charged locally; the id is that of the local store, "" where nothing is held.

        Raises the errors that a store raises for what cannot be held.
        """
        self._check(operation, hold)
        reserved: list[Reserved] = []

        def decide_locally(local: Operation) -> Decision:
            if not local.commit:
                return self.bound.decide(local)
            reserved.append(self.bound.reserve(local, hold))
            return reserved[0].decision

        decision = self._decide(operation, decide_locally)
        if not reserved or not decision.allowed:
            return Reserved(decision, "", repeated=False)
        return Reserved(decision, reserved[0].id, reserved[0].repeated)

    def standings(self, after: Sequence[Standing]) -> tuple[Standing, ...]:
        """The standings of these limits, from those that the local store reports of the limits that it decides."""
        return tuple(
            Standing(self._by_scope[definition.scope], remaining, reset_after_us)
            for definition, remaining, reset_after_us in after
        )

    def _check(self, operation: Operation, hold: Hold) -> None:
        """Raise the errors that a store raises for invalid arguments."""
        keys, costs = operation.keys, operation.costs
        if len(keys) != self.groups or len(costs) != self.groups:
            raise ValueError(f"these limits take {self.groups} keys and costs")
        if not operation.commit:
            raise ValueError("what is held is charged: the operation has to commit")
        for key, cost in zip(keys, costs, strict=True):
            encode_key(key)
            check_cost(cost)
        check_remember(hold.remember_us)
        if hold.name is not None:
            check_name(hold.name)
        if not hold.at_once:
            check_lease(hold.lease_us)
            return
        check_hits(definition.limit for definition in self.definitions)

    def _decide(self, operation: Operation, decide_locally: Callable[[Operation], Decision]) -> Decision:
        """The decision; `decide_locally` decides the `local` limits."""
        keys, costs = operation.keys, operation.costs
        closed = any(costs[group] for group in self._closed_groups)
        readings = [
            Reading(False, 0, 0, RETRY_AFTER_US, RETRY_AFTER_US, 0)
            if choice == "closed" and costs[definition.group]
            else Reading(True, definition.limit.quota, 0, 0, 0, 0)
            for choice, definition in zip(self._choices, self.definitions, strict=True)
        ]
        degraded = "closed" if self._closed_groups and not any(costs) else "open"
        if self._local:
            decision = decide_locally(
                Operation(
                    tuple(keys[group] for group in self.local_groups),
                    tuple(costs[group] for group in self.local_groups),
                    commit=operation.commit and not closed,
                    now_us=operation.now_us,
                    max_delay_us=operation.max_delay_us,
                )
            )
            degraded = decision.degraded or "local"
            for number, local in zip(self._local, decision.limits, strict=True):
                readings[number] = Reading(
                    local.allowed,
                    local.remaining,
                    local.reset_after_us,
                    local.retry_after_us,
                    local.next_after_us,
                    local.delay_us,
                )
        if closed:
            degraded = "closed"
        costs_of_limits = [costs[definition.group] for definition in self.definitions]
        pairs = zip(self.definitions, readings, strict=True)
        allowed = all(reading.allowed or definition.shadow for definition, reading in pairs)
        binding = binding_of(self.definitions, readings, costs_of_limits, allowed=allowed)
        return Decision(self.definitions, readings, allowed=allowed, binding=binding, degraded=degraded)

    def give_back(self, receipt: Receipt, ago_us: int) -> None:
        """Give back what this process charged."""
        read_receipt(self.definitions, receipt, ago_us)
        if self._local:
            keys, costs, _, charged = receipt
            local = Receipt(
                tuple(keys[group] for group in self.local_groups),
                tuple(costs[group] for group in self.local_groups),
                charged=None if charged is None else [charged[number] for number in self._local],
            )
            self.bound.give_back(local, ago_us)

    def reset(self, keys: tuple[Key, ...]) -> bool:
        """Forget the local usage; return whether there was any."""
        return bool(self._local) and self.bound.reset(tuple(keys[group] for group in self.local_groups))

    def read(self, keys: tuple[Key, ...], now_us: int | None = None) -> StatesAt:
        """The local states; None for limits that this process does not decide."""
        states: list[tuple[Any, ...] | None] = [None] * len(self.definitions)
        if self._local:
            local_states = self.bound.read(tuple(keys[group] for group in self.local_groups), now_us)
            for number, state in zip(self._local, local_states, strict=True):
                states[number] = state
        return StatesAt(states, now_us)


def check_on_store_error(choice: object) -> OnStoreError | Literal[""]:
    """An optional choice, "" where there is none; raises ConfigError for an invalid one."""
    if choice is None or choice == "":
        return ""
    if choice not in ON_STORE_ERROR:
        known = ", ".join(ON_STORE_ERROR)
        raise ConfigError(f"on_store_error is one of {known}, not {without_credentials(repr(choice)):.40}")
    return choice


def read_share(share: object) -> Fraction:
    """A share as a fraction in (0, 1]; raises ConfigError for anything else."""
    if isinstance(share, bool) or not isinstance(share, int | float | Fraction) or not 0 < share <= 1:
        raise ConfigError(f"local_share is a number above 0, up to 1, not {share!r}")
    return max(Fraction(share).limit_denominator(1000), Fraction(1, 1000))
