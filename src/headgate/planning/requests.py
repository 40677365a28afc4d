"""Example requests for the rules of a policy: combinations of methods, hosts and paths, up to a bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, product
from math import prod

from headgate.policy.compiled import Policy, Rule
from headgate.policy.matching import Matcher, without_idle_defaults
from headgate.policy.path_templates import Wild, template_segments

_MOST_REQUESTS = 4096
"""The number of requests that are examined for any policy."""

_MOST_WORK = 1 << 24
"""More requests are examined as long as requests times rules stay below this: some seconds."""

_USUAL_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
_OTHER_PATH = "/other/path"
"""A path that is not exempt where an exemption is for `/`."""

Place = tuple[str, str, str]
"""Method, host and path of a request."""


def requests_of(policy: Policy) -> Iterator[tuple[Place, tuple[Rule, ...]]]:
    """Yield a request for each place, with and without further conditions met, and the rules that then apply to it."""
    matcher = Matcher(policy)
    methods, hosts, paths = _places(policy)
    for method, host, path in islice(product(methods, hosts, paths), _most_requests(policy)):
        candidates = matcher.candidates(matcher.kind(method, host, path))
        if any(not exempt.conditions.look_further for exempt in candidates.exempt):
            continue
        for headers in (True, False):
            matched = [
                candidate for candidate in candidates.rules if headers or not candidate.rule.conditions.look_further
            ]
            yield (method, host, path), tuple(candidate.rule for candidate in without_idle_defaults(matched))


def left_out(policy: Policy) -> int:
    """The number of combinations of methods, hosts and paths that are left out, as they are too many."""
    return max(0, prod(map(len, _places(policy))) - _most_requests(policy))


def _most_requests(policy: Policy) -> int:
    return max(_MOST_REQUESTS, _MOST_WORK // max(1, len(policy.rules)))


def _places(policy: Policy) -> tuple[list[str], list[str], list[str]]:
    """The methods, hosts and paths that the rules distinguish."""
    conditions = [rule.conditions for rule in policy.rules]
    methods = sorted({method for each in conditions for method in each.methods} | {_usual_method(policy)})
    hosts = {host for each in conditions for host in (*each.hosts, *(f"x{parent}" for parent in each.parent_hosts))}
    paths = dict.fromkeys(_path(template) for each in conditions for template in each.paths)
    usual_paths = ["/", _OTHER_PATH] if policy.exempt else ["/"]
    return methods, ["", *sorted(hosts)], [*paths, *usual_paths]


def _usual_method(policy: Policy) -> str:
    """A method that no exemption names, for rules that apply to all methods."""
    exempt = {method for each in policy.exempt for method in each.methods if not each.paths}
    return next((method for method in _USUAL_METHODS if method not in exempt), _USUAL_METHODS[0])


def _path(template: str) -> str:
    """A path that matches a template."""
    segments = ["x" if isinstance(segment, Wild) else segment for segment in template_segments(template)]
    return "/" + "/".join(segments)


def groups_by_key(rules: Iterable[Rule]) -> list[list[Rule]]:
    """Group rules by the key that they count on: each key has its own slot in a Cluster."""
    groups: dict[tuple[object, ...], list[Rule]] = {}
    for rule in rules:
        place = rule.conditions.paths if "endpoint" in rule.by else ()
        groups.setdefault((rule.by, place), []).append(rule)
    return list(groups.values())
