"""A policy made ready to be asked: compiled once, then only looked up.

Which rules may be for a request depends on its method, host and path alone; what is left open then
are headers, the client's address and the tier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from headgate.decision import NamedLimit, name_limits
from headgate.policy.client_address import UNIX, AddressRules, Network, is_in, network_text
from headgate.policy.identity import (
    ANONYMOUS,
    EVERYONE,
    Extract,
    Parts,
    first_of,
    from_address,
    from_cookie,
    from_header,
    from_host,
    from_method,
    from_query,
    hosts_of,
    is_repeated,
)
from headgate.policy.path_tree import PathMatch, PathTree
from headgate.policy.request import REPEATED, Repeated, Request, header_name

if TYPE_CHECKING:
    from headgate.policy.schema import ClientIpModel, IdentityModel, MatchModel, PolicyModel, RuleModel, TiersModel

ALL_RULES = "default"
"""The ruleset that holds every rule, unless the policy gives the name to another."""

_CLIENTS_REMEMBERED = 8192
_LONGEST_REMEMBERED = 256

ANY_TIER = ""
"""The tier of limits that hold for everybody, and for tiers that a rule does not name."""


class ClientNetworks:
    """Networks in which a client's address is or is not, by the policy's rules on which proxies to believe."""

    __slots__ = ("_addresses", "_known", "_networks", "_unix")

    def __init__(self, networks: Sequence[Network | str], addresses: AddressRules) -> None:
        self._networks = tuple(network for network in networks if isinstance(network, Network))
        self._unix = UNIX in networks
        self._addresses = addresses
        self._known = lru_cache(_CLIENTS_REMEMBERED)(self._have)

    def have(self, request: Request) -> bool:
        """Whether the client of a request is in one of them."""
        header = self._addresses.header
        sent = request.headers.get(header, "") if header else ""
        return (self._known if len(sent) <= _LONGEST_REMEMBERED else self._have)(request.client_ip, sent)

    def _have(self, peer: str, header: str) -> bool:
        address = self._addresses.address(peer, header)
        if address is None:
            return self._unix and peer in ("", UNIX)
        return is_in(address, self._networks)

    def __str__(self) -> str:
        return " or ".join([*map(network_text, self._networks), *([UNIX] if self._unix else [])])


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a match asks of a request beyond its path."""

    methods: frozenset[str]
    hosts: frozenset[str]
    parent_hosts: tuple[str, ...]
    headers: tuple[tuple[str, frozenset[str] | None], ...]
    paths: tuple[str, ...]
    clients: ClientNetworks | None = None

    @classmethod
    def of(cls, match: MatchModel | None, addresses: AddressRules) -> Conditions:
        """The conditions of a match; none at all where there is no match. `addresses` tell clients' addresses."""
        if match is None:
            return cls(frozenset(), frozenset(), (), (), ())
        hosts = [host.lower() for host in match.host or ()]
        headers = (match.header or {}).items()
        return cls(
            methods=frozenset(match.method or ()),
            hosts=frozenset(host for host in hosts if not host.startswith("*.")),
            parent_hosts=tuple(host[1:] for host in hosts if host.startswith("*.")),
            headers=tuple(
                (header_name(name), None if values is True else frozenset(values)) for name, values in headers
            ),
            paths=match.path or (),
            clients=ClientNetworks(match.ip, addresses) if match.ip else None,
        )

    @property
    def look_further(self) -> bool:
        """Whether more of a request matters than its method, host and path."""
        return bool(self.headers) or self.clients is not None

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

    def why_not_further(self, request: Request) -> str:
        """Why a request is not meant by its headers and its client's address, "" where it is.

        Of a header that is there several times, it is any value that is meant.
        """
        return self._why_not_further(request, any)

    def why_not_surely(self, request: Request) -> str:
        """`why_not_further`, where every value of a header that is there several times must be meant."""
        return self._why_not_further(request, all)

    def _why_not_further(self, request: Request, some: Callable[[Iterable[bool]], bool]) -> str:
        if self.clients is not None and not self.clients.have(request):
            return f"the client's address is not in {self.clients}"
        for name, values in self.headers:
            sent = request.headers.get(name)
            if sent is None:
                return f"header {name} is not there"
            if values is None:
                continue
            value = request.header(name)
            several = [one.strip() for one in sent.values] if value is REPEATED and type(sent) is Repeated else [value]
            if not some(one in values for one in several):
                return f"header {name} is not {' or '.join(sorted(values))}"
        return ""

    def _is_host(self, host: str) -> bool:
        return host in self.hosts or any(host.endswith(parent) for parent in self.parent_hosts)


