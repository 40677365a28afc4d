"""Identities of a policy: the part of a request that distinguishes callers. Plain values.

`headgate.policy.extract` extracts them from a subject. All but `CallableIdentity` are data alone: they can be printed,
compared and pickled.
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
"""The first part of a missing identity; no identity can have this name."""

REPEATED_IDENTITY = str(REPEATED)
"""The first part of an identity that was sent several times with different values; no identity has this name."""

EVERYONE: Parts = ("everyone",)
"""The key of a rule that counts all requests together."""


@dataclass(frozen=True, slots=True)
class HeaderIdentity:
    """The value of a header, whose name is in lower case; its digest if it is `secret`."""

    name: str
    header: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class CookieIdentity:
    """The value of a cookie; its digest if it is `secret`."""

    name: str
    cookie: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The value of a query parameter; its digest if it is `secret`."""

    name: str
    parameter: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class EntryIdentity:
    """The value of a descriptor's entry with this key; its digest if it is `secret`."""

    name: str
    entry: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class EntriesIdentity:
    """All entries of a descriptor, in their order; their digest if they are `secret`."""

    name: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class AddressIdentity:
    """The client's network, as these rules give it."""

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

    Inside `FirstOf`, where no rule's template is known, the endpoint is the framework's or missing.
    """

    name: str = "endpoint"


@dataclass(frozen=True, slots=True)
class AttributeIdentity:
    """An attribute of a call by its name, such as the user of a call of a language model."""

    name: str


@dataclass(frozen=True, slots=True)
class FirstOf:
    """The first of these identities that a request has, preceded by its name: user 7 is not key 7."""

    name: str
    members: tuple[Identity, ...]


@dataclass(frozen=True, slots=True)
class CallableIdentity:
    """The result of a Python function for a subject: text, parts, or None where the subject lacks this identity.

    The only identity that is not data: a policy with one cannot be read outside of Python.
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
    """The identities that together form a rule's key; without any, all requests share one key.

    `missing` is whether a request without one of them counts as anonymous or is refused. `repeated` is whether a
    request that sends one of them several times, with different values, is counted with all such requests or refused.
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
    """The identities that an identity is read from: itself, or the members of a `FirstOf`, at any depth."""
    if isinstance(identity, FirstOf):
        return tuple(leaf for member in identity.members for leaf in leaves(member))
    return (identity,)
