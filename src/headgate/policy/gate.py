"""A policy bound to a store: ask it for a request, and it answers.

`Gate` for threads, `AsyncGate` for asyncio. All rules that apply to a request are decided together,
all or none, in one call of the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path as FilePath
from typing import Any

from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit, Reading, binding_of
from headgate.errors import ConfigError, StoreUnavailable
from headgate.keys import check_cost
from headgate.planning.cluster_check import check_shape
from headgate.policy.compiled import ALL_RULES, ANY_TIER, Candidate, Candidates, Kind, Policy
from headgate.policy.identity import Extract, Parts
from headgate.policy.request import Request
from headgate.stores.guard.choice import answering, rescued
from headgate.stores.guard.fallback import MAX_LOCAL_KEYS, Choice, check_choice
from headgate.stores.guard.late_limits import bound_or_late
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import (
    BoundLimits,
    Store,
    StoreStats,
    bind_async,
    close_async,
    ping_async,
    warm_up,
    warm_up_async,
)
from headgate.stores.shared.store import SharedStore
from headgate.stores.url import open_store
from headgate.units import LARGEST
from headgate.waiting import answered

_MOST_PLANS = 8192
_MOST_BOUND = 4096
_LONGEST_REMEMBERED = 512
_ONE = 1
"""The usual cost. Compared by identity: True and 1.0 are equal to it, and are no costs."""

_LOOKS_FOR_ROOM = 8
"""How often a zone is asked for room for a policy, which another process may take back before it is used."""

_FREE = Decision((), (), allowed=True, binding=None)
"""The answer where no rule applies."""


def read_policy(policy: Policy | Mapping[str, Any] | str | FilePath) -> Policy:
    """A policy from a file's path or from values; raises PolicyError, or OSError for a file that cannot be read."""
    if isinstance(policy, Policy):
        return policy
    from headgate.policy import load  # needs the extra `policy`, which a policy at hand does not

    if isinstance(policy, Mapping):
        return Policy(load.build_policy(policy))
    return Policy(load.load_policy(policy))


@dataclass(slots=True, eq=False)
class _Plan:
    """What is known in advance of requests of one kind."""

    candidates: Candidates
    always: tuple[Candidate, ...] | None
    """The rules that apply whatever else the request has; None where headers or its client's address decide."""

    bound: BoundLimits | None
    """The limits of `always`, where they depend on no tier."""

    quick: tuple[Extract, ...]
    """What gives the keys of `always`, each once."""

    only: Extract | None
    """The only one of `quick`: most rules count by the same identity."""

    spread: Callable[[list[Parts | None]], tuple[Parts | None, ...]]
    """From what `quick` gave to one key for each rule."""

    costs: tuple[int, ...]


Binding = Callable[[tuple[NamedLimit, ...]], Any]
"""What binds limits to a store."""

Judged = tuple[Decision, BoundLimits | None, tuple[Candidate, ...], tuple[Parts | None, ...]]
"""A decision, the limits that made it (None: the store was not asked), and the rules with their keys."""


