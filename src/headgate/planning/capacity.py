"""What a policy needs of Redis for so many users and requests: memory, decisions a second, and servers.

Computed from what was measured (`redis_costs`), on the safe side: it says what it assumes. See docs/capacity.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import ceil
from typing import Literal, cast

from headgate.decision import NamedLimit
from headgate.errors import ConfigError
from headgate.limits import Limit
from headgate.planning import redis_costs
from headgate.planning.cluster_check import check_shape
from headgate.planning.redis_costs import COSTS, ENTRY_BYTES, NAME_BYTES
from headgate.policy.compiled import ANY_TIER, Candidate, Policy, Rule, without_idle_defaults
from headgate.policy.path_templates import template_segments
from headgate.stores.protocol import Store
from headgate.stores.redis.codec import key_name
from headgate.stores.redis.url import DEFAULT_PREFIX

MEMORY_FACTOR = 1.5
"""Memory to give for each byte of states."""

BUSY_SHARE = 0.6
"""How much of its time a server is planned to compute."""

SERVER_BYTES = 16 << 30
"""Memory of one server at the most: a larger one takes too long to load and to copy."""

LEAST_SHARDS = 3
VALUE_BYTES = 36
"""Length of what identifies a user: that of a UUID."""

_DIGEST_BYTES, _ADDRESS_BYTES, _PLACE_BYTES = 32, 23, 24
_LONGEST_TEXT, _HASHED_TEXT = 128, 41
_MOST_REQUESTS = 4096
_BELONG_TO_ALL = ("endpoint", "host", "method")
"""Identities that tell no users apart."""

Layout = Literal["single", "cluster"]


@dataclass(frozen=True, slots=True)
class LimitNeeds:
    """Memory of one limit. `shared` where all requests count on one key, or on a few."""

    rule: str
    tier: str
    limit: str
    counted_by: tuple[str, ...]
    shared: bool
    states: int
    life_s: float
    state_bytes: int
    entries: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Dearest:
    """The request that costs most, of all that the policy's rules are for."""

    method: str
    path: str
    host: str
    rules: tuple[str, ...]
    limits: int
    calls: int
    """Round trips in a Cluster: one for each key. One server answers in one."""


@dataclass(frozen=True, slots=True)
class SharedKey:
    """Limits on one key that all requests count on: one shard decides them, however many there are."""

    rules: tuple[str, ...]
    ceiling: int
    """Decisions a second that a shard is planned to make on it."""

    leased: bool
    """Whether that is too few, so that processes must take parts of it in advance."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is needed, and how it was found."""

    users: int
    rate: float
    limits: tuple[LimitNeeds, ...]
    state_bytes: int
    memory_bytes: int
    request: Dearest
    saturated: int
    """Decisions a second of one server that does nothing else, on such requests."""

    planned: int
    layout: Layout
    shards: int
    round_trips: int
    shared_keys: tuple[SharedKey, ...]
    obstacle: str
    """Why this policy cannot be kept by a Cluster, though it needs one; else empty."""

    assumptions: tuple[str, ...]


def capacity(policy: Policy, *, users: int, rate: float) -> Capacity:
    """What so many users need that make so many requests a second, all together."""
    needs = tuple(need for rule in policy.rules for need in _worst_tier(policy, rule, users, rate))
    state_bytes = sum(need.total_bytes for need in needs)
    memory_bytes = ceil(state_bytes * MEMORY_FACTOR)
    dearest, chosen = max(
        _requests(policy), key=lambda found: _seconds(_limits(found[1])), default=(("GET", "", "/"), ())
    )
    groups = _groups(chosen)
    shared = {index: _shared_key(group, rate) for index, group in enumerate(groups) if _is_shared(group[0].rule)}
    kept = [group for index, group in enumerate(groups) if index not in shared or not shared[index].leased]
    seconds = _seconds(_limits(chosen))
    seconds_kept = _seconds([limit for group in kept for limit in _limits(group)])
    single = rate * seconds_kept <= BUSY_SHARE and memory_bytes <= SERVER_BYTES
    shards = 1 if single else _shards(sum(_seconds(_limits(group)) for group in kept), rate, memory_bytes)
    method, host, path = dearest
    return Capacity(
        users=users,
        rate=rate,
        limits=needs,
        state_bytes=state_bytes,
        memory_bytes=memory_bytes,
        request=Dearest(method, path, host, tuple(rule.name for rule, _ in chosen), len(_limits(chosen)), len(groups)),
        saturated=int(1 / seconds) if seconds else 0,
        planned=int(BUSY_SHARE / seconds) if seconds else 0,
        layout="single" if single else "cluster",
        shards=shards,
        round_trips=1 if single else len(kept),
        shared_keys=tuple(shared.values()),
        obstacle="" if single else _obstacle(policy),
        assumptions=_assumptions(),
    )


