"""Compiles the model of a policy file: resolves names, fills in defaults, names limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headgate.decision import NamedLimit, name_limits
from headgate.limits import units_of
from headgate.policy.client_address import UNIX, AddressRules, Network
from headgate.policy.compiled import ALL_RULES, ANY_TIER, ClientNetworks, Conditions, Policy, Rule, Tiers
from headgate.policy.frozen_map import FrozenMap
from headgate.policy.headers import header_name
from headgate.policy.identity import (
    BUILT_IN,
    AddressIdentity,
    AttributeIdentity,
    Combination,
    CookieIdentity,
    EndpointIdentity,
    EntriesIdentity,
    EntryIdentity,
    FirstOf,
    HeaderIdentity,
    HostIdentity,
    Identity,
    MethodIdentity,
    QueryIdentity,
)
from headgate.policy.llm_schema import LlmModel
from headgate.policy.llm_settings import CALL_IDENTITIES, LlmSettings
from headgate.policy.rule_costs import costs_of, costs_of_calls
from headgate.policy.schema import ClientIpModel, IdentityModel, MatchModel, PolicyModel, RuleModel, TiersModel


def compile_policy(model: PolicyModel) -> Policy:
    """Compile a model that was checked to a policy."""
    addresses = _address_rules(model.client_ip)
    call_identities = CALL_IDENTITIES if model.llm is not None else ()
    identities = _identities(model.identities, addresses, call_identities)
    groups = model.llm.models if model.llm is not None else {}
    rules = tuple(_rule(rule, model, identities, addresses) for rule in model.rules)
    rulesets = {ALL_RULES: tuple(rule.name for rule in rules)}
    rulesets |= {name: tuple(members) for name, members in model.rulesets.items()}
    return Policy(
        namespace=model.namespace,
        generation=model.generation,
        store=model.store,
        names_store="store" in model.model_fields_set,
        identities=FrozenMap(identities),
        tiers=None if model.tiers is None else _tiers(model.tiers, identities),
        rules=rules,
        exempt=tuple(_conditions(match, addresses, groups) for match in model.exempt),
        rulesets=FrozenMap(rulesets),
        max_waiting=model.max_waiting,
        llm=None if model.llm is None else _llm(model.llm),
    )


def _llm(model: LlmModel) -> LlmSettings:
    return LlmSettings(
        models=FrozenMap(model.models),
        prices=FrozenMap({name: FrozenMap(price) for name, price in model.prices.items()}),
        unknown_price=model.unknown_price,
        hold=model.hold,
        expected_output=model.expected_output,
        max_output=model.max_output,
        hidden_input=model.hidden_input,
        web_searches=model.web_searches,
        slice=model.slice,
        at_end=model.at_end,
        lease_us=model.lease,
        webhook=model.webhook or "",
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


def _identities(
    models: Mapping[str, IdentityModel], addresses: AddressRules, call_identities: Iterable[str]
) -> dict[str, Identity]:
    """Every identity by its name: the built-in ones, then those of the policy."""
    known: dict[str, Identity] = {
        "ip": AddressIdentity("ip", addresses),
        "host": HostIdentity(),
        "method": MethodIdentity(),
        "endpoint": EndpointIdentity(),
        **{name: AttributeIdentity(name) for name in call_identities},
    }

    def resolve(name: str) -> Identity:
        if name not in known:
            model = models[name]
            if model.first_of is not None:
                known[name] = FirstOf(name, tuple(resolve(member) for member in model.first_of))
            else:
                known[name] = _identity(name, model, addresses)
        return known[name]

    return {name: resolve(name) for name in (*BUILT_IN, *call_identities, *models)}


def _identity(name: str, model: IdentityModel, addresses: AddressRules) -> Identity:
    if model.header is not None:
        return HeaderIdentity(name, header_name(model.header), model.secret)
    if model.cookie is not None:
        return CookieIdentity(name, model.cookie, model.secret)
    if model.query is not None:
        return QueryIdentity(name, model.query, model.secret)
    if model.entry is not None:
        return EntryIdentity(name, model.entry, model.secret)
    if model.entries is not None:
        return EntriesIdentity(name, model.secret)
    if model.ip is None:
        raise AssertionError("the model has one source for every identity")
    rules = replace(addresses, ipv4_prefix=model.ip.ipv4_prefix, ipv6_prefix=model.ip.ipv6_prefix)
    return AddressIdentity(name, rules)


def _tiers(model: TiersModel, identities: Mapping[str, Identity]) -> Tiers:
    source: Identity
    if model.source.header is not None:
        source = HeaderIdentity(model.source.header, header_name(model.source.header))
    elif model.source.cookie is not None:
        source = CookieIdentity(model.source.cookie, model.source.cookie)
    elif model.source.entry is not None:
        source = EntryIdentity(model.source.entry, model.source.entry)
    else:
        source = identities[model.source.identity or ""]
    return Tiers(source, None if model.map is None else FrozenMap(model.map), model.default)


def _conditions(match: MatchModel | None, addresses: AddressRules, groups: Mapping[str, tuple[str, ...]]) -> Conditions:
    """The conditions of a match; no conditions where there is no match."""
    if match is None:
        return Conditions()
    hosts = [host.lower() for host in match.host or ()]
    clients = None
    if match.ip:
        networks = tuple(network for network in match.ip if isinstance(network, Network))
        clients = ClientNetworks(networks, UNIX in match.ip, addresses)
    return Conditions(
        methods=frozenset(match.method or ()),
        hosts=frozenset(host for host in hosts if not host.startswith("*.")),
        parent_hosts=tuple(host[1:] for host in hosts if host.startswith("*.")),
        headers=tuple(
            (header_name(name), None if values is True else frozenset(values))
            for name, values in (match.header or {}).items()
        ),
        paths=match.path or (),
        clients=clients,
        entries=match.entries,
        models=tuple(dict.fromkeys(model for name in match.model or () for model in groups.get(name, (name,)))),
    )


def _rule(model: RuleModel, policy: PolicyModel, identities: Mapping[str, Identity], addresses: AddressRules) -> Rule:
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
    units = units_of(limit for values in model.limits.values() for limit in values)
    return Rule(
        name=model.name,
        conditions=_conditions(model.match, addresses, policy.llm.models if policy.llm is not None else {}),
        key=Combination(
            tuple(identities[name] for name in model.by),
            missing="anonymous" if model.shadow else model.missing,  # a shadow rule refuses nothing
            repeated="count" if model.shadow else model.repeated,
        ),
        limits=FrozenMap(limits),
        costs=FrozenMap(costs_of(model.cost, units) if policy.llm is None else costs_of_calls(units)),
        default=model.default,
        shadow=model.shadow,
        on_store_error=model.on_store_error or "",
        warn_percent=model.warn or 0,
        hold=model.hold or (policy.llm.hold if policy.llm is not None else "expected"),
        at_end=model.at_end or (policy.llm.at_end if policy.llm is not None else "cut"),
        wait_us=0 if model.shadow else model.wait or 0,  # a shadow rule refuses nothing
    )
