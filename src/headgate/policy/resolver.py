"""From a subject to an operation on the store: the limits of the rules that apply, their keys and their costs.

A `Resolver` has one policy on one store. It caches what it knows of methods, hosts and paths, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from headgate.costs import Cost
from headgate.decision import Decision, NamedLimit, Reading, binding_of
from headgate.errors import ConfigError
from headgate.holding import Hold, Reserved, check_name, check_remember, new_id
from headgate.operation import Operation
from headgate.policy.compiled import ANY_TIER, Policy, Rule
from headgate.policy.extract import Extractor
from headgate.policy.held_groups import NOTHING_HELD
from headgate.policy.identity import Parts
from headgate.policy.matching import Candidate, Candidates, Kind, Matcher
from headgate.policy.request import Request
from headgate.policy.rule_costs import charged
from headgate.policy.subject import RootedPath, Subject, check_subject

_MOST_PLANS = 8192
_LAST_SLOT = (1 << 16) - 1
_MOST_BOUND = 4096
_MOST_SELECTIONS = 256
_LONGEST_CACHED = 512
_ONE = 1
"""The usual cost. Compared by identity: True and 1.0 are equal to it, and are no costs."""

Bind = Callable[[tuple[NamedLimit, ...]], Any]
"""Binds limits to a store."""

Keys = tuple[Parts | None, ...]
"""The key of each rule; None where a rule refuses because an identity is missing."""

Resolved = tuple[Any, Operation, tuple[Rule, ...], tuple[str, ...]]
"""(bound limits, operation on them, rule of each group, unit of each group).

The operation has a key and a cost for each group.
"""


class Settled:
    """Takes the place of bound limits where the decision is known without a store."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def decide(self, operation: Operation | None, /) -> Decision:
        """The decision."""
        return self._decision

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        """The decision; nothing is held."""
        if hold.name is not None:
            check_name(hold.name)
        check_remember(hold.remember_us)
        return Reserved(self._decision, self.id_of((), hold.name), False)

    def id_of(self, key: object, name: object, /) -> str:
        """The id of a hold that is settled already, or one that no store knows."""
        return NOTHING_HELD if self._decision.allowed else new_id(0)


FREE = Settled(Decision((), (), allowed=True, binding=None))
"""The decision where no rule applies."""


Spread = Callable[[list[Any]], tuple[Parts, ...]] | None
"""Picks the key of each group from the extracted parts; None where the parts are in the order of the groups."""

TierQuery = tuple[Any, Operation, tuple[str, ...], Spread, tuple[Rule, ...], tuple[int, ...]]
"""The query of some rules' limits for one tier, without the keys; a plain tuple is unpacked fastest.

Each unit that a rule's limits count is a group, with the rule's key and a cost of its own. The tuple is (bound limits,
operation with the rules' own costs, unit of each group, function that spreads the keys, rule of each group, index of
that rule)."""


@dataclass(slots=True, eq=False)
class Selection:
    """Rules that apply together, and all that is computed in advance for subjects that they apply to.

    Their keys are built in three steps: `extractors` give the parts of each identity once, each of `joins` appends the
    sum of two parts in the list, `Spread` picks the key of each group.
    """

    rules: tuple[Rule, ...]
    whole_keys: tuple[Extractor, ...]
    """The extractor of each rule's whole key, for subjects that lack an identity."""

    extractors: tuple[Extractor, ...]
    only: Extractor | None
    """The only extractor, where all rules count by the same identity, as most do."""

    joins: tuple[tuple[int, int], ...]
    places: tuple[int, ...]
    """The index of each rule's key among the extracted and joined parts."""

    parts: int
    """The number of extracted and joined parts."""

    tiers: frozenset[str]
    """The tiers that the limits depend on; none where they depend on no tier."""

    query: TierQuery | None = None
    """The query, where it depends on no tier."""

    queries_by_tier: dict[str, TierQuery] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Plan:
    """What is computed in advance for subjects of one kind."""

    candidates: Candidates
    always: Selection | None
    """The rules that apply whatever else a subject has; None where headers or its client's address decide."""

    selections: dict[tuple[str, ...], Selection] = field(default_factory=dict)
    """Selections by the names of their rules, where headers or the client's address decide."""


