"""Identities as a policy names them: which part of a request tells callers apart. Plain values.

`headgate.policy.extract` reads them for a subject. All but `CallableIdentity` are data alone: they print, compare
and can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headgate.policy.client_address import AddressRules
from headgate.policy.subject import REPEATED

if TYPE_CHECKING:
    from headgate.policy.subject import Subject

Parts = tuple[str, ...]
"""The parts of a key that identities give."""

BUILT_IN = ("ip", "endpoint", "host", "method")
ANONYMOUS = "anonymous"
"""Starts the parts of a missing identity; no identity can have this name."""

REPEATED_IDENTITY = str(REPEATED)
"""Starts the parts of an identity that was sent several times with different values; no identity has this name."""

EVERYONE: Parts = ("everyone",)
"""The key of a rule that counts all requests together."""


@dataclass(frozen=True, slots=True)
class HeaderIdentity:
    """The value of a header, whose name is in lower case; of a `secret` one its digest."""

    name: str
    header: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class CookieIdentity:
    """The value of a cookie; of a `secret` one its digest."""

    name: str
    cookie: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The value of a query parameter; of a `secret` one its digest."""

    name: str
    parameter: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class EntryIdentity:
    """The value of a descriptor's entry with this key; of a `secret` one its digest."""

    name: str
    entry: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class EntriesIdentity:
    """All entries of a descriptor, in their order; of `secret` ones their digest."""

    name: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class AddressIdentity:
    """The client's network, found by these rules."""

    name: str
    rules: AddressRules


@dataclass(frozen=True, slots=True)
class MethodIdentity:
    """The request's method."""

    name: str = "method"


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """The host that the request was sent to, without its port, in lower case."""

    name: str = "host"


@dataclass(frozen=True, slots=True)
class EndpointIdentity:
    """The endpoint: the framework's template of the route, else the template of the rule that the path matched.

    Inside `FirstOf`, where no rule's template is known, it is the framework's or missing.
    """

    name: str = "endpoint"


@dataclass(frozen=True, slots=True)
class AttributeIdentity:
    """What a call tells of itself under this name, as one of a language model tells its user."""

    name: str


@dataclass(frozen=True, slots=True)
class FirstOf:
    """The first of these identities that a request has, with its name: user 7 is not key 7."""

    name: str
    members: tuple[Identity, ...]


@dataclass(frozen=True, slots=True)
class CallableIdentity:
    """What a Python function gives for a subject: text, parts, or None where it lacks this identity.

    The one identity that is not data: a policy with one cannot be read outside of Python.
    """

    name: str
    function: Callable[[Subject], str | Parts | None]


Identity = (
    HeaderIdentity
    | CookieIdentity
    | QueryIdentity
    | EntryIdentity
    | EntriesIdentity
    | AddressIdentity
    | MethodIdentity
    | HostIdentity
    | EndpointIdentity
    | AttributeIdentity
    | FirstOf
    | CallableIdentity
)


@dataclass(frozen=True, slots=True)
class Combination:
    """The identities that together make a rule's key; none at all counts all requests as one.

    `missing` says whether a request without one of them counts as anonymous or is refused, `repeated` whether one
    that sends one of them several times, with different values, is counted with all such or is refused.
    """

    members: tuple[Identity, ...]
    missing: Literal["anonymous", "refuse"] = "anonymous"
    repeated: Literal["count", "refuse"] = "count"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its members, in order."""
        return tuple(member.name for member in self.members)


def is_repeated(parts: Parts) -> bool:
    """Whether these are the parts of an identity that was sent several times with different values."""
    return len(parts) == 2 and parts[0] == REPEATED_IDENTITY


def leaves(identity: Identity) -> tuple[Identity, ...]:
    """The identities that an identity is read from: itself, or the members of members of a `FirstOf`."""
    if isinstance(identity, FirstOf):
        return tuple(leaf for member in identity.members for leaf in leaves(member))
    return (identity,)
