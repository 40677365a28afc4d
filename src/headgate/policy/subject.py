"""What a policy is evaluated for: the attributes and values that its conditions and identities read.

An HTTP request is one (`headgate.policy.request.Request`), a set of descriptor entries another
(`headgate.policy.descriptor.Descriptor`). Anything else that has these attributes is evaluated alike, and has "" for
what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.errors import ArgumentError


class Repeated(str):
    """Text of what was sent several times with different values, of which none is the one value.

    As a header it is the list of the values, in order, with ", " between them; see `headgate.policy.request.joined`.
    """

    __slots__ = ("values",)

    values: tuple[str, ...]
    """Each value as it was sent; () where they are not kept."""

    def __new__(cls, text: str, values: tuple[str, ...] = ()) -> Repeated:
        self = super().__new__(cls, text)
        self.values = values
        return self


REPEATED = Repeated("repeated")
"""The value of a header, cookie or parameter where it is not known which of its values the application reads."""


class RootedPath(str):
    """A path, as it was sent, to an application with a root path: routes are found with that before it, and without.

    A rule is for it in any form; whether it is exempt, it tells as it was sent.
    """

    __slots__ = ("others",)

    others: tuple[str, ...]
    """The other forms, each without a query."""

    def __new__(cls, text: str, others: tuple[str, ...]) -> RootedPath:
        self = super().__new__(cls, text)
        self.others = others
        return self


class Subject(Protocol):
    """What the evaluation of a policy reads; nothing in it is trusted."""

    @property
    def method(self) -> str:
        """The method, in upper case."""
        ...

    @property
    def path(self) -> str:
        """The path as it was sent, with its query; a `RootedPath` where an application may read it in two ways."""
        ...

    @property
    def host(self) -> str:
        """The host as it was sent."""
        ...

    @property
    def client_ip(self) -> str:
        """The address of the peer. Whether a header may replace it is the policy's decision."""
        ...

    @property
    def endpoint(self) -> str:
        """The template of the route, where the framework knows it."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers by name in lower case; each has all its values in order, as one list (`Repeated` if several)."""
        ...

    def header(self, name: str) -> str:
        """The one value of a header, "" where there is none, `REPEATED` where there are several."""
        ...

    def cookie(self, name: str) -> str:
        """The one value of a cookie, as `header` gives that of a header."""
        ...

    def query(self, name: str) -> str:
        """The one value of a query parameter, as `header` gives that of a header."""
        ...

    @property
    def entries(self) -> tuple[tuple[str, str], ...]:
        """The entries of a descriptor, each a key and a value, in order; () of what is none."""
        ...

    def entry(self, key: str) -> str:
        """The one value of the entries with a key, as `header` gives that of a header."""
        ...

    def attribute(self, name: str) -> str:
        """What a call that is no HTTP request tells of itself, as its user or its model; "" for what it does not."""
        ...


def check_subject(subject: object, error: AttributeError) -> None:
    """Raise ArgumentError, and say what is asked about, for what is no subject, such as the request of a framework."""
    if not all(hasattr(type(subject), name) for name in ("header", "query", "entry", "attribute")):
        kind = type(subject)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise ArgumentError(
            f"a gate is asked about a headgate.Request or a Descriptor, not about a {name}: "
            "write Request(method, path, headers=..., client_ip=...)"
        ) from error
