"""A policy as data: what its file says, with names resolved and defaults filled in. Plain, immutable values.

`headgate.policy.compiler` makes it from the model of a file; `matching` and `extract` read it for a subject. Without
a `CallableIdentity` it has no functions: it prints, compares and can be pickled, and is all that another reader needs.
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
"""The ruleset that holds every rule, unless the policy gives the name to another."""

ANY_TIER = ""
"""The tier of limits that hold for all requests, and of tiers that a rule does not name."""


@dataclass(frozen=True, slots=True)
class ClientNetworks:
    """Networks that a client's address is in, and whether the peers of Unix sockets are; found by `rules`."""

    networks: tuple[Network, ...]
    unix: bool
    rules: AddressRules

    def __str__(self) -> str:
        return " or ".join([*map(network_text, self.networks), *([UNIX] if self.unix else [])])


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which requests are meant; all that is given must hold, and of several values one.

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
    """Names of language models in small letters, or beginnings of names with a `*`."""

    entries: EntryConditions | None = None
    """What a descriptor must have; a subject that is none is not meant."""

    @property
    def look_further(self) -> bool:
        """Whether more of a request matters than its method, host and path."""
        return bool(self.headers or self.models) or self.clients is not None or self.entries is not None

    def is_for(self, method: str, hosts: Collection[str]) -> bool:
        """Whether a request of this method is meant, sent to these hosts: one is enough."""
        if self.methods and method not in self.methods:
            return False
        return not (self.hosts or self.parent_hosts) or any(map(self._is_host, hosts))

    def is_surely_for(self, method: str, hosts: Collection[str]) -> bool:
        """`is_for`, where each of the hosts must be meant."""
        return self.is_for(method, hosts) and (not (self.hosts or self.parent_hosts) or all(map(self._is_host, hosts)))

    def why_not(self, method: str, host: str) -> str:
        """Why a request of this method and host is not meant, "" where it is."""
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
    """Where a request's tier is read from: the last part of an identity, which `map` may give another name."""

    source: Identity
    map: FrozenMap[str, str] | None
    default: str


_ONE_REQUEST = FrozenMap({REQUESTS: 1})


@dataclass(frozen=True, slots=True)
class Rule:
    """Which requests are counted, as what, and under which limits.

    `limits` has an entry for each tier that the rule names, and one for all others under `ANY_TIER`. `costs` are what
    one request takes of each unit that the limits count, as the rule says: of units that are not there, nothing.
    """

    name: str
    conditions: Conditions
    key: Combination
    limits: FrozenMap[str, tuple[NamedLimit, ...]]
    costs: FrozenMap[str, int] = _ONE_REQUEST
    default: bool = False
    shadow: bool = False
    on_store_error: OnStoreError | Literal[""] = ""
    """Its own choice, empty for that of the caller or of the policy; `limits` have the policy's already."""

    warn_percent: int = 0
    """The used share of a limit from which on a call of a language model is warned; 0 for never."""

    hold: HoldMode = "expected"
    """How much output a call of a language model holds."""

    at_end: AtEnd = "cut"
    """What becomes of a stream that no further slice can be held for."""

    wait_us: int = 0
    """How long a request may wait in line before the rule refuses it; 0 where it refuses at once."""

    @property
    def by(self) -> tuple[str, ...]:
        """The names of the identities that make its key."""
        return self.key.names

    @property
    def is_tiered(self) -> bool:
        """Whether the limits depend on the request's tier."""
        return len(self.limits) > 1

    def units(self, tier: str) -> tuple[str, ...]:
        """The units that its limits of a tier count: each has a key and a cost of its own in a decision."""
        return units_of(named.limit for named in self.limits[self.tier(tier)])

    @property
    def all_units(self) -> tuple[str, ...]:
        """The units that its limits of any tier count."""
        return units_of(named.limit for limits in self.limits.values() for named in limits)

    @property
    def in_flight(self) -> bool:
        """Whether a limit of any tier counts what is in flight, so that requests are held."""
        return any(not named.limit.is_rate for limits in self.limits.values() for named in limits)

    def cost_in(self, unit: str) -> int:
        """What one request takes of a unit, as the rule says."""
        return self.costs.get(unit, 0)

    def tier(self, tier: str) -> str:
        """The entry of `limits` that holds for a request's tier."""
        return tier if tier in self.limits else ANY_TIER


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one system.

    `store` is a URL; `names_store` tells whether the policy says so itself. `exempt` are requests that no rule is
    for; `identities` has all by name, the built-in ones among them; `rulesets` name some of the rules.
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
    """How many requests may wait in line at one time, in each process."""

    llm: LlmSettings | None = None
    """What it says of calls of language models, where it is of such."""

    @property
    def conditions(self) -> Iterator[Conditions]:
        """All conditions: those of exemptions, then those of rules."""
        yield from self.exempt
        yield from (rule.conditions for rule in self.rules)

    @property
    def units(self) -> tuple[str, ...]:
        """Requests, which costs are told in, and the other units that any of its limits count."""
        return tuple(dict.fromkeys((REQUESTS, *(unit for rule in self.rules for unit in rule.all_units))))

    @property
    def in_flight(self) -> bool:
        """Whether a limit of any rule counts what is in flight."""
        return any(rule.in_flight for rule in self.rules)

    @property
    def waits(self) -> bool:
        """Whether a rule lets requests wait in line before it refuses them."""
        return any(rule.wait_us for rule in self.rules)

    @property
    def looks_at_calls_alone(self) -> bool:
        """Whether a call of a language model tells itself which rules apply to it and by which keys they count it.

        It does not where that depends on its HTTP request, or on a function.
        """
        members = [member for rule in self.rules for member in rule.key.members]
        if self.tiers is not None:
            members.append(self.tiers.source)
        if not all(isinstance(leaf, AttributeIdentity) for member in members for leaf in leaves(member)):
            return False
        return not any(
            one.methods or one.hosts or one.parent_hosts or one.headers or one.paths or one.clients or one.entries
            for one in self.conditions
        )

    @property
    def counts_by_address(self) -> bool:
        """Whether a key or a condition may be the client's address."""
        identities = (leaf for rule in self.rules for member in rule.key.members for leaf in leaves(member))
        return any(isinstance(identity, AddressIdentity) for identity in identities) or any(
            conditions.clients is not None for conditions in self.conditions
        )
