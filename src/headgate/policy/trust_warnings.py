"""Warnings about trust: tiers that no request gets, trusted proxies that include every client, or are exempt.

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
    """All of these warnings, each with its path."""
    yield from _idle_tiers(policy)
    yield from _proxies_that_are_every_client(policy)
    yield from _proxies_that_are_exempt(policy)
    for name, rules in policy.rulesets.items():
        if not rules:
            yield (
                ("rulesets", name),
                "has no rules: every request that is decided by it passes, and is not counted",
            )


def _idle_tiers(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Warn of tiers that the map gives and no rule has limits for, and of limits for tiers that it never gives."""
    tiers = policy.tiers
    limited = dict.fromkeys(tier for rule in policy.rules for tier in rule.limits if tier != ANY_TIER)
    if tiers is None or tiers.map is None or not limited:
        return
    given = dict.fromkeys(tiers.map.values())
    for value, tier in tiers.map.items():
        if tier != tiers.default and tier not in limited:
            message = (
                f"no rule has limits for the tier {shown(tier)}: its requests have those of {shown(tiers.default)}"
            )
            yield ("tiers", "map", value), message + _suggestion(tier, limited)
    for index, rule in enumerate(policy.rules):
        for tier in rule.limits:
            if tier not in (ANY_TIER, tiers.default, *given):
                known = f"tiers.map gives {', '.join(given)[:200]}, and {tiers.default} is the default"
                message = f"no request has the tier {shown(tier)}: {known}"
                yield ("rules", index, "limits", tier), message + _suggestion(tier, given)


def _suggestion(tier: str, known: Iterable[str]) -> str:
    close = get_close_matches(tier, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _proxies_that_are_every_client(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Warn of networks of trusted proxies that contain every address, unless `trusted_hops` limits what is trusted."""
    client_ip = policy.client_ip
    if client_ip.trusted_hops is not None:
        return
    for place, network in enumerate(client_ip.trusted_proxies):
        if network != UNIX and not network.mask:
            every = "0.0.0.0/0" if network.length == 4 else "::/0"
            yield (
                ("client_ip", "trusted_proxies", place),
                f"{every} is every address: any client that sends {client_ip.header} chooses the address that counts; "
                "name your proxies, or how many there are with trusted_hops",
            )


def _proxies_that_are_exempt(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Warn of exempt addresses of trusted proxies: every request that hides its client's address has the proxy's."""
    client_ip = policy.client_ip
    for index, match in enumerate(policy.exempt):
        exempted = next(
            (
                network
                for network in match.ip or ()
                if any(_overlap(network, proxy) for proxy in client_ip.trusted_proxies)
            ),
            "",
        )
        if exempted:
            named = exempted if isinstance(exempted, str) else network_text(exempted)
            yield (
                ("exempt", index, "ip"),
                f"{named} has trusted proxies in it: where {client_ip.header} cannot be read, because a client made it "
                "too long, the address is the proxy's; exempt no address of a proxy",
            )


def _overlap(first: Network | str, second: Network | str) -> bool:
    """Whether two networks have addresses in common."""
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    mask = first.mask & second.mask
    return first.length == second.length and first.first & mask == second.first & mask
