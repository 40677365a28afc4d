"""From a subject to what the store is asked: the limits of the rules that apply, their keys and their costs.

A `Resolver` has one policy on one store. It remembers, in bounds, what it knows of methods, hosts and paths.
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
_LAST_PLACE = (1 << 16) - 1
_MOST_BOUND = 4096
_MOST_SELECTIONS = 256
_LONGEST_REMEMBERED = 512
_ONE = 1
"""The usual cost. Compared by identity: True and 1.0 are equal to it, and are no costs."""

Bind = Callable[[tuple[NamedLimit, ...]], Any]
"""What binds limits to a store."""

Keys = tuple[Parts | None, ...]
"""The key of each rule; None where a rule refuses for lack of an identity."""

Resolved = tuple[Any, Operation, tuple[Rule, ...], tuple[str, ...]]
"""(the limits to ask, what to ask them: a key and a cost for each group, the rule and the unit of each group)."""


class Settled:
    """Stands for bound limits where the decision is known without a store."""

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
        """The id of what is settled already, or of what no store knows."""
        return NOTHING_HELD if self._decision.allowed else new_id(0)


FREE = Settled(Decision((), (), allowed=True, binding=None))
"""Where no rule applies."""


Spread = Callable[[list[Any]], tuple[Parts, ...]] | None
"""Picks the key of each group from the parts that were found; None where they are in their places."""

Asked = tuple[Any, Operation, tuple[str, ...], Spread, tuple[Rule, ...], tuple[int, ...]]
"""What is asked of the limits of some rules for one tier, but for the keys; a plain tuple is unpacked fastest.

Each unit that a rule's limits count is a group, with the rule's key and a cost of its own. (the limits, what each rule
says that a request costs, the unit of each group, what spreads the keys, the rule of each group, which of the rules
that is)."""


@dataclass(slots=True, eq=False)
class Selection:
    """Rules that apply together, and all that is known in advance of subjects that they apply to.

    Their keys are put together in three steps: `extractors` give the parts of each identity once, `joins` add the
    sum of two parts that are there already, `Spread` picks the key of each group.
    """

    rules: tuple[Rule, ...]
    whole_keys: tuple[Extractor, ...]
    """What gives each rule's key where an identity is missing."""

    extractors: tuple[Extractor, ...]
    only: Extractor | None
    """The only extractor, where all rules count by the same identity, as most do."""

    joins: tuple[tuple[int, int], ...]
    places: tuple[int, ...]
    """Where each rule's key is among the parts that were found."""

    parts: int
    """How many parts are found."""

    tiers: frozenset[str]
    """The tiers that the limits depend on; none where they depend on no tier."""

    asked: Asked | None = None
    """What is asked, where it depends on no tier."""

    asked_by_tier: dict[str, Asked] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Plan:
    """What is known in advance of subjects of one kind."""

    candidates: Candidates
    always: Selection | None
    """The rules that apply whatever else a subject has; None where headers or its client's address decide."""

    selections: dict[tuple[str, ...], Selection] = field(default_factory=dict)
    """By the names of the rules, where others decide."""