class _Bindings:
    """One policy on one store: immutable but for what it remembers, which is bounded."""

    def __init__(self, policy: Policy, bind: Binding, on_store_error: str) -> None:
        self.policy = policy
        self._on_store_error = on_store_error
        self._looks_at_hosts = policy.looks_at_hosts
        self._bind_limits = bind
        self._plans: dict[tuple[str, str, str, str], _Plan] = {}
        """By method, host, path and ruleset, as they were sent; `_older` has those met less recently."""

        self._older: dict[tuple[str, str, str, str], _Plan] = {}
        self._plans_by_kind: dict[tuple[Kind, str], _Plan] = {}
        self._bound: dict[tuple[tuple[str, str], ...], BoundLimits] = {}
        self._refused: dict[tuple[tuple[str, bool], ...], Decision] = {}

    def judge(self, request: Request, cost: int, ruleset: str, *, commit: bool = True) -> Any:
        """Decide for a request: a decision, or where the limits are bound for an event loop, an awaitable of one."""
        bound, chosen, keys, costs = self.resolve(request, cost, ruleset)
        if bound is None:
            return self._refuse_missing(chosen, keys) if chosen else _FREE
        return bound.decide(keys, costs) if commit else bound.decide(keys, costs, commit=False)

    def judge_at(self, request: Request, now_us: int, cost: int) -> Judged:
        """Decide for a request as of a moment, and tell what was asked of the store."""
        bound, chosen, keys, costs = self.resolve(request, cost, ALL_RULES)
        if bound is None:
            return self._refuse_missing(chosen, keys) if chosen else _FREE, None, chosen, keys
        return bound.decide(keys, costs, now_us=now_us), bound, chosen, keys

    def resolve(
        self, request: Request, cost: int, ruleset: str
    ) -> tuple[BoundLimits | None, tuple[Candidate, ...], tuple[Any, ...], tuple[int, ...]]:
        """(the limits to ask, the rules they are of, each rule's key, each rule's cost).

        No limits where no rule applies, or where a rule insists on an identity that is missing: its key is None.
        """
        path = request.path
        if "?" in path:
            path = path.partition("?")[0]
        host = request.host if self._looks_at_hosts else ""
        plan = self._plans.get((request.method, host, path, ruleset))
        if plan is None:
            plan = self._plan(request.method, host, path, ruleset)
        bound, chosen, costs = plan.bound, plan.always, plan.costs
        keys: tuple[Parts | None, ...]
        if bound is not None and chosen is not None and cost is _ONE:
            if plan.only is not None:
                keys = (plan.only(request),) * len(chosen)
            else:
                keys = plan.spread([quick(request) for quick in plan.quick])
        else:
            chosen = plan.candidates.select(request) if chosen is None else chosen
            if not chosen:
                return None, (), (), ()
            cost = check_cost(cost)
            costs = tuple([min(rule.cost * cost, LARGEST) for rule, _ in chosen])
            bound = bound or self._bound_for(chosen, request)
            keys = tuple([keyed.quick(request) for _, keyed in chosen])
        if not all(keys):
            keys = tuple([keyed.whole(request) for _, keyed in chosen])
            if not all(keys):
                return None, chosen, keys, costs
        return bound, chosen, keys, costs

    def _refuse_missing(self, chosen: tuple[Candidate, ...], keys: tuple[Parts | None, ...]) -> Decision:
        """The refusal of a request that lacks an identity which a rule insists on: its quota is nothing."""
        name = tuple((rule.name, key is None) for (rule, _), key in zip(chosen, keys, strict=True))
        refusal = self._refused.get(name)
        if refusal is None:
            definitions = limits_of(chosen, ANY_TIER)
            readings = [
                Reading(False, 0, 0, None, 0, 0)
                if keys[limit.group] is None
                else Reading(True, limit.limit.quota, 0, 0, 0, 0)
                for limit in definitions
            ]
            binding = binding_of(definitions, readings, [1] * len(readings), allowed=False)
            refusal = Decision(definitions, readings, allowed=False, binding=binding)
            _remember(self._refused, name, refusal, _MOST_BOUND)
        return refusal

    def _bound_for(self, chosen: tuple[Candidate, ...], request: Request) -> BoundLimits:
        """The limits of these rules for the request's tier."""
        tier = self.policy.tier_of(request) if any(rule.is_tiered for rule, _ in chosen) else ANY_TIER
        return self._bind(chosen, tier)

    def _bind(self, chosen: tuple[Candidate, ...], tier: str) -> BoundLimits:
        name = tuple((rule.name, rule.tier(tier)) for rule, _ in chosen)
        bound = self._bound.get(name)
        if bound is None:
            bound = self._bind_limits(limits_of(chosen, tier, self._on_store_error))
            _remember(self._bound, name, bound, _MOST_BOUND)
        return bound

    def _plan(self, method: str, host: str, path: str, ruleset: str) -> _Plan:
        """What is known in advance of requests like this.

        Kinds are as many as the policy makes them; paths are remembered besides, so that those that are met
        again and again cost less, while a flood of new ones pushes them out no sooner than twice `_MOST_PLANS` come.
        """
        name = (method, host, path, ruleset)
        plan = self._older.get(name)
        if plan is None:
            kind = (self.policy.kind(method, host, path), ruleset)
            plan = self._plans_by_kind.get(kind)
            if plan is None:
                if ruleset not in self.policy.rulesets:
                    known = ", ".join(self.policy.rulesets)
                    raise ConfigError(f"no ruleset is named {ruleset[:60]!r}; there are {known}")
                plan = self._make_plan(self.policy.candidates(kind[0], ruleset))
                _remember(self._plans_by_kind, kind, plan, _MOST_PLANS)
        if len(path) + len(host) + len(method) <= _LONGEST_REMEMBERED:
            if len(self._plans) >= _MOST_PLANS:
                self._older, self._plans = self._plans, {}
            self._plans[name] = plan
        return plan

    def _make_plan(self, candidates: Candidates) -> _Plan:
        if candidates.look_further:
            return _Plan(candidates, None, None, (), None, tuple, ())
        chosen = candidates.select(Request())
        tiered = any(rule.is_tiered for rule, _ in chosen)
        quick = tuple(dict.fromkeys(keyed.quick for _, keyed in chosen))
        return _Plan(
            candidates,
            always=chosen,
            bound=self._bind(chosen, ANY_TIER) if chosen and not tiered else None,
            quick=quick,
            only=quick[0] if len(quick) == 1 else None,
            spread=_spread([quick.index(keyed.quick) for _, keyed in chosen]),
            costs=tuple(rule.cost for rule, _ in chosen),
        )


