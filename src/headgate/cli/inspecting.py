"""`headgate inspect` and `headgate reset`: the states of a policy's keys in a live store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import click

from headgate.amounts import REQUESTS, base_unit, grouped_text, is_money
from headgate.cli.policies import policy_of
from headgate.cli.terminal import printable
from headgate.decision import LimitReading
from headgate.errors import ConfigError
from headgate.keys import encode_key
from headgate.policy.compiled import ANY_TIER, Policy, Rule
from headgate.policy.lookup import Found, RuleKey, find_keys, missing_identities_message
from headgate.stores.protocol import Store
from headgate.stores.url import check_store_url, existing_zone, open_store

_PATIENCE = "timeout=2s"
"""A person can wait longer than a request. A deadline in the URL takes precedence."""

_Row = tuple[RuleKey, str, list[LimitReading]]
"""A key of a rule, a tier, and the reading of each limit."""


def run_inspect(file: Path, keys: tuple[str, ...], *, store: str | None, rule: str | None, as_json: bool) -> None:
    """Show what remains of each limit for a key, in every tier."""
    policy = policy_of(file)
    found = find_keys(policy, keys, only=rule)
    with _live_store(policy, store) as live:
        rows = [row for key in found.keys for row in _readings_of(live, key)]
    _warn_incomplete(found)
    if as_json:
        click.echo(json.dumps([_as_json(key, tier, reading) for key, tier, readings in rows for reading in readings]))
    else:
        click.echo(printable("\n".join(_lines(policy, rows))))


def run_reset(file: Path, keys: tuple[str, ...], *, store: str | None, rule: str | None) -> None:
    """Forget what a key used, under all limits of the rules that count by it."""
    policy = policy_of(file)
    found = find_keys(policy, keys, only=rule)
    with _live_store(policy, store) as live:
        for key in found.keys:
            bound = [(live.bind(limits), len(key.rule.units(tier))) for tier, limits in tiers_of(key.rule)]
            held = [limits.reset((key.parts,) * groups) for limits, groups in bound]
            shown = printable(encode_key(key.parts))
            if any(held):
                click.echo(f"{key.rule.name}: forgot what {shown} used")
            elif not key.guessed:
                click.echo(f"{key.rule.name}: nothing was held of {shown}")
    _warn_incomplete(found)


def tiers_of(rule: Rule) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The limits of each tier, without the default where it is one of the others."""
    for tier, limits in rule.limits.items():
        if tier != ANY_TIER or not any(limits is other for name, other in rule.limits.items() if name != ANY_TIER):
            yield tier, limits


def _readings_of(store: Store, key: RuleKey) -> list[_Row]:
    """The readings of a key in each tier; none where the key was a guess and the store holds nothing of it."""
    rows: list[_Row] = []
    for tier, limits in tiers_of(key.rule):
        rows.append((key, tier, list(store.bind(limits).peek(key.parts, 0).limits)))
    held = any(reading.reset_after_us for _, _, readings in rows for reading in readings)
    return rows if held or not key.guessed else []


@contextmanager
def _live_store(policy: Policy, url: str | None) -> Iterator[Store]:
    """The store itself, until the end of the block, without the guard that would decide in its place."""
    store = _open(policy.store if url is None else url)
    try:
        yield store
    finally:
        store.close()


def _open(url: str) -> Store:
    check_store_url(url)
    kind = url.partition(":")[0].lower()
    if kind == "memory":
        raise ConfigError(
            "a memory store is in the process that asks it, where no other process can look: name a store that is "
            "shared, as --store redis://HOST or --store shared:///PATH"
        )
    if kind == "shared":
        return existing_zone(url)
    options = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    store = open_store(url if "timeout" in options else f"{url}{'&' if options else '?'}{_PATIENCE}")
    return store.unguarded


def _warn_incomplete(found: Found) -> None:
    for rule, names in found.incomplete:
        click.echo(f"headgate: {missing_identities_message(rule, names)}", err=True)


def _as_json(key: RuleKey, tier: str, reading: LimitReading) -> dict[str, Any]:
    return {
        "rule": key.rule.name,
        "key": encode_key(key.parts),
        "tier": tier,
        "limit": str(reading.definition.limit),
        "name": reading.name,
        "scope": reading.definition.scope,
        "shadow": reading.shadow,
        "held": reading.reset_after_us > 0,
        "unit": base_unit(reading.unit),
        "quota": reading.limit,
        "remaining": reading.remaining,
        "next_after_us": reading.next_after_us,
        "reset_after_us": reading.reset_after_us,
    }


def _lines(policy: Policy, rows: list[_Row]) -> Iterator[str]:
    width = max(len(rule.name) for rule in policy.rules)
    before: RuleKey | None = None
    for key, tier, readings in rows:
        if key is not before:
            shadow = " (shadow)" if key.rule.shadow else ""
            by = " and ".join(key.rule.by)
            yield f"{key.rule.name:{width}}  {f'by {by}: key ' if by else ''}{encode_key(key.parts)}{shadow}"
            before = key
        for reading in readings:
            yield f"{'':{width}}  {f'{tier}: ' if tier else ''}{reading.definition.limit}: {_remaining_text(reading)}"


def _remaining_text(reading: LimitReading) -> str:
    quota = grouped_text(reading.limit, reading.unit)
    quota = quota if reading.unit == REQUESTS else f"{quota} {reading.unit}"
    if not reading.reset_after_us:
        return f"nothing is held, all {quota} left"
    if not reading.definition.limit.is_rate:
        free = grouped_text(reading.remaining, reading.unit)
        return f"{free} of {quota} free, all in {reading.reset_after_us / 1e6:.3f} s at the latest"
    soon = reading.next_after_us
    one_more = 0 < soon < reading.reset_after_us and not is_money(reading.unit)
    more = f", one more in {soon / 1e6:.3f} s" if one_more else ""
    remaining = grouped_text(reading.remaining, reading.unit)
    return f"{remaining} of {quota} left{more}, all in {reading.reset_after_us / 1e6:.3f} s"