_NO_HOSTS = frozenset([""])

Kind = tuple[str, frozenset[str], PathMatch]
"""A method, hosts and what paths match, as far as a policy tells them apart."""


class Keyed(NamedTuple):
    """The key of a request. `quick` may give None for lack of an identity; then `whole` has the last word."""

    quick: Extract
    whole: Extract


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rule, compiled. `limits` has an entry for each tier it names, and one for all others under ""."""

    name: str
    conditions: Conditions
    by: tuple[str, ...]
    identities: Mapping[str, Extract]
    limits: Mapping[str, tuple[NamedLimit, ...]]
    cost: int
    default: bool
    shadow: bool
    refuse_missing: bool
    refuse_repeated: bool
    on_store_error: Literal["", "local", "open", "closed"]
    """Its own choice, empty for that of whoever asks or of the policy; `limits` have the policy's already."""

    def keyed(self, template: str) -> Keyed:
        """How requests whose path matched `template` are counted."""
        extracts = [_template(template) if name == "endpoint" else self.identities[name] for name in self.by]
        if self.refuse_repeated:
            extracts = [_unrepeated(extract) for extract in extracts]
        whole = partial(self._whole_key, extracts)
        if not extracts:
            return Keyed(_everyone, whole)
        if len(extracts) == 1:
            return Keyed(extracts[0], whole)
        if len(extracts) > 2:
            return Keyed(whole, whole)
        first, second = extracts

        def pair(request: Request) -> Parts | None:
            one, other = first(request), second(request)
            return one + other if one and other else None

        return Keyed(pair, whole)

    def _whole_key(self, extracts: Sequence[Extract], request: Request) -> Parts | None:
        """The key with what stands in for a missing identity; None where the rule refuses instead."""
        key: list[str] = []
        for name, extract in zip(self.by, extracts, strict=True):
            parts = extract(request)
            if not parts:
                if self.refuse_missing or parts is not None:
                    return None
                parts = (ANONYMOUS, name)
            key.extend(parts)
        return tuple(key) or EVERYONE

    def tier(self, tier: str) -> str:
        """The entry of `limits` that holds for a request's tier."""
        return tier if tier in self.limits else ANY_TIER

    @property
    def is_tiered(self) -> bool:
        """Whether the limits depend on the request's tier."""
        return len(self.limits) > 1


class Candidate(NamedTuple):
    """A rule that may be for a request, and how it counts requests of this path."""

    rule: Rule
    keyed: Keyed


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What method, host and path of a request leave open."""

    exempt: tuple[Conditions, ...]
    rules: tuple[Candidate, ...]

    @property
    def look_further(self) -> bool:
        """Whether headers or the client's address decide which of these apply."""
        return any(conditions.look_further for conditions in self.exempt) or any(
            rule.conditions.look_further for rule, _ in self.rules
        )

    def select(self, request: Request) -> tuple[Candidate, ...]:
        """The rules that apply to a request; none where it is exempt."""
        if any(not conditions.why_not_surely(request) for conditions in self.exempt):
            return ()
        matched = [candidate for candidate in self.rules if not candidate.rule.conditions.why_not_further(request)]
        return without_idle_defaults(matched)


