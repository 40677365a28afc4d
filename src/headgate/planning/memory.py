"""The memory that the states of a policy's limits take on Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from headgate.algorithms.table import ALGORITHMS
from headgate.decision import NamedLimit
from headgate.holding import LEASE_S, remembered_us
from headgate.limits import Limit, units_of
from headgate.planning.redis_costs import (
    COSTS,
    ENTRY_BYTES,
    FIELD_BYTES,
    HELD_BYTES,
    HOLD_BYTES,
    LISTED_ENTRIES,
    NAME_BYTES,
    TABLE_BYTES,
)
from headgate.policy.compiled import ANY_TIER, Policy, Rule
from headgate.policy.identity import (
    AddressIdentity,
    AttributeIdentity,
    CookieIdentity,
    EntriesIdentity,
    EntryIdentity,
    FirstOf,
    HeaderIdentity,
    Identity,
    QueryIdentity,
)
from headgate.stores.redis.codec import KeyName
from headgate.stores.redis.url import DEFAULT_PREFIX

VALUE_BYTES = 36
"""The length of a user's identity: that of a UUID."""

ADDRESS_BYTES = 23

_DIGEST_BYTES, _PLACE_BYTES = 32, 24
_LONGEST_TEXT, _HASHED_TEXT = 128, 41
_SHARED_IDENTITIES = ("endpoint", "host", "method")
"""Identities that do not distinguish users."""


@dataclass(frozen=True, slots=True)
class LimitNeeds:
    """The memory of one limit. `shared` if all requests count on one key, or on a few."""

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


def needs_of(rule: Rule, users: int, rate: float) -> list[LimitNeeds]:
    """The needs of a rule's limits, in the tier with the highest needs."""
    tiers = [_needs_of_tier(rule, tier, limits, users, rate) for tier, limits in rule.limits.items()]
    return max(tiers, key=lambda needs: sum(need.total_bytes for need in needs))


def _needs_of_tier(rule: Rule, tier: str, limits: Sequence[NamedLimit], users: int, rate: float) -> list[LimitNeeds]:
    """A key's states of one unit are fields of one hash, which lives as long as the longest of them."""
    needs: list[LimitNeeds] = []
    for unit in units_of(named.limit for named in limits):
        needs += _needs_of_hash(rule, tier, [named for named in limits if named.limit.of == unit], users, rate)
    return needs


def _needs_of_hash(rule: Rule, tier: str, limits: Sequence[NamedLimit], users: int, rate: float) -> list[LimitNeeds]:
    life_s = max((_life_s(rule, named.limit) for named in limits), default=0.0)
    needs: list[LimitNeeds] = []
    for named in limits:
        costs = COSTS[named.limit.algorithm]
        if named is limits[0]:
            state_bytes = costs.state_bytes + _name_bytes(rule, named) - NAME_BYTES
        else:
            state_bytes = costs.more_bytes
        # One table for all fields of a key, counted with its first log.
        table_bytes = 0 if any(need.entries for need in needs) else TABLE_BYTES + (len(limits) - 1) * FIELD_BYTES
        needs.append(
            _needs(rule, tier, named, users, rate, life_s=life_s, state_bytes=state_bytes, table_bytes=table_bytes)
        )
    return needs


def _needs(
    rule: Rule,
    tier: str,
    named: NamedLimit,
    users: int,
    rate: float,
    *,
    life_s: float,
    state_bytes: int,
    table_bytes: int,
) -> LimitNeeds:
    """By Little's law, the number of states is that of the requests during the time that one keeps its state alive."""
    limit = named.limit
    keys = _keys(rule, users)
    states = min(keys, ceil(rate * life_s)) if limit.quota else 0
    entries = 0
    if ALGORITHMS[limit.algorithm].is_log:
        # Expired entries are removed at the next request, or with the key.
        entries = min(
            states * (limit.quota // max(1, rule.cost_in(limit.of))), ceil(rate * (life_s + limit.period_us / 1e6))
        )
    extra = max(0, entries - states) * ENTRY_BYTES + min(states, entries // (LISTED_ENTRIES + 1)) * table_bytes
    return LimitNeeds(
        rule=rule.name,
        tier=tier if len(rule.limits) > 1 and tier != ANY_TIER else "",
        limit=str(limit),
        counted_by=rule.by,
        shared=is_shared(rule),
        states=states,
        life_s=round(life_s, 3),
        state_bytes=state_bytes,
        entries=entries,
        total_bytes=states * state_bytes + extra,
    )


def needs_of_holds(policy: Policy, rate: float, limits: int) -> LimitNeeds:
    """The needs of the records of holds, each of `limits` limits: each is remembered, settled or not."""
    all_limits = [named for rule in policy.rules for limits_of_tier in rule.limits.values() for named in limits_of_tier]
    life_s = LEASE_S + remembered_us(all_limits, 0) / 1e6
    records, record_bytes = ceil(rate * life_s), HOLD_BYTES + (limits - 1) * HELD_BYTES
    return LimitNeeds(
        rule="holds",
        tier="",
        limit="their records",
        counted_by=("request",),
        shared=False,
        states=records,
        life_s=round(life_s, 3),
        state_bytes=record_bytes,
        entries=0,
        total_bytes=records * record_bytes,
    )


def _life_s(rule: Rule, limit: Limit) -> float:
    """The longest time that a request keeps a state alive: until the state is as none, an eighth more, and two seconds.

    A request whose cost in the limit's unit is unknown may take the whole quota.
    """
    if not limit.is_rate:
        return LEASE_S + 2
    return limit.life_us(rule.cost_in(limit.of) or limit.quota) / 1e6 * 1.125 + 2


def is_shared(rule: Rule) -> bool:
    """Whether all requests count on one key or on a few."""
    return all(name in _SHARED_IDENTITIES for name in rule.by)


def _keys(rule: Rule, users: int) -> int:
    """The number of keys of `users`: one for each, times the parts that are counted separately."""
    parts = 1
    if "endpoint" in rule.by:
        parts *= max(1, len(rule.conditions.paths))
    if "method" in rule.by:
        parts *= len(rule.conditions.methods) or 8
    if "host" in rule.by:
        parts *= max(1, len(rule.conditions.hosts))
    return parts if is_shared(rule) else users * parts


def _name_bytes(rule: Rule, named: NamedLimit) -> int:
    parts = [_part_bytes(identity) for identity in rule.key.members] or [len("everyone")]
    text = sum(parts) + len(parts) - 1
    text = text if text <= _LONGEST_TEXT else _HASHED_TEXT
    return len(KeyName(DEFAULT_PREFIX, named).of("")) + text


def _part_bytes(identity: Identity) -> int:
    """The usual maximum length of an identity's text."""
    match identity:
        case FirstOf():
            return max(len(member.name) + 1 + _part_bytes(member) for member in identity.members)
        case AddressIdentity():
            return ADDRESS_BYTES
        case AttributeIdentity():
            return VALUE_BYTES
        case HeaderIdentity() | CookieIdentity() | QueryIdentity() | EntryIdentity():
            return _DIGEST_BYTES if identity.secret else VALUE_BYTES
        case EntriesIdentity():
            return _DIGEST_BYTES if identity.secret else VALUE_BYTES + _PLACE_BYTES
        case _:
            return _PLACE_BYTES