class Resolver:
    """One policy on one store: immutable but for what it remembers, which is bounded."""

    def __init__(self, policy: Policy, bind: Bind, on_store_error: str) -> None:
        self.policy = policy
        self.native: Any = None
        """The native gate of the policy, where one decides."""

        self._matcher = Matcher(policy)
        self.units = policy.units
        """The units that costs may name."""

        self._on_store_error = on_store_error
        self._looks_at_hosts = self._matcher.looks_at_hosts
        self._bind_limits = bind
        self._plans: dict[tuple[str, str, str, str], _Plan] = {}
        """By method, host, path and ruleset, as they were sent; `_older` has those met less recently."""

        self._met = bytearray(_LAST_PLACE + 1)
        """Whether a path with such a hash was met: only one that comes again is remembered."""

        self._count_met = 0
        self._older: dict[tuple[str, str, str, str], _Plan] = {}
        self._plans_by_kind: dict[tuple[Kind, str], _Plan] = {}
        self._bound: dict[tuple[tuple[str, str], ...], Any] = {}
        self._refused: dict[tuple[tuple[str, bool], ...], Settled] = {}

    def prepare(self, subject: Subject, cost: Cost, ruleset: str) -> Resolved:
        """`resolve`, natively where the native gate decides and can say it."""
        if self.native is not None and (came := self.native.resolve(subject, cost, ruleset)) is not None:
            resolved: Resolved = came
            return resolved
        return self.resolve(subject, cost, ruleset)

    def resolve(self, subject: Subject, cost: Cost, ruleset: str) -> Resolved:
        """What the store is asked for a subject.

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
            asked = selection.asked
            if asked is None:
                asked = self._asked_for(selection, subject)
            bound, usual, units, spread, rules, numbers = asked
            if cost is not _ONE:
                usual = charged(usual, units, cost, self.units)
            if selection.only is not None:
                parts = selection.only(subject)
                if parts:
                    return bound, usual.with_key(parts), rules, units
            else:
                found: list[Any] = [extract(subject) for extract in selection.extractors]
                if all(found):
                    for one, other in selection.joins:
                        found.append(found[one] + found[other])
                    return bound, usual.with_keys(found if spread is None else spread(found)), rules, units
            whole: Keys = tuple([whole_key(subject) for whole_key in selection.whole_keys])
            keys: Any = tuple([whole[number] for number in numbers])
            asked_of = bound if all(whole) else self._refusal(selection.rules, tuple([key is None for key in whole]))
            return asked_of, usual.with_keys(keys), rules, units
        except AttributeError as error:
            check_subject(subject, error)
            raise

    def decide(self, subject: Subject, cost: Cost, ruleset: str, commit: bool) -> Any:
        """A decision, charged where that is meant; an awaitable where the store waits for I/O."""
        bound, operation, _, _ = self.resolve(subject, cost, ruleset)
        return bound.decide(operation if commit else Operation(operation.keys, operation.costs, commit=False))

    def bound_for(self, numbers: tuple[int, ...], tier: str) -> tuple[Any, tuple[str, ...], tuple[Rule, ...]]:
        """(the limits of these rules for a tier, the unit and the rule of each group); for the native gate.

        Rules are told by their places in the policy.
        """
        rules = tuple(self.policy.rules[number] for number in numbers)
        groups = _groups(rules, tier)
        return self._bind(rules, tier), tuple(unit for _, unit in groups), tuple(rules[number] for number, _ in groups)

    def refusal_of(self, numbers: tuple[int, ...], refused: tuple[bool, ...]) -> Settled:
        """The refusal of a subject that these rules apply to, where some lack an identity; for the native gate."""
        return self._refusal(tuple(self.policy.rules[number] for number in numbers), refused)

    def _refusal(self, rules: tuple[Rule, ...], refused: tuple[bool, ...]) -> Settled:
        """The refusal of a subject that lacks an identity which a rule insists on: its quota is nothing."""
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
            _remember(self._refused, name, refusal, _MOST_BOUND)
        return refusal

    def _asked_for(self, selection: Selection, subject: Subject) -> Asked:
        """What is asked of these rules' limits for the subject's tier."""
        tier = self._matcher.tier_of(subject)
        if tier not in selection.tiers:
            tier = ANY_TIER
        asked = selection.asked_by_tier.get(tier)
        if asked is None:
            asked = selection.asked_by_tier[tier] = self._ask(selection, tier)
        return asked

    def _ask(self, selection: Selection, tier: str) -> Asked:
        rules = selection.rules
        groups = _groups(rules, tier)
        numbers = tuple(number for number, _ in groups)
        return (
            self._bind(rules, tier),
            Operation((), tuple(rules[number].cost_in(unit) for number, unit in groups)),
            tuple(unit for _, unit in groups),
            _spread([selection.places[number] for number in numbers], selection.parts),
            tuple(rules[number] for number in numbers),
            numbers,
        )

    def _bind(self, rules: tuple[Rule, ...], tier: str) -> Any:
        name = tuple((rule.name, rule.tier(tier)) for rule in rules)
        bound = self._bound.get(name)
        if bound is None:
            bound = self._bind_limits(limits_of(rules, tier, self._on_store_error))
            _remember(self._bound, name, bound, _MOST_BOUND)
        return bound

    def _plan(self, method: str, host: str, path: str, ruleset: str) -> _Plan:
        """What is known in advance of subjects like this.

        Kinds are as many as the policy makes them; a path is remembered besides once it comes again, so that it costs
        less from then on, while a flood of paths that come once costs no memory and pushes none of these out.
        """
        name = (method, host, path, ruleset)
        plan = self._older.get(name)
        if plan is None:
            plan = self._plan_of(self._matcher.kind(method, host, path), ruleset)
            if not self._was_met(hash(name)):
                return plan
        if len(path) + len(host) + len(method) <= _LONGEST_REMEMBERED:
            if len(self._plans) >= _MOST_PLANS:
                self._older, self._plans = self._plans, {}
            self._plans[name] = plan
        return plan

    def _plan_of(self, kind: Kind, ruleset: str) -> _Plan:
        name = (kind, ruleset)
        plan = self._plans_by_kind.get(name)
        if plan is None:
            plan = self._make_plan(kind, ruleset)
            _remember(self._plans_by_kind, name, plan, _MOST_PLANS)
        return plan

    def _was_met(self, name_hash: int) -> bool:
        """Whether something with this hash, or nearly, was met of late; from now on it was."""
        place = name_hash & _LAST_PLACE
        if self._met[place]:
            return True
        if self._count_met >= _MOST_PLANS:
            self._met, self._count_met = bytearray(_LAST_PLACE + 1), 0
        self._met[place] = 1
        self._count_met += 1
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
            _remember(plan.selections, name, selection, _MOST_SELECTIONS)
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
            selection.asked = (FREE, Operation((), ()), (), None, (), ())
        elif not tiers:
            selection.asked = self._ask(selection, ANY_TIER)
        return selection


def limits_of(rules: Sequence[Rule], tier: str, on_store_error: str = "") -> tuple[NamedLimit, ...]:
    """The limits of these rules for a tier, each with the group of its rule and unit among them.

    `on_store_error` stands in for the policy's, for rules that have none of their own.
    """
    groups = {named: group for group, named in enumerate(_groups(rules, tier))}
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


def _spread(places: list[int], length: int) -> Spread:
    """What picks these places of a list of this length, in C wherever it can; None for the list as it is."""
    if places == list(range(length)):
        return None
    if len(places) == 1:
        return lambda found: (found[places[0]],)
    return itemgetter(*places)


def _remember(memory: dict[Any, Any], name: Any, value: Any, most: int) -> None:
    """Keep a value for later; a memory that is full begins anew."""
    if len(memory) >= most:
        memory.clear()
    memory[name] = value