class Resolver:
    """One policy on one store: immutable except for its caches, which are bounded."""

    def __init__(self, policy: Policy, bind: Bind, on_store_error: str) -> None:
        self.policy = policy
        self.native: Any = None
        """The native gate of the policy; None where Python decides."""

        self._matcher = Matcher(policy)
        self.units = policy.units
        """The units that costs may name."""

        self._on_store_error = on_store_error
        self._looks_at_hosts = self._matcher.looks_at_hosts
        self._bind_limits = bind
        self._plans: dict[tuple[str, str, str, str], _Plan] = {}
        """Plans by method, host, path and ruleset, as they were sent; `_older` has those used less recently."""

        self._seen = bytearray(_LAST_SLOT + 1)
        """By hash, whether a path was seen before: only a path that is seen again is cached."""

        self._seen_count = 0
        self._older: dict[tuple[str, str, str, str], _Plan] = {}
        self._plans_by_kind: dict[tuple[Kind, str], _Plan] = {}
        self._bound: dict[tuple[tuple[str, str], ...], Any] = {}
        self._refused: dict[tuple[tuple[str, bool], ...], Settled] = {}

    def prepare(self, subject: Subject, cost: Cost, ruleset: str) -> Resolved:
        """`resolve`, natively where the native gate decides and can answer."""
        if self.native is not None and (prepared := self.native.resolve(subject, cost, ruleset)) is not None:
            resolved: Resolved = prepared
            return resolved
        return self.resolve(subject, cost, ruleset)

    def resolve(self, subject: Subject, cost: Cost, ruleset: str) -> Resolved:
        """Return the operation on the store for a subject, and the bound limits that run it.

        The limits are `Settled` where no rule applies, or where a rule insists on an identity that is missing.
        """
        try:
            path = subject.path
            host = subject.host if self._looks_at_hosts else ""
            if type(path) is RootedPath:
                plan = self._plan_of(self._matcher.kind(subject.method, host, path), ruleset)
            else:
                if "?" in path:
                    path = path.partition("?")[0]
                known = self._plans.get((subject.method, host, path, ruleset))
                plan = self._plan(subject.method, host, path, ruleset) if known is None else known
            selection = plan.always
            if selection is None:
                selection = self._select(plan, subject)
            query = selection.query
            if query is None:
                query = self._query_for(selection, subject)
            bound, costs, units, spread, rules, rule_numbers = query
            if cost is not _ONE:
                costs = charged(costs, units, cost, self.units)
            if selection.only is not None:
                parts = selection.only(subject)
                if parts:
                    return bound, costs.with_key(parts), rules, units
            else:
                found: list[Any] = [extract(subject) for extract in selection.extractors]
                if all(found):
                    for left, right in selection.joins:
                        found.append(found[left] + found[right])
                    return bound, costs.with_keys(found if spread is None else spread(found)), rules, units
            whole_keys: Keys = tuple([whole_key(subject) for whole_key in selection.whole_keys])
            keys: Any = tuple([whole_keys[number] for number in rule_numbers])
            limits = (
                bound if all(whole_keys) else self._refusal(selection.rules, tuple([key is None for key in whole_keys]))
            )
            return limits, costs.with_keys(keys), rules, units
        except AttributeError as error:
            check_subject(subject, error)
            raise

    def decide(self, subject: Subject, cost: Cost, ruleset: str, commit: bool) -> Any:
        """Decide, and charge if `commit`; return an awaitable where the store waits for I/O."""
        bound, operation, _, _ = self.resolve(subject, cost, ruleset)
        return bound.decide(operation if commit else Operation(operation.keys, operation.costs, commit=False))

    def bound_for(self, numbers: tuple[int, ...], tier: str) -> tuple[Any, tuple[str, ...], tuple[Rule, ...]]:
        """(bound limits of these rules for a tier, unit of each group, rule of each group); for the native gate.

        `numbers` are the indexes of the rules in the policy.
        """
        rules = tuple(self.policy.rules[number] for number in numbers)
        groups = _groups(rules, tier)
        return self._bind(rules, tier), tuple(unit for _, unit in groups), tuple(rules[number] for number, _ in groups)

    def refusal_of(self, numbers: tuple[int, ...], refused: tuple[bool, ...]) -> Settled:
        """The refusal of a subject that lacks the identity of some of these rules; for the native gate.

        `numbers` are the indexes of the rules in the policy, `refused` whether each of them lacks its identity.
        """
        return self._refusal(tuple(self.policy.rules[number] for number in numbers), refused)

    def _refusal(self, rules: tuple[Rule, ...], refused: tuple[bool, ...]) -> Settled:
        """The refusal of a subject that lacks an identity which a rule requires: its quota is 0."""
        name = tuple((rule.name, lacks) for rule, lacks in zip(rules, refused, strict=True))
        refusal = self._refused.get(name)
        if refusal is None:
            definitions = limits_of(rules, ANY_TIER)
            groups = _groups(rules, ANY_TIER)
            readings = [
                Reading(False, 0, 0, None, 0, 0)
                if refused[groups[limit.group][0]]
                else Reading(True, limit.limit.quota, 0, 0, 0, 0)
                for limit in definitions
            ]
            binding = binding_of(definitions, readings, [1] * len(readings), allowed=False)
            refusal = Settled(Decision(definitions, readings, allowed=False, binding=binding))
            _cache(self._refused, name, refusal, _MOST_BOUND)
        return refusal

    def _query_for(self, selection: Selection, subject: Subject) -> TierQuery:
        """The query of these rules' limits for the subject's tier."""
        tier = self._matcher.tier_of(subject)
        if tier not in selection.tiers:
            tier = ANY_TIER
        query = selection.queries_by_tier.get(tier)
        if query is None:
            query = selection.queries_by_tier[tier] = self._make_query(selection, tier)
        return query

    def _make_query(self, selection: Selection, tier: str) -> TierQuery:
        rules = selection.rules
        groups = _groups(rules, tier)
        rule_numbers = tuple(number for number, _ in groups)
        return (
            self._bind(rules, tier),
            Operation((), tuple(rules[number].cost_in(unit) for number, unit in groups)),
            tuple(unit for _, unit in groups),
            _spread([selection.places[number] for number in rule_numbers], selection.parts),
            tuple(rules[number] for number in rule_numbers),
            rule_numbers,
        )

    def _bind(self, rules: tuple[Rule, ...], tier: str) -> Any:
        name = tuple((rule.name, rule.tier(tier)) for rule in rules)
        bound = self._bound.get(name)
        if bound is None:
            bound = self._bind_limits(limits_of(rules, tier, self._on_store_error))
            _cache(self._bound, name, bound, _MOST_BOUND)
        return bound

    def _plan(self, method: str, host: str, path: str, ruleset: str) -> _Plan:
        """The plan of subjects with this method, host and path.

        The policy bounds the number of kinds. A path is cached, too, once it is seen again, so that it costs less from
        then on. A flood of paths that are seen once takes no memory, and evicts none of the cached paths.
        """
        name = (method, host, path, ruleset)
        plan = self._older.get(name)
        if plan is None:
            plan = self._plan_of(self._matcher.kind(method, host, path), ruleset)
            if not self._was_seen(hash(name)):
                return plan
        if len(path) + len(host) + len(method) <= _LONGEST_CACHED:
            if len(self._plans) >= _MOST_PLANS:
                self._older, self._plans = self._plans, {}
            self._plans[name] = plan
        return plan

    def _plan_of(self, kind: Kind, ruleset: str) -> _Plan:
        name = (kind, ruleset)
        plan = self._plans_by_kind.get(name)
        if plan is None:
            plan = self._make_plan(kind, ruleset)
            _cache(self._plans_by_kind, name, plan, _MOST_PLANS)
        return plan

    def _was_seen(self, name_hash: int) -> bool:
        """Return whether a name whose hash has the same slot was seen recently; mark the slot as seen."""
        slot = name_hash & _LAST_SLOT
        if self._seen[slot]:
            return True
        if self._seen_count >= _MOST_PLANS:
            self._seen, self._seen_count = bytearray(_LAST_SLOT + 1), 0
        self._seen[slot] = 1
        self._seen_count += 1
        return False

    def _make_plan(self, kind: Kind, ruleset: str) -> _Plan:
        if ruleset not in self.policy.rulesets:
            known = ", ".join(self.policy.rulesets)
            raise ConfigError(f"no ruleset is named {ruleset[:60]!r}; there are {known}")
        candidates = self._matcher.candidates(kind, ruleset)
        if candidates.look_further:
            return _Plan(candidates, None)
        return _Plan(candidates, self._selection(candidates.select(Request())))

    def _select(self, plan: _Plan, subject: Subject) -> Selection:
        """The rules that apply to a subject whose headers or client's address decide."""
        chosen = plan.candidates.select(subject)
        name = tuple([candidate.rule.name for candidate in chosen])
        selection = plan.selections.get(name)
        if selection is None:
            selection = self._selection(chosen)
            _cache(plan.selections, name, selection, _MOST_SELECTIONS)
        return selection

    def _selection(self, chosen: tuple[Candidate, ...]) -> Selection:
        rules = tuple(candidate.rule for candidate in chosen)
        extractors = list(dict.fromkeys(extract for candidate in chosen for extract in candidate.key.members))
        joins: dict[tuple[int, int], int] = {}
        places = []
        for candidate in chosen:
            place, *others = (extractors.index(extract) for extract in candidate.key.members)
            for other in others:
                place = joins.setdefault((place, other), len(extractors) + len(joins))
            places.append(place)
        tiers = frozenset(tier for rule in rules if rule.is_tiered for tier in rule.limits)
        selection = Selection(
            rules,
            whole_keys=tuple(candidate.key.whole for candidate in chosen),
            extractors=tuple(extractors),
            only=extractors[0] if len(extractors) == 1 and not joins else None,
            joins=tuple(joins),
            places=tuple(places),
            parts=len(extractors) + len(joins),
            tiers=tiers,
        )
        if not rules:
            selection.query = (FREE, Operation((), ()), (), None, (), ())
        elif not tiers:
            selection.query = self._make_query(selection, ANY_TIER)
        return selection