def _worst_tier(policy: Policy, rule: Rule, users: int, rate: float) -> list[LimitNeeds]:
    """The needs of a rule's limits, in the tier that needs most."""
    tiers = [_needs_of_tier(policy, rule, tier, limits, users, rate) for tier, limits in rule.limits.items()]
    return max(tiers, key=lambda needs: sum(need.total_bytes for need in needs))


def _needs_of_tier(
    policy: Policy, rule: Rule, tier: str, limits: Sequence[NamedLimit], users: int, rate: float
) -> list[LimitNeeds]:
    """A key's states are fields of one hash, which lives as long as the longest of them."""
    life_s = max((_life_s(named.limit, rule.cost) for named in limits), default=0.0)
    needs = []
    for named in limits:
        costs = COSTS[named.limit.algorithm]
        if named is limits[0]:
            state_bytes = costs.state_bytes + _name_bytes(policy, rule, named) - NAME_BYTES
        else:
            state_bytes = costs.more_bytes
        needs.append(_needs(rule, tier, named, users, rate, life_s=life_s, state_bytes=state_bytes))
    return needs


def _needs(
    rule: Rule, tier: str, named: NamedLimit, users: int, rate: float, *, life_s: float, state_bytes: int
) -> LimitNeeds:
    """By Little's law as many states live at once as requests come in the time that one keeps its state alive."""
    limit = named.limit
    keys = _keys(rule, users)
    states = min(keys, ceil(rate * life_s)) if limit.quota else 0
    entries = 0
    if limit.algorithm == "sliding_log":
        # What has left is cut off at the next request, or goes with the key.
        entries = min(states * (limit.quota // rule.cost), ceil(rate * (life_s + limit.period_us / 1e6)))
    extra = max(0, entries - states) * ENTRY_BYTES
    return LimitNeeds(
        rule=rule.name,
        tier=tier if len(rule.limits) > 1 and tier != ANY_TIER else "",
        limit=str(limit),
        counted_by=rule.by,
        shared=_is_shared(rule),
        states=states,
        life_s=round(life_s, 3),
        state_bytes=state_bytes,
        entries=entries,
        total_bytes=states * state_bytes + extra,
    )


def _life_s(limit: Limit, cost: int) -> float:
    """How long one request keeps a state alive at the most: until it is as none, an eighth of that, and two seconds."""
    period_s = limit.period_us / 1e6
    if limit.algorithm in ("fixed_window", "sliding_log"):
        own_s = period_s
    elif limit.algorithm == "sliding_window":
        own_s = 2 * period_s
    else:
        compiled = limit.compiled
        own_s = cost * compiled.period / compiled.refill * compiled.unit_us / 1e6
    return own_s * 1.125 + 2


def _is_shared(rule: Rule) -> bool:
    return all(name in _BELONG_TO_ALL for name in rule.by)


def _keys(rule: Rule, users: int) -> int:
    """The keys that so many users make: each its own, times what is counted apart besides."""
    apart = 1
    if "endpoint" in rule.by:
        apart *= max(1, len(rule.conditions.paths))
    if "method" in rule.by:
        apart *= len(rule.conditions.methods) or 8
    if "host" in rule.by:
        apart *= max(1, len(rule.conditions.hosts))
    return apart if _is_shared(rule) else users * apart


def _name_bytes(policy: Policy, rule: Rule, named: NamedLimit) -> int:
    parts = [_part_bytes(policy, name) for name in rule.by] or [len("everyone")]
    text = sum(parts) + len(parts) - 1
    text = text if text <= _LONGEST_TEXT else _HASHED_TEXT
    return len(key_name(DEFAULT_PREFIX, "", named)) + text


def _part_bytes(policy: Policy, name: str) -> int:
    """The longest text that an identity gives, usually."""
    model = policy.model.identities.get(name)
    if model is None:
        return _ADDRESS_BYTES if name == "ip" else _PLACE_BYTES
    if model.first_of is not None:
        return max(len(member) + 1 + _part_bytes(policy, member) for member in model.first_of)
    if model.ip is not None:
        return _ADDRESS_BYTES
    return _DIGEST_BYTES if model.secret else VALUE_BYTES


def _requests(policy: Policy) -> Iterator[tuple[tuple[str, str, str], tuple[Candidate, ...]]]:
    """Requests that meet the rules together as far as they can be met: (method, host, path), and the rules."""
    conditions = [rule.conditions for rule in policy.rules]
    methods = sorted({method for each in conditions for method in each.methods} | {"GET"})
    hosts = {host for each in conditions for host in (*each.hosts, *(f"x{parent}" for parent in each.parent_hosts))}
    paths = dict.fromkeys(_path(template) for each in conditions for template in each.paths)
    for method, host, path in islice(product(methods, ["", *sorted(hosts)], [*paths, "/"]), _MOST_REQUESTS):
        candidates = policy.candidates(policy.kind(method, host, path))
        if any(not exempt.look_further for exempt in candidates.exempt):
            continue
        for headers in (True, False):
            matched = [one for one in candidates.rules if headers or not one.rule.conditions.look_further]
            yield (method, host, path), without_idle_defaults(matched)


def _path(template: str) -> str:
    """A path that a template is for."""
    segments = [
        "x" if segment.startswith("{") or segment == "**" else segment for segment in template_segments(template)
    ]
    return "/" + "/".join(segments)


def _groups(chosen: Iterable[Candidate]) -> list[list[Candidate]]:
    """Rules by the key that they count on: each key has its own slot in a Cluster."""
    groups: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in chosen:
        place = candidate.rule.conditions.paths if "endpoint" in candidate.rule.by else ()
        groups.setdefault((candidate.rule.by, place), []).append(candidate)
    return list(groups.values())


def _limits(chosen: Iterable[Candidate]) -> list[NamedLimit]:
    """The limits of these rules, each in the tier that takes longest to decide."""
    return [limit for rule, _ in chosen for limit in max(rule.limits.values(), key=_seconds)]


def _seconds(limits: Sequence[NamedLimit]) -> float:
    """How long a server computes for one decision of these limits: what a call takes, and each limit in it."""
    costs = [COSTS[named.limit.algorithm] for named in limits]
    if not costs:
        return 0.0
    each = [max(0.0, 1 / cost.three - 1 / cost.one) / 2 for cost in costs]
    return max(1 / cost.one - own for cost, own in zip(costs, each, strict=True)) + sum(each)


def _shared_key(group: Sequence[Candidate], rate: float) -> SharedKey:
    ceiling = int(BUSY_SHARE / _seconds(_limits(group)))
    return SharedKey(tuple(rule.name for rule, _ in group), ceiling, leased=rate > ceiling)


def _shards(seconds: float, rate: float, memory_bytes: int) -> int:
    """Shards of a Cluster. One that has a shared key is given fewer slots of the others."""
    return max(LEAST_SHARDS, ceil(rate * seconds / BUSY_SHARE), ceil(memory_bytes / SERVER_BYTES))


class _AnyCluster:
    """What a store says of itself whose keys lie on several servers."""

    is_cluster = True


def _obstacle(policy: Policy) -> str:
    try:
        check_shape(policy, cast(Store, _AnyCluster()))
    except ConfigError as error:
        return error.message
    return ""


def _assumptions() -> tuple[str, ...]:
    return (
        "all users ask alike and have a key in each rule; every request is of the dearest kind, and admitted",
        f"a user's name has {VALUE_BYTES} characters, an address {_ADDRESS_BYTES}; all users are in the dearest tier",
        "a state lives until it is as none, an eighth of that time longer, and two seconds; "
        "a log holds its quota, if so many come",
        f"memory is {MEMORY_FACTOR:g} times the states, for fragmentation, expired ones, buffers, and copies when "
        f"saving; {SERVER_BYTES >> 30} GiB a server at the most; each replica needs as much again",
        f"a server computes {BUSY_SHARE * 100:.0f} % of the time; calls reach it several at a time, as from the "
        "async store",
        f"measured on {redis_costs.DAY} with {redis_costs.SERVER}, {redis_costs.MACHINE}",
        redis_costs.METHOD,
    )
