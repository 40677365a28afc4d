"""A policy bound to a store, which decides for requests.

`Gate` for threads, `AsyncGate` for asyncio. All rules that apply to a request are decided together,
all or none, in one call of the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any

from headgate.clock import Clock
from headgate.costs import Cost
from headgate.decision import Decision, NamedLimit
from headgate.drive import answered
from headgate.operation import Operation
from headgate.policy.compiled import ALL_RULES, Policy
from headgate.policy.resolver import Resolved, Resolver
from headgate.policy.store_fit import check_fit
from headgate.policy.subject import Subject
from headgate.stores.guard.choice import answering, rescued
from headgate.stores.guard.fallback import MAX_LOCAL_KEYS, Choice, check_choice
from headgate.stores.guard.late_limits import bound_or_late
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import Store, StoreStats, warm_up, warm_up_async
from headgate.stores.url import open_store


def read_policy(policy: Policy | Mapping[str, Any] | str | FilePath) -> Policy:
    """A policy from a file's path or from values; raises PolicyError, or OSError for a file that cannot be read."""
    if isinstance(policy, Policy):
        return policy
    from headgate.policy.compiler import compile_policy  # needs the extra `policy`, which a policy at hand does not
    from headgate.policy.load import build_policy, load_policy

    return compile_policy(build_policy(policy) if isinstance(policy, Mapping) else load_policy(policy))


class _BoundPolicy:
    """What the gates of both colours are made of."""

    def __init__(
        self,
        policy: Policy | Mapping[str, Any] | str | FilePath,
        *,
        store: str | Store | None = None,
        clock: Clock | None = None,
        on_store_error: Choice | None = None,
    ) -> None:
        self._on_store_error = check_choice(on_store_error)
        compiled = read_policy(policy)
        chosen = compiled.store if store is None else store
        self.store = open_store(chosen) if isinstance(chosen, str) else chosen
        self._answering = answering(self.store)
        self._clock = clock
        self._local = MemoryStore(max_keys=MAX_LOCAL_KEYS)
        check_fit(compiled, self.store, clock=self._clock)
        self._resolver = Resolver(compiled, self._bind, self._on_store_error)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._resolver.policy

    def reload(self, policy: Policy | Mapping[str, Any] | str | FilePath) -> None:
        """Put another policy in force, completely or not at all; what was used stays used.

        Raises PolicyError for a policy that cannot be used, ConfigError for one that the store cannot keep;
        then the old one stays.
        """
        compiled = read_policy(policy)
        check_fit(compiled, self.store, clock=self._clock)
        self._resolver = Resolver(compiled, self._bind, self._on_store_error)

    def _bind(self, limits: tuple[NamedLimit, ...]) -> Any:
        return rescued(self.store, self._bound(limits), limits, self._clock, local=self._local)

    def _bound(self, limits: tuple[NamedLimit, ...]) -> Any:
        """The limits on the store; where they cannot be bound now, it is tried again whenever they are asked."""
        bind = partial(self._bind_to, limits, clock=self._clock)
        return bound_or_late(bind) if self.store.failure == "in parts" else bind()

    @property
    def _bind_to(self) -> Callable[..., Any]:
        """What binds limits to the store, in this colour."""
        return self._answering.bind

    def _bind_ahead(self) -> None:
        """Bind the limits of each rule, so that the store knows what they take before it is asked."""
        if self.store.blocking:
            for rule in self.policy.rules:
                for limits in rule.limits.values():
                    self._bound(tuple(replace(limit, group=0) for limit in limits))

    def stats(self) -> StoreStats:
        """What the store counts about itself."""
        return self.store.stats()

    def watch_store(self, listener: Callable[[Exception | None], object]) -> None:
        """Have a listener called with an error when the store stops answering, and with None when it is back.

        It may be called on any thread. A store in the memory of this process always answers.
        """
        breaker = self._answering.breaker
        if breaker is not None:
            breaker.listeners.append(listener)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy.namespace!r}, store={self.store!r})"


class Gate(_BoundPolicy):
    """A policy bound to a store; safe under threads.

    `policy` is the path of a policy file, its values as a mapping, or a Policy. `store` (a URL or a
    store) replaces the one that the policy names, `on_store_error` the policy's choice for rules without
    their own. Raises PolicyError with everything that is wrong.
    """

    def hit(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """Decide for a request and charge it: `cost` times the cost of each rule, all rules or none.

        `cost` is a whole number from 0 to 2**52; with a rule's own cost it counts as 2**52 at the most. Or it is a
        mapping from unit to number: `requests` are so many such requests, 1 if they are not named, and what it names
        of other units is charged in place of what the rules say. A unit that no limit of the policy counts is an
        ArgumentError.
        Only the rules of `ruleset` apply. The decision's `rule` is the binding limit's. A request
        that no rule applies to, or that is exempt, passes with `limits` empty.
        """
        bound, operation, _ = self._resolver.resolve(request, cost, ruleset)
        decision: Decision = bound.decide(operation)
        return decision

    def peek(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """Decide for a request and change nothing."""
        bound, operation, _ = self._resolver.resolve(request, cost, ruleset)
        decision: Decision = bound.decide(Operation(operation.keys, operation.costs, commit=False))
        return decision

    @property
    def decide_at(self) -> Callable[[Subject, int, Cost], tuple[Decision, Resolved]]:
        """A function that decides a request as of a moment, in microseconds since the epoch, and says how; for replays.

        It uses the policy that was in force when it was made.
        """
        resolve = self._resolver.resolve

        def decide_at(request: Subject, now_us: int, cost: Cost) -> tuple[Decision, Resolved]:
            resolved = resolve(request, cost, ALL_RULES)
            bound, operation, _ = resolved
            return bound.decide(Operation(operation.keys, operation.costs, now_us=now_us)), resolved

        return decide_at

    def warm_up(self) -> None:
        """Have the store connect before the first request; a failure is logged."""
        self._bind_ahead()
        warm_up(self.store)

    def close(self) -> None:
        """Close the store."""
        self._answering.close()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGate(_BoundPolicy):
    """`Gate` for asyncio: the same names, awaited."""

    @property
    def _bind_to(self) -> Callable[..., Any]:
        return self._answering.bind_async

    async def hit(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """See `Gate.hit`."""
        decision: Decision = await answered(self.ask(request, cost, ruleset=ruleset))
        return decision

    async def peek(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """See `Gate.peek`."""
        bound, operation, _ = self._resolver.resolve(request, cost, ruleset)
        decision: Decision = await answered(bound.decide(Operation(operation.keys, operation.costs, commit=False)))
        return decision

    async def ping(self) -> None:
        """Raise StoreError if the store does not answer."""
        await self.store.ping_async()

    def ask(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision | Awaitable[Decision]:
        """`hit` without a coroutine of its own: the decision, or an awaitable where the store waits for I/O."""
        bound, operation, _ = self._resolver.resolve(request, cost, ruleset)
        decision: Decision | Awaitable[Decision] = bound.decide(operation)
        return decision

    async def warm_up(self) -> None:
        """See `Gate.warm_up`."""
        self._bind_ahead()
        await warm_up_async(self.store)

    async def close(self) -> None:
        """Close the store."""
        await self._answering.aclose()

    async def __aenter__(self) -> AsyncGate:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
