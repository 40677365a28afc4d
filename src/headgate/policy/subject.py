"""The subject that a policy is evaluated for: the attributes and values that its conditions and identities read.

An HTTP request is a subject (`headgate.policy.request.Request`), a set of descriptor entries another
(`headgate.policy.descriptor.Descriptor`). Any other object that has these attributes is evaluated in the same way; its
unknown attributes are "".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.errors import ArgumentError


class Repeated(str):
    """The text of a field that was sent several times with different values, none of which is the only one.

    For a header it is the list of the values, in order, with ", " between them; see `headgate.policy.request.joined`.
    """

    __slots__ = ("values",)

    values: tuple[str, ...]
    """Each value as it was sent; () where they are not stored."""

    def __new__(cls, text: str, values: tuple[str, ...] = ()) -> Repeated:
        self = super().__new__(cls, text)
        self.values = values
        return self


REPEATED = Repeated("repeated")
"""The value of a header, cookie or parameter where it is not known which of its values the application reads."""


class RootedPath(str):
    """A path, as it was sent, to an application with a root path: routes match it with the root path before it, or not.

    A rule matches it in any form; an exemption only as it was sent.
    """

    __slots__ = ("others",)

    others: tuple[str, ...]
    """The other forms, each without a query."""

    def __new__(cls, text: str, others: tuple[str, ...]) -> RootedPath:
        self = super().__new__(cls, text)
        self.others = others
        return self


class Subject(Protocol):
    """The attributes that the evaluation of a policy reads; nothing in it is trusted."""

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
        """All headers by name in lower case: all values of a name in order, as one list (`Repeated` if several)."""
        ...

    def header(self, name: str) -> str:
        """The value of a header; "" where there is none, `REPEATED` where there are different values."""
        ...

    def cookie(self, name: str) -> str:
        """The value of a cookie, on the same terms as `header`."""
        ...

    def query(self, name: str) -> str:
        """The value of a query parameter, on the same terms as `header`."""
        ...

    @property
    def entries(self) -> tuple[tuple[str, str], ...]:
        """The entries of a descriptor, each a key and a value, in order; () for other subjects."""
        ...

    def entry(self, key: str) -> str:
        """The value of the entries with a key, on the same terms as `header`."""
        ...

    def attribute(self, name: str) -> str:
        """An attribute of a call that is no HTTP request, such as its user or its model; "" where it is unknown."""
        ...


def check_subject(subject: object, error: AttributeError) -> None:
    """Raise ArgumentError for an object that is no subject, such as the request of a framework; names its class."""
    if not all(hasattr(type(subject), name) for name in ("header", "query", "entry", "attribute")):
        cls = type(subject)
        name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        raise ArgumentError(
            f"a gate decides on a headgate.Request or a Descriptor, not on a {name}: "
            "write Request(method, path, headers=..., client_ip=...)"
        ) from error
