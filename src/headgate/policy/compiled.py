"""A policy as data: the contents of its file, with names resolved and defaults filled in. Plain, immutable values.

`headgate.policy.compiler` makes it from the model of a file; `matching` and `extract` apply it to a subject. Without
a `CallableIdentity` it has no functions: it can be printed, compared and pickled, and another reader needs nothing
else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from headgate.amounts import REQUESTS
from headgate.decision import NamedLimit, OnStoreError
from headgate.limits import units_of
from headgate.policy.client_address import UNIX, AddressRules, Network, network_text
from headgate.policy.entries import EntryConditions
from headgate.policy.frozen_map import FrozenMap
from headgate.policy.identity import AddressIdentity, AttributeIdentity, Combination, Identity, leaves
from headgate.policy.key_parts import hosts_of
from headgate.policy.llm_settings import AtEnd, HoldMode, LlmSettings

ALL_RULES = "default"
"""The ruleset that contains every rule, unless the policy defines another one of this name."""

ANY_TIER = ""
"""The tier of limits that apply to all requests, and to requests of tiers that a rule does not name."""


@dataclass(frozen=True, slots=True)
class ClientNetworks:
    """Networks of clients, and whether peers of Unix sockets are included; `rules` give a client's address."""

    networks: tuple[Network, ...]
    unix: bool
    rules: AddressRules

    def __str__(self) -> str:
        return " or ".join([*map(network_text, self.networks), *([UNIX] if self.unix else [])])


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which requests match: every condition that is given must hold; of several values, one must match.

    `parent_hosts` begin with a dot and mean all hosts below. `headers` are names in lower case with their values,
    None for any value; `paths` are templates.
    """

    methods: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    parent_hosts: tuple[str, ...] = ()
    headers: tuple[tuple[str, frozenset[str] | None], ...] = ()
    paths: tuple[str, ...] = ()
    clients: ClientNetworks | None = None
    models: tuple[str, ...] = ()
    """Names of language models in lower case, or prefixes of names followed by `*`."""

    entries: EntryConditions | None = None
    """The entries that a descriptor must have; a subject that is no descriptor does not match."""

    @property
    def look_further(self) -> bool:
        """Whether the conditions depend on more of a request than its method, host and path."""
        return bool(self.headers or self.models) or self.clients is not None or self.entries is not None

    def is_for(self, method: str, hosts: Collection[str]) -> bool:
        """Whether a request of this method to these hosts matches; one matching host is enough."""
        if self.methods and method not in self.methods:
            return False
        return not (self.hosts or self.parent_hosts) or any(map(self._is_host, hosts))

    def is_surely_for(self, method: str, hosts: Collection[str]) -> bool:
        """`is_for`, but each of the hosts must match."""
        return self.is_for(method, hosts) and (not (self.hosts or self.parent_hosts) or all(map(self._is_host, hosts)))

    def why_not(self, method: str, host: str) -> str:
        """Why a request of this method and host does not match; "" where it does."""
        if self.methods and method not in self.methods:
            return f"method {method} is not {' or '.join(sorted(self.methods))}"
        if (self.hosts or self.parent_hosts) and not any(map(self._is_host, hosts_of(host))):
            wanted = [*sorted(self.hosts), *("*" + parent for parent in self.parent_hosts)]
            return f"host {host or '(none)'} is not {' or '.join(wanted)}"
        return ""

    def _is_host(self, host: str) -> bool:
        return host in self.hosts or any(host.endswith(parent) for parent in self.parent_hosts)


@dataclass(frozen=True, slots=True)
class Tiers:
    """The source of a request's tier: the last part of an identity, which `map` may translate to a tier's name."""

    source: Identity
    map: FrozenMap[str, str] | None
    default: str


_ONE_REQUEST = FrozenMap({REQUESTS: 1})


@dataclass(frozen=True, slots=True)
class Rule:
    """Which requests are counted, by which key, and under which limits.

    `limits` has an entry for each tier that the rule names, and one for all others under `ANY_TIER`. `costs` are the
    rule's own costs of one request, by the units that the limits count; units that are not in it cost 0.
    """

    name: str
    conditions: Conditions
    key: Combination
    limits: FrozenMap[str, tuple[NamedLimit, ...]]
    costs: FrozenMap[str, int] = _ONE_REQUEST
    default: bool = False
    shadow: bool = False
    on_store_error: OnStoreError | Literal[""] = ""
    """The rule's own choice; empty for that of the caller or the policy. `limits` have the policy's already."""

    warn_percent: int = 0
    """The used share of a limit, in percent, at which calls of language models trigger a warning; 0 for never."""

    hold: HoldMode = "expected"
    """How much output a call of a language model holds."""

    at_end: AtEnd = "cut"
    """The action on a stream for which no further slice can be held."""

    wait_us: int = 0
    """How long a request may wait in line before the rule refuses it; 0 where it refuses at once."""

    @property
    def by(self) -> tuple[str, ...]:
        """The names of the identities that the rule's key consists of."""
        return self.key.names

    @property
    def is_tiered(self) -> bool:
        """Whether the limits depend on the request's tier."""
        return len(self.limits) > 1

    def units(self, tier: str) -> tuple[str, ...]:
        """The units that the limits of a tier count: each has a key and a cost of its own in a decision."""
        return units_of(named.limit for named in self.limits[self.tier(tier)])

    @property
    def all_units(self) -> tuple[str, ...]:
        """The units that the limits of any tier count."""
        return units_of(named.limit for limits in self.limits.values() for named in limits)

    @property
    def in_flight(self) -> bool:
        """Whether a limit of any tier counts requests in flight, so that requests are held."""
        return any(not named.limit.is_rate for limits in self.limits.values() for named in limits)

    def cost_in(self, unit: str) -> int:
        """The rule's own cost of one request in a unit."""
        return self.costs.get(unit, 0)

    def tier(self, tier: str) -> str:
        """The key in `limits` for a request's tier."""
        return tier if tier in self.limits else ANY_TIER


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one system.

    `store` is a URL; `names_store` is whether the policy itself names it. `exempt` are requests to which no rule
    applies; `identities` has all identities by name, including built-in ones; `rulesets` are named sets of rules.
    """

    namespace: str
    generation: int
    store: str
    names_store: bool
    identities: FrozenMap[str, Identity]
    tiers: Tiers | None
    rules: tuple[Rule, ...]
    exempt: tuple[Conditions, ...]
    rulesets: FrozenMap[str, tuple[str, ...]]
    max_waiting: int = 1000
    """The most requests that may wait in line at one time, in each process."""

    llm: LlmSettings | None = None
    """The settings for calls of language models; None for a policy of other requests."""

    @property
    def conditions(self) -> Iterator[Conditions]:
        """All conditions: those of exemptions, then those of rules."""
        yield from self.exempt
        yield from (rule.conditions for rule in self.rules)

    @property
    def units(self) -> tuple[str, ...]:
        """`requests`, in which costs are stated, and the other units that any limit counts."""
        return tuple(dict.fromkeys((REQUESTS, *(unit for rule in self.rules for unit in rule.all_units))))

    @property
    def in_flight(self) -> bool:
        """Whether a limit of any rule counts requests in flight."""
        return any(rule.in_flight for rule in self.rules)

    @property
    def waits(self) -> bool:
        """Whether a rule lets requests wait in line before it refuses them."""
        return any(rule.wait_us for rule in self.rules)

    @property
    def looks_at_calls_alone(self) -> bool:
        """Whether the attributes of a call of a language model alone decide which rules apply, and their keys.

        False where a rule or a key depends on the HTTP request or on a function.
        """
        members = [member for rule in self.rules for member in rule.key.members]
        if self.tiers is not None:
            members.append(self.tiers.source)
        if not all(isinstance(leaf, AttributeIdentity) for member in members for leaf in leaves(member)):
            return False
        return not any(
            conditions.methods
            or conditions.hosts
            or conditions.parent_hosts
            or conditions.headers
            or conditions.paths
            or conditions.clients
            or conditions.entries
            for conditions in self.conditions
        )

    @property
    def counts_by_address(self) -> bool:
        """Whether a key or a condition may be the client's address."""
        identities = (leaf for rule in self.rules for member in rule.key.members for leaf in leaves(member))
        return any(isinstance(identity, AddressIdentity) for identity in identities) or any(
            conditions.clients is not None for conditions in self.conditions
        )