def _spread(places: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """What picks these places of a list, in C."""
    if places == list(range(len(places))):
        return tuple
    return itemgetter(*places)


def limits_of(chosen: tuple[Candidate, ...], tier: str, on_store_error: str = "") -> tuple[NamedLimit, ...]:
    """The limits of these rules for a tier, each with its rule's place among them.

    `on_store_error` stands in for the policy's, for rules that have none of their own.
    """
    return tuple(
        replace(limit, group=group, on_store_error=rule.on_store_error or on_store_error or limit.on_store_error)
        for group, (rule, _) in enumerate(chosen)
        for limit in rule.limits[rule.tier(tier)]
    )


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
        check_shape(compiled, self.store)
        self._check_room(compiled)
        self._bindings = _Bindings(compiled, self._bind, self._on_store_error)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._bindings.policy

    def reload(self, policy: Policy | Mapping[str, Any] | str | FilePath) -> None:
        """Put another policy in force, whole or not at all; what was used stays used.

        Raises PolicyError for a policy that cannot be used, ConfigError for one that the store cannot keep;
        then the old one stays.
        """
        compiled = read_policy(policy)
        check_shape(compiled, self.store)
        self._check_room(compiled)
        self._bindings = _Bindings(compiled, self._bind, self._on_store_error)

    def _check_room(self, policy: Policy) -> None:
        """Raise ConfigError for a policy of more limits than the store can know: a shared zone has a list of them."""
        if not isinstance(self.store, SharedStore):
            return
        limits = [limit for rule in policy.rules for limits in rule.limits.values() for limit in limits]
        missing = wanted = {(limit.scope, str(limit.limit)): limit for limit in limits}
        most = self.store.info()["max_limits"]
        for _ in range(_LOOKS_FOR_ROOM if len(wanted) <= most else 0):
            try:
                for limit in missing.values():
                    self.store.bind((replace(limit, group=0),), clock=self._clock)
            except StoreUnavailable as error:
                raise ConfigError(f"the store cannot keep the {len(limits)} limits of this policy: {error}") from error
            # One that holds no state yet makes room for another: of this policy, or of another process just now.
            known = set(self.store.known_limits())
            missing = {name: limit for name, limit in wanted.items() if name not in known}
            if not missing:
                return
        raise ConfigError(
            f"the store cannot keep the {len(limits)} limits of this policy: a zone of this size knows up to "
            f"{most}, fewer where their names are long; a larger one knows more"
        )

    def _bind(self, limits: tuple[NamedLimit, ...]) -> Any:
        return rescued(self.store, self._bound(limits), limits, self._clock, local=self._local)

    def _bound(self, limits: tuple[NamedLimit, ...]) -> Any:
        """The limits on the store; where they cannot be bound now, it is tried again whenever they are asked."""
        if isinstance(self.store, SharedStore):
            return bound_or_late(self.store, limits, self._clock)
        return self._answering.bind(limits, clock=self._clock)

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
        breaker = getattr(self._answering, "breaker", None)
        if breaker is not None:
            breaker.listeners.append(listener)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy.namespace!r}, store={self.store!r})"


