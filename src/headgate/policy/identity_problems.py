"""Problems with the identities of a policy: their names, loops of `first_of`, and how much one may be read from.

The checks take time in proportion to the policy, however its identities refer to each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.keys import MOST_PARTS
from headgate.policy.identity import ANONYMOUS, REPEATED_IDENTITY
from headgate.policy.problems import KnownNames, Path

MOST_ALTERNATIVES = 1000
"""The most identities that one may be read from; each counts as often as `first_of` leads to it."""


class Size(NamedTuple):
    """The most parts of a key that an identity gives, and how many identities a request is searched for.

    A `first_of` adds its member's name to the member's parts. Sizes are exact up to the bounds, and larger beyond them.
    """

    parts: int
    alternatives: int


_PLAIN = Size(1, 1)


def identity_sizes(identities: Mapping[str, Any]) -> dict[str, Size]:
    """The size of each identity, but of none that leads to a loop of `first_of`. Values may be of any shape."""
    members = {name: _members(identity) for name, identity in identities.items()}
    sizes: dict[str, Size] = {}
    for name in _groups(members):
        if all(member in sizes or member not in members for member in members[name]):
            of_members = [sizes.get(member, _PLAIN) for member in members[name]]
            sizes[name] = _size_of(of_members) if of_members else _PLAIN
    return sizes


def _size_of(members: Collection[Size]) -> Size:
    return Size(
        min(1 + max(member.parts for member in members), MOST_PARTS + 1),
        min(sum(member.alternatives for member in members), MOST_ALTERNATIVES + 1),
    )


def identity_problems(
    identities: Mapping[str, Any], known: KnownNames, built_in: Collection[str], sizes: Mapping[str, Size]
) -> Iterator[tuple[Path, str]]:
    """Yield the problems of identities; `sizes` has those of `identity_sizes`. Values may be of any shape."""
    groups = _groups({name: _members(identity) for name, identity in identities.items()})
    for name, identity in identities.items():
        path: Path = ("identities", name)
        if name in built_in or name in (ANONYMOUS, REPEATED_IDENTITY, "everyone"):
            yield path, f"{name!r} is built in: choose another name"
        for place, member in _placed(identity):
            if member not in known:
                yield (*path, "first_of", place), known.unknown(member)
            elif groups.get(member) == groups[name]:
                yield (*path, "first_of", place), f"{member!r} comes back to {name!r} itself"
        size = sizes.get(name, _PLAIN)
        if size.parts > MOST_PARTS:
            yield (*path, "first_of"), f"makes a key of more than {MOST_PARTS} parts, the most that a key has"
        elif size.alternatives > MOST_ALTERNATIVES:
            yield (*path, "first_of"), f"leads to more than {MOST_ALTERNATIVES:,} identities: name each of them once"


def _groups(members: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The group of each name, in an order in which members come first; names that lead to each other share one.

    Tarjan's algorithm for strongly connected components, without recursion.
    """
    found: dict[str, int] = {}
    lowest: dict[str, int] = {}
    groups: dict[str, int] = {}
    open_names: list[str] = []
    path: list[tuple[str, Iterator[str]]] = []

    def enter(name: str) -> None:
        found[name] = lowest[name] = len(found)
        open_names.append(name)
        path.append((name, iter(members[name])))

    for root in members:
        if root not in found:
            enter(root)
        while path:
            name, pending = path[-1]
            member = next((member for member in pending if member in members and member not in groups), None)
            if member is not None and member not in found:
                enter(member)
            elif member is not None:
                lowest[name] = min(lowest[name], found[member])
            else:
                path.pop()
                if path:
                    user = path[-1][0]
                    lowest[user] = min(lowest[user], lowest[name])
                while lowest[name] == found[name] and name not in groups:
                    groups[open_names.pop()] = found[name]
    return groups


def _members(identity: object) -> list[str]:
    return [member for _, member in _placed(identity)]


def _placed(identity: object) -> Iterator[tuple[int, str]]:
    members = identity.get("first_of") if isinstance(identity, Mapping) else None
    for place, member in enumerate(members if isinstance(members, list) else ()):
        if isinstance(member, str):
            yield place, member
