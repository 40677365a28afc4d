"""Plain limits as a policy of one rule, which counts by the client's address.

To the native gate it is the resolver of a policy. The limits are those that a limiter has bound, and the key is the
same as `RequestLimits` derives from an address, so both are one counter.
"""

from __future__ import annotations

from typing import Any

from headgate.decision import NamedLimit
from headgate.limits import units_of
from headgate.policy.client_address import AddressRules
from headgate.policy.compiled import ALL_RULES, ANY_TIER, Conditions, Policy, Rule
from headgate.policy.frozen_map import FrozenMap
from headgate.policy.identity import AddressIdentity, Combination, EndpointIdentity, FirstOf

_PREFLIGHT = Conditions(
    methods=frozenset({"OPTIONS"}), headers=(("origin", None), ("access-control-request-method", None))
)
"""A CORS preflight: a browser sends it only before a request of another origin (Fetch, 3.2.2)."""


class PlainRule:
    """One rule on bound limits. `within` is whether a key begins with the name that the request counts under."""

    def __init__(self, bound: Any, definitions: tuple[NamedLimit, ...], address: AddressRules, *, within: bool) -> None:
        self._bound = bound
        self._units = units_of(definition.limit for definition in definitions)
        client = FirstOf("client", (AddressIdentity("ip", address),))
        self._rule = Rule(
            name="limits",
            conditions=Conditions(),
            key=Combination((EndpointIdentity(), client) if within else (client,)),
            limits=FrozenMap({ANY_TIER: definitions}),
            costs=FrozenMap(dict.fromkeys(self._units, 1)),
        )
        self.policy = Policy(
            namespace="",
            generation=1,
            store="",
            names_store=False,
            identities=FrozenMap({}),
            tiers=None,
            rules=(self._rule,),
            exempt=(_PREFLIGHT,),
            rulesets=FrozenMap({ALL_RULES: (self._rule.name,)}),
        )

    def bound_for(self, numbers: tuple[int, ...], tier: str) -> tuple[Any, tuple[str, ...], tuple[Rule, ...]]:
        """Return (the limits, the unit and the rule of each group); see `headgate.policy.resolver.Resolver`."""
        return self._bound, self._units, (self._rule,) * len(self._units)