class Gate(_BoundPolicy):
    """A policy bound to a store; safe under threads.

    `policy` is the path of a policy file, its values as a mapping, or a Policy. `store` (a URL or a
    store) stands in for the one that the policy names, `on_store_error` for the choice that it has for
    rules without their own. Raises PolicyError with all that is wrong.
    """

    def hit(self, request: Request, cost: int = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """Decide for a request and charge it: `cost` times the cost of each rule, all rules or none.

        `cost` is a whole number from 0 to 2**52; with a rule's own cost it counts as 2**52 at the most.
        Only the rules of `ruleset` are asked. The decision's `rule` is the binding limit's. A request
        that no rule is for, or that is exempt, passes with `limits` empty.
        """
        decision: Decision = self._bindings.judge(request, cost, ruleset)
        return decision

    def peek(self, request: Request, cost: int = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """Decide for a request and change nothing."""
        decision: Decision = self._bindings.judge(request, cost, ruleset, commit=False)
        return decision

    @property
    def judge_at(self) -> Callable[[Request, int, int], Judged]:
        """What decides for a request as of a moment, in microseconds since the epoch, and tells how: for a replay.

        It holds to the policy that is in force when it is taken.
        """
        return self._bindings.judge_at

    def warm_up(self) -> None:
        """Have the store connect before the first request; where it fails, that is told in the log."""
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

    def _bound(self, limits: tuple[NamedLimit, ...]) -> Any:
        return (
            super()._bound(limits)
            if isinstance(self.store, SharedStore)
            else bind_async(self._answering, limits, self._clock)
        )

    async def hit(self, request: Request, cost: int = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """See `Gate.hit`."""
        decision: Decision = await answered(self._bindings.judge(request, cost, ruleset))
        return decision

    async def peek(self, request: Request, cost: int = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """See `Gate.peek`."""
        decision: Decision = await answered(self._bindings.judge(request, cost, ruleset, commit=False))
        return decision

    async def ping(self) -> None:
        """Raise StoreError if the store does not answer."""
        await ping_async(self.store)

    def ask(self, request: Request, cost: int = 1, *, ruleset: str = ALL_RULES) -> Decision | Awaitable[Decision]:
        """`hit` without a coroutine of its own: the decision, or an awaitable where the store waits for I/O."""
        answer: Decision | Awaitable[Decision] = self._bindings.judge(request, cost, ruleset)
        return answer

    async def warm_up(self) -> None:
        """See `Gate.warm_up`."""
        self._bind_ahead()
        await warm_up_async(self.store)

    async def close(self) -> None:
        """Close the store."""
        await close_async(self._answering)

    async def __aenter__(self) -> AsyncGate:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _remember(memory: dict[Any, Any], name: Any, value: Any, most: int) -> None:
    """Keep a value for later; a memory that is full begins anew."""
    if len(memory) >= most:
        memory.clear()
    memory[name] = value
