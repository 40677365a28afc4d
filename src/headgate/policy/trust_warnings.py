"""Warnings about whom a policy believes: tiers that no request gets, proxies that are every client, or exempt.

Each is certain from the policy alone, as those of `warnings` are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from headgate.policy.client_address import UNIX, Network, network_text
from headgate.policy.compiled import ANY_TIER
from headgate.policy.problems import Path, shown
from headgate.policy.schema import PolicyModel


def trust_warnings(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """All of them, each with its path."""
    yield from _idle_tiers(policy)
    yield from _proxies_that_are_everybody(policy)
    yield from _proxies_that_are_exempt(policy)
    for name, rules in policy.rulesets.items():
        if not rules:
            yield (
                ("rulesets", name),
                "has no rules: every request that is asked about with it passes, and is not counted",
            )


def _idle_tiers(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Tiers that the map gives and no rule has limits for, and limits of tiers that it never gives."""
    tiers = policy.tiers
    limited = dict.fromkeys(tier for rule in policy.rules for tier in rule.limits if tier != ANY_TIER)
    if tiers is None or tiers.map is None or not limited:
        return
    given = dict.fromkeys(tiers.map.values())
    for value, tier in tiers.map.items():
        if tier != tiers.default and tier not in limited:
            told = f"no rule has limits for the tier {shown(tier)}: its requests have those of {shown(tiers.default)}"
            yield ("tiers", "map", value), told + _meant(tier, limited)
    for index, rule in enumerate(policy.rules):
        for tier in rule.limits:
            if tier not in (ANY_TIER, tiers.default, *given):
                known = f"tiers.map gives {', '.join(given)[:200]}, and {tiers.default} is the default"
                told = f"no request has the tier {shown(tier)}: {known}"
                yield ("rules", index, "limits", tier), told + _meant(tier, given)


def _meant(tier: str, known: Iterable[str]) -> str:
    close = get_close_matches(tier, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _proxies_that_are_everybody(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Networks of trusted proxies that every client is in, where no number of hops says who is believed."""
    told = policy.client_ip
    if told.trusted_hops is not None:
        return
    for place, network in enumerate(told.trusted_proxies):
        if network != UNIX and not network.mask:
            every = "0.0.0.0/0" if network.length == 4 else "::/0"
            yield (
                ("client_ip", "trusted_proxies", place),
                f"{every} is every address: any client that sends {told.header} chooses the address that counts; name "
                "your proxies, or how many there are with trusted_hops",
            )


def _proxies_that_are_exempt(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Exemptions of addresses of trusted proxies, which every request has that hides where it comes from."""
    told = policy.client_ip
    for index, match in enumerate(policy.exempt):
        exempted = next((one for one in match.ip or () if any(_meet(one, proxy) for proxy in told.trusted_proxies)), "")
        if exempted:
            named = exempted if isinstance(exempted, str) else network_text(exempted)
            yield (
                ("exempt", index, "ip"),
                f"{named} has trusted proxies in it: where {told.header} cannot be read, because a client made it too "
                "long, the address is the proxy's; exempt no address of a proxy",
            )


def _meet(one: Network | str, other: Network | str) -> bool:
    """Whether two networks have addresses in common."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    mask = one.mask & other.mask
    return one.length == other.length and one.first & mask == other.first & mask
