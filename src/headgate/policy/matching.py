"""Finds the rules of a policy that apply to a subject.

Its method, host and path alone decide which rules may apply. Headers, entries, the client's address and the tier
decide the rest. A `Matcher` prepares a policy for that once; then requests are only looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from headgate.policy.client_address import UNIX, is_in
from headgate.policy.compiled import ALL_RULES, ClientNetworks, Conditions, Policy, Rule
from headgate.policy.extract import Extractors, KeyExtractor
from headgate.policy.key_parts import hosts_of
from headgate.policy.llm_settings import FULL_MODEL, MODEL, is_one_of
from headgate.policy.path_tree import PathMatch, PathTree
from headgate.policy.sent_values import sent_text
from headgate.policy.subject import REPEATED, Repeated, RootedPath, Subject

_CLIENTS_CACHED = 8192
_LONGEST_CACHED = 256
_NO_HOSTS = frozenset([""])
_ANY_PATH = "/**"
"""The endpoint of requests whose path matches no template of a rule."""

Kind = tuple[str, frozenset[str], PathMatch]
"""A method, hosts and the path's matches, as far as a policy distinguishes them."""


class ConditionsMatcher:
    """Conditions on a subject's headers, entries, model and client's address, prepared for matching."""

    __slots__ = ("_client_is_in", "conditions")

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self._client_is_in = None if conditions.clients is None else _client_matcher(conditions.clients)

    def why_not(self, subject: Subject) -> str:
        """Why a subject's headers, entries, model or client's address do not match; "" where they do.

        Of a header or an entry that occurs several times, any value may match.
        """
        return self._why_not(subject, any)

    def why_not_surely(self, subject: Subject) -> str:
        """`why_not`, but every value of a header or an entry that occurs several times must match."""
        return self._why_not(subject, all)

    def _why_not(self, subject: Subject, some: Callable[[Iterable[bool]], bool]) -> str:
        if self._client_is_in is not None and not self._client_is_in(subject):
            return f"the client's address is not in {self.conditions.clients}"
        entries = self.conditions.entries
        if entries is not None and (reason := entries.why_not(subject, some)):
            return reason
        models = self.conditions.models
        if models and not some(is_one_of(models, *names) for names in _models_of(subject)):
            return f"the model is not {' or '.join(models)}"
        for name, values in self.conditions.headers:
            sent = subject.headers.get(name)
            if sent is None:
                return f"header {name} is not there"
            if values is None:
                continue
            value = subject.header(name)
            sent_values = list(map(sent_text, sent.values)) if value is REPEATED and type(sent) is Repeated else [value]
            if not some(sent_value in values for sent_value in sent_values):
                return f"header {name} is not {' or '.join(sorted(values))}"
        return ""


def _models_of(subject: Subject) -> Iterator[tuple[str, str]]:
    """The names of the model of a call, and of each other model that may answer it instead."""
    yield subject.attribute(MODEL), subject.attribute(FULL_MODEL)
    yield from getattr(subject, "other_models", ())


def _client_matcher(clients: ClientNetworks) -> Callable[[Subject], bool]:
    """A function that reports whether the client of a subject is in one of the networks; results are cached.

    A descriptor without an address does not count as a peer of a Unix socket: the gateway has not sent the address.
    """
    header = clients.rules.header

    def contain(peer: str, sent: str) -> bool:
        address = clients.rules.address(peer, sent)
        if address is None:
            return clients.unix and peer in ("", UNIX)
        return is_in(address, clients.networks)

    contain_cached = lru_cache(_CLIENTS_CACHED)(contain)

    def client_is_in(subject: Subject) -> bool:
        if clients.unix and subject.client_ip in ("", UNIX) and subject.entries:
            return False
        sent = subject.headers.get(header, "") if header else ""
        return (contain_cached if len(sent) <= _LONGEST_CACHED else contain)(subject.client_ip, sent)

    return client_is_in


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A rule that may apply to a subject, and the key by which it counts subjects with this path."""

    rule: Rule
    matcher: ConditionsMatcher
    key: KeyExtractor


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The exemptions and rules that may apply to a subject, by its method, host and path."""

    exempt: tuple[ConditionsMatcher, ...]
    rules: tuple[Candidate, ...]

    @property
    def look_further(self) -> bool:
        """Whether headers or the client's address decide which of these apply."""
        return any(matcher.conditions.look_further for matcher in self.exempt) or any(
            candidate.rule.conditions.look_further for candidate in self.rules
        )

    def select(self, subject: Subject) -> tuple[Candidate, ...]:
        """The rules that apply to a subject; none where it is exempt."""
        if any(not matcher.why_not_surely(subject) for matcher in self.exempt):
            return ()
        return without_idle_defaults([candidate for candidate in self.rules if not candidate.matcher.why_not(subject)])


