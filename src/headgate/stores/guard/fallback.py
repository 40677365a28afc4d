"""What is decided while a store does not answer: what was written down for each limit.

`open` passes and counts nothing, `closed` refuses, `local` decides in this process by a share of the limit.
Of several limits the strictest choice decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

from headgate.clock import Clock
from headgate.costs import Cost, single_cost
from headgate.decision import Decision, NamedLimit, Reading, binding_of
from headgate.errors import ConfigError, StoreError
from headgate.keys import Key
from headgate.operation import Operation, Receipt
from headgate.stores.guard.breaker import Breaker
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import BoundLimits, Decisions, StatesAt, paired_costs, read_receipt
from headgate.stores.python_table import PythonDecisions

Choice = Literal["local", "open", "closed"]

CHOICES: tuple[Choice, ...] = ("local", "open", "closed")

MAX_LOCAL_KEYS = 100_000
COME_BACK_US = 1_000_000
"""What a refusal for want of a store tells: about when it is looked for again."""


class Fallback:
    """Decides limits without their store. `local` keeps the states of all `local` limits."""

    def __init__(
        self,
        definitions: Sequence[NamedLimit],
        choice: Choice,
        share: Fraction,
        local: MemoryStore,
        clock: Clock | None,
    ) -> None:
        self.definitions = tuple(definitions)
        self.groups = max((definition.group + 1 for definition in definitions), default=0)
        self._choices = [definition.on_store_error or choice for definition in definitions]
        self._enforced_closed = any(
            own == "closed" and not definition.shadow
            for own, definition in zip(self._choices, self.definitions, strict=True)
        )
        self._local = [number for number, own in enumerate(self._choices) if own == "local"]
        self._groups = sorted({self.definitions[number].group for number in self._local})
        self._bound: BoundLimits = local.bind(
            [
                replace(
                    self.definitions[number],
                    limit=self.definitions[number].limit.scaled(share),
                    group=self._groups.index(self.definitions[number].group),
                )
                for number in self._local
            ],
            clock=clock,
        )

    def decide(self, operation: Operation) -> Decision:
        """The decision, `degraded` by the choice that decided."""
        keys, costs = operation.keys, operation.costs
        closed = self._enforced_closed and any(costs)
        readings = [
            Reading(False, 0, 0, COME_BACK_US, COME_BACK_US, 0)
            if own == "closed" and costs[definition.group]
            else Reading(True, definition.limit.quota, 0, 0, 0, 0)
            for own, definition in zip(self._choices, self.definitions, strict=True)
        ]
        degraded = "closed" if self._enforced_closed else "open"
        if self._local:
            degraded = "local"
            decision = self._bound.decide(
                Operation(
                    tuple(keys[group] for group in self._groups),
                    tuple(costs[group] for group in self._groups),
                    commit=operation.commit and not closed,
                    now_us=operation.now_us,
                    max_delay_us=operation.max_delay_us,
                )
            )
            for number, own in zip(self._local, decision.limits, strict=True):
                readings[number] = Reading(
                    own.allowed, own.remaining, own.reset_after_us, own.retry_after_us, own.next_after_us, own.delay_us
                )
        if closed:
            degraded = "closed"
        each = [costs[definition.group] for definition in self.definitions]
        pairs = zip(self.definitions, readings, strict=True)
        allowed = all(reading.allowed or definition.shadow for definition, reading in pairs)
        binding = binding_of(self.definitions, readings, each, allowed=allowed)
        return Decision(self.definitions, readings, allowed=allowed, binding=binding, degraded=degraded)

    def give_back(self, receipt: Receipt, ago_us: int) -> None:
        """Give back what was charged here."""
        read_receipt(self.definitions, receipt, ago_us)
        if self._local:
            keys, costs, _, charged = receipt
            own = Receipt(
                tuple(keys[group] for group in self._groups),
                tuple(costs[group] for group in self._groups),
                charged=None if charged is None else [charged[number] for number in self._local],
            )
            self._bound.give_back(own, ago_us)

    def reset(self, keys: tuple[Key, ...]) -> bool:
        """Forget what was used here."""
        return bool(self._local) and self._bound.reset(tuple(keys[group] for group in self._groups))

    def read(self, keys: tuple[Key, ...], now_us: int | None = None) -> StatesAt:
        """The states here; None for limits that are not decided here."""
        states: list[tuple[Any, ...] | None] = [None] * len(self.definitions)
        if self._local:
            found = self._bound.read(tuple(keys[group] for group in self._groups), now_us)
            for number, state in zip(self._local, found, strict=True):
                states[number] = state
        return StatesAt(states, now_us)


class RescuedLimits:
    """Limits of a store that answers at once or not at all, such as a shared zone: where it fails, what was written.

    One part of such a store may fail while all others answer, so it is asked each time, and knows by itself which
    parts it need not wait for. `breaker` tells the log that some fail, and asks for them in the background until
    all answer.
    """

    def __init__(self, bound: BoundLimits, fallback: Fallback, breaker: Breaker, probe: Callable[[], object]) -> None:
        self.bound = bound
        """The limits on the store, which raise StoreError where it fails."""

        self._decide = bound.decide
        self._give_back = bound.give_back
        self._groups = fallback.groups
        self._fallback = fallback
        self._breaker = breaker
        self._probe = probe

    def decide(self, operation: Operation, /) -> Decision:
        try:
            return self._decide(operation)
        except StoreError as error:
            self._failed(error)
        return self._fallback.decide(operation)

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        if receipt.degraded == "local":
            self._fallback.give_back(receipt, ago_us)
            return
        try:
            self._give_back(receipt, ago_us)
        except StoreError as error:
            self._failed(error)

    def hit(self, key: Key, cost: Cost = 1) -> Decision:
        own = cost if type(cost) is int else single_cost(self._fallback.definitions, cost)
        return self.decide(Operation((key,) * self._groups, (own,) * self._groups))

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        own = cost if type(cost) is int else single_cost(self._fallback.definitions, cost)
        return self.decide(Operation((key,) * self._groups, (own,) * self._groups, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        every = list(keys)
        each = paired_costs(len(every), costs)
        try:
            return self.bound.hit_many(every, each)
        except StoreError as error:
            self._failed(error)
        pairs = zip(every, each, strict=True)
        return PythonDecisions(
            self._fallback.decide(Operation((key,) * self._groups, (cost,) * self._groups)) for key, cost in pairs
        )

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        here = self._fallback.reset(keys)
        return self.bound.reset(keys) or here

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        try:
            return self.bound.read(keys, now_us)
        except StoreError as error:
            self._failed(error)
        return self._fallback.read(keys, now_us)

    def _failed(self, error: StoreError) -> None:
        self._breaker.failed(error)
        self._breaker.probe_in_thread(self._probe)


def check_choice(choice: object) -> Choice | Literal[""]:
    """A choice that may be given, "" where it is not; raises ConfigError for what is none."""
    if choice is None or choice == "":
        return ""
    if choice not in CHOICES:
        raise ConfigError(f"on_store_error is one of {', '.join(CHOICES)}, not {choice!r:.40}")
    return choice


def read_share(share: object) -> Fraction:
    """A share as a fraction in (0, 1]; raises ConfigError for anything else."""
    if isinstance(share, bool) or not isinstance(share, int | float | Fraction) or not 0 < share <= 1:
        raise ConfigError(f"local_share is a number above 0, up to 1, not {share!r}")
    return max(Fraction(share).limit_denominator(1000), Fraction(1, 1000))