def without_idle_defaults(matched: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """What applies of the rules that match: default rules only where no other enforced one is there."""
    if any(not (rule.default or rule.shadow) for rule, _ in matched):
        return tuple(candidate for candidate in matched if not candidate.rule.default)
    return tuple(matched)


class Policy:
    """The rules of one system, ready to be asked. Immutable.

    `store` is a URL; `names_store` tells whether the policy says so itself.
    """

    def __init__(self, model: PolicyModel) -> None:
        self.namespace = model.namespace
        self.generation = model.generation
        self.store = model.store
        self.names_store = "store" in model.model_fields_set
        self.model = model
        addresses = _address_rules(model.client_ip)
        identities = _identities(model.identities, addresses)
        self.rules = tuple(_rule(rule, model, identities, addresses) for rule in model.rules)
        self.exempt = tuple(Conditions.of(match, addresses) for match in model.exempt)
        self.rulesets = {ALL_RULES: tuple(rule.name for rule in self.rules), **_tuples(model.rulesets)}
        self.tier_of = _tier_source(model.tiers, identities)
        self.headers = _headers(model)
        self.counts_by_address = any(
            _is_address(name, model.identities) for rule in self.rules for name in rule.by
        ) or any(conditions.clients is not None for conditions in self._all_conditions())
        self._methods = frozenset(method for conditions in self._all_conditions() for method in conditions.methods)
        self._hosts = frozenset(host for conditions in self._all_conditions() for host in conditions.hosts)
        self._parent_hosts = tuple(
            dict.fromkeys(parent for conditions in self._all_conditions() for parent in conditions.parent_hosts)
        )
        self.looks_at_hosts = bool(self._hosts or self._parent_hosts)
        self._paths = PathTree()
        for owner, conditions in [
            *enumerate(rule.conditions for rule in self.rules),
            *((-1 - index, conditions) for index, conditions in enumerate(self.exempt)),
        ]:
            for template in conditions.paths:
                self._paths.add(template, owner)

    def kind(self, method: str, host: str, path: str) -> Kind:
        """What this policy sees in a method, a host and a path: all requests of one kind have the same candidates."""
        if method not in self._methods:
            method = ""
        hosts = frozenset(map(self._host_kind, hosts_of(host))) if host and self.looks_at_hosts else _NO_HOSTS
        return method, hosts, self._paths.match(path)

    def candidates(self, kind: Kind, ruleset: str = ALL_RULES) -> Candidates:
        """What may apply to requests of this kind, of the rules of a ruleset."""
        names = self.rulesets[ruleset]
        method, hosts, paths = kind
        rules = [
            Candidate(rule, rule.keyed(paths.found.get(index, "/**")))
            for index, rule in enumerate(self.rules)
            if rule.name in names
            and (index in paths.found or not rule.conditions.paths)
            and rule.conditions.is_for(method, hosts)
        ]
        exempt = tuple(
            conditions
            for index, conditions in enumerate(self.exempt)
            if (-1 - index in paths.surely or not conditions.paths) and conditions.is_surely_for(method, hosts)
        )
        return Candidates(exempt, tuple(rules))

    def _host_kind(self, host: str) -> str:
        """A host that stands for all that the conditions do not tell from this one."""
        if host in self._hosts:
            return host
        # The longest is below all the others that it is below of.
        return max((parent for parent in self._parent_hosts if host.endswith(parent)), key=len, default="")

    def _all_conditions(self) -> Iterator[Conditions]:
        yield from self.exempt
        yield from (rule.conditions for rule in self.rules)


def _is_address(name: str, models: Mapping[str, IdentityModel]) -> bool:
    """Whether an identity may be the client's address."""
    model = models.get(name)
    if model is None:
        return name == "ip"
    return model.ip is not None or any(_is_address(member, models) for member in model.first_of or ())


def _headers(model: PolicyModel) -> frozenset[str]:
    """The headers, in lower case, that a policy looks at."""
    matches = [*model.exempt, *(rule.match for rule in model.rules)]
    names = {name for match in matches if match is not None for name in match.header or ()}
    sources = [*model.identities.values(), *([model.tiers.source] if model.tiers else ())]
    names |= {source.header for source in sources if source.header}
    names |= {"cookie" for source in sources if source.cookie}
    names |= {model.client_ip.header} if model.client_ip.header else set()
    return frozenset(map(header_name, names))


def _rule(model: RuleModel, policy: PolicyModel, identities: Mapping[str, Extract], addresses: AddressRules) -> Rule:
    scope = f"{policy.namespace}/{policy.generation}/{model.name}"
    limits: dict[str, tuple[NamedLimit, ...]] = {
        tier: name_limits(
            values,
            scope=scope,
            name=model.name,
            rule=model.name,
            shadow=model.shadow,
            on_store_error=model.on_store_error or policy.on_store_error or "",
        )
        for tier, values in model.limits.items()
    }
    if ANY_TIER not in limits and policy.tiers is not None:
        limits[ANY_TIER] = limits[policy.tiers.default]
    return Rule(
        name=model.name,
        conditions=Conditions.of(model.match, addresses),
        by=tuple(model.by),
        identities=identities,
        limits=limits,
        cost=model.cost,
        default=model.default,
        shadow=model.shadow,
        refuse_missing=model.missing == "refuse" and not model.shadow,
        refuse_repeated=model.repeated == "refuse" and not model.shadow,
        on_store_error=model.on_store_error or "",
    )


def _address_rules(model: ClientIpModel) -> AddressRules:
    return AddressRules(
        header=header_name(model.header or ""),
        trusted=tuple(network for network in model.trusted_proxies if network != UNIX),
        trust_unix=UNIX in model.trusted_proxies,
        hops=model.trusted_hops or 0,
        ipv4_prefix=model.ipv4_prefix,
        ipv6_prefix=model.ipv6_prefix,
    )


def _identities(models: Mapping[str, IdentityModel], addresses: AddressRules) -> dict[str, Extract]:
    """Every identity by its name; those made of others come after them."""
    known: dict[str, Extract] = {
        "ip": from_address(addresses),
        "host": from_host,
        "method": from_method,
        "endpoint": _no_endpoint,
    }

    def resolve(name: str) -> Extract:
        if name not in known:
            model = models[name]
            if model.first_of is not None:
                known[name] = first_of(model.first_of, [resolve(member) for member in model.first_of])
            else:
                known[name] = _plain_identity(name, model, addresses)
        return known[name]

    for name in models:
        resolve(name)
    return known


def _plain_identity(name: str, model: IdentityModel, addresses: AddressRules) -> Extract:
    if model.header is not None:
        return from_header(model.header, secret=model.secret, called=name)
    if model.cookie is not None:
        return from_cookie(model.cookie, secret=model.secret, called=name)
    if model.query is not None:
        return from_query(model.query, secret=model.secret, called=name)
    if model.ip is None:
        raise AssertionError("the model has one source for every identity")
    return from_address(replace(addresses, ipv4_prefix=model.ip.ipv4_prefix, ipv6_prefix=model.ip.ipv6_prefix))


def _tier_source(model: TiersModel | None, identities: Mapping[str, Extract]) -> Callable[[Request], str]:
    """How a request's tier is found; a tier that nobody knows holds no surprise, see `Rule.tier`."""
    if model is None:
        return lambda request: ANY_TIER
    source = model.source
    if source.header is not None:
        extract = from_header(source.header, secret=False)
    elif source.cookie is not None:
        extract = from_cookie(source.cookie, secret=False)
    else:
        extract = identities[source.identity or ""]
    tiers = model.map

    def tier_of(request: Request) -> str:
        parts = extract(request)
        if parts is None or is_repeated(parts):
            return ANY_TIER
        return parts[-1] if tiers is None else tiers.get(parts[-1], ANY_TIER)

    return tier_of


def _unrepeated(extract: Extract) -> Extract:
    """The parts that an identity gives, () where it was sent several times."""

    def unrepeated(request: Request) -> Parts | None:
        parts = extract(request)
        return () if parts is not None and is_repeated(parts) else parts

    return unrepeated


def _everyone(request: Request) -> Parts:
    return EVERYONE


def _template(template: str) -> Extract:
    """The endpoint of a request: the framework's, else the template that its path matched."""
    parts = (template,)
    return lambda request: (request.endpoint,) if request.endpoint else parts


def _no_endpoint(request: Request) -> Parts | None:
    """An endpoint inside `first_of`, where no rule's template is known: the framework's, if it gave one."""
    return (request.endpoint,) if request.endpoint else None


def _tuples(lists: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in lists.items()}