def without_idle_defaults(matched: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The rules that apply, of those that match: default rules only if no other enforced rule matches."""
    if any(not (candidate.rule.default or candidate.rule.shadow) for candidate in matched):
        return tuple(candidate for candidate in matched if not candidate.rule.default)
    return tuple(matched)


class Matcher:
    """A policy that is prepared for matching."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.extractors = Extractors()
        self.tier_of = self.extractors.of_tier(policy.tiers)
        self.exempt = tuple(map(ConditionsMatcher, policy.exempt))
        self._rules = tuple((rule, ConditionsMatcher(rule.conditions)) for rule in policy.rules)
        self._rulesets = {name: frozenset(members) for name, members in policy.rulesets.items()}
        all_conditions = tuple(policy.conditions)
        self._methods = frozenset(method for conditions in all_conditions for method in conditions.methods)
        self._hosts = frozenset(host for conditions in all_conditions for host in conditions.hosts)
        self._parent_hosts = tuple(
            dict.fromkeys(parent for conditions in all_conditions for parent in conditions.parent_hosts)
        )
        self.looks_at_hosts = bool(self._hosts or self._parent_hosts)
        self._paths = PathTree()
        for owner, conditions in [
            *enumerate(rule.conditions for rule in policy.rules),
            *((-1 - index, conditions) for index, conditions in enumerate(policy.exempt)),
        ]:
            for template in conditions.paths:
                self._paths.add(template, owner)

    def kind(self, method: str, host: str, path: str) -> Kind:
        """The kind of a method, a host and a path: all requests of one kind have the same candidates."""
        if method not in self._methods:
            method = ""
        hosts = frozenset(map(self._host_kind, hosts_of(host))) if host and self.looks_at_hosts else _NO_HOSTS
        if type(path) is RootedPath:
            return method, hosts, self._paths.match_rooted(path.partition("?")[0], path.others)
        return method, hosts, self._paths.match(path)

    def candidates(self, kind: Kind, ruleset: str = ALL_RULES) -> Candidates:
        """The exemptions, and the rules of a ruleset, that may apply to subjects of this kind."""
        names = self._rulesets[ruleset]
        method, hosts, paths = kind
        rules = [
            Candidate(rule, matcher, self.extractors.of_key(rule.key, paths.found.get(index, _ANY_PATH)))
            for index, (rule, matcher) in enumerate(self._rules)
            if rule.name in names
            and (index in paths.found or not rule.conditions.paths)
            and rule.conditions.is_for(method, hosts)
        ]
        exempt = tuple(
            matcher
            for index, matcher in enumerate(self.exempt)
            if (-1 - index in paths.surely or not matcher.conditions.paths)
            and matcher.conditions.is_surely_for(method, hosts)
        )
        return Candidates(exempt, tuple(rules))

    def _host_kind(self, host: str) -> str:
        """A representative of all hosts that the conditions do not distinguish from this one."""
        if host in self._hosts:
            return host
        # The longest matching parent is below each other one that matches.
        return max((parent for parent in self._parent_hosts if host.endswith(parent)), key=len, default="")