def limits_of(rules: Sequence[Rule], tier: str, on_store_error: str = "") -> tuple[NamedLimit, ...]:
    """The limits of these rules for a tier, each with the group of its rule and unit among them.

    `on_store_error` replaces the policy's choice, for rules that have none of their own.
    """
    groups = {rule_unit: group for group, rule_unit in enumerate(_groups(rules, tier))}
    return tuple(
        replace(
            limit,
            group=groups[number, limit.limit.of],
            on_store_error=rule.on_store_error or on_store_error or limit.on_store_error,
        )
        for number, rule in enumerate(rules)
        for limit in rule.limits[rule.tier(tier)]
    )


def _groups(rules: Sequence[Rule], tier: str) -> list[tuple[int, str]]:
    """The groups of these rules for a tier: (which rule, which unit) each."""
    return [(number, unit) for number, rule in enumerate(rules) for unit in rule.units(tier)]


def _spread(places: list[int], count: int) -> Spread:
    """A function that picks these places of a list of `count` parts, in C if possible; None for the list as it is."""
    if places == list(range(count)):
        return None
    if len(places) == 1:
        return lambda parts: (parts[places[0]],)
    return itemgetter(*places)


def _cache(cache: dict[Any, Any], name: Any, value: Any, most: int) -> None:
    """Cache a value under a name; a cache that is full is cleared first."""
    if len(cache) >= most:
        cache.clear()
    cache[name] = value
