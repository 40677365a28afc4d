"""The request of an ASGI scope, as limits see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from headgate.http.server.asgi_messages import Scope
from headgate.http.server.client_watch import DEPARTURE
from headgate.policy.request import Request, header_name, joined, one_value, path_text, target_text
from headgate.policy.subject import RootedPath


class AsgiRequest(Request):
    """The request of a scope; its parts are read when they are first accessed."""

    __slots__ = ("_headers", "_path", "scope")

    native_reading: ClassVar[str] = "sent"
    """How the native gate reads requests: "sent" as this class does, "framework" where a framework's parsers determine
    the values of cookies, parameters and headers that were sent several times. It counts only for the
    class that sets it, not for subclasses."""

    scope: Scope
    """The scope from the server."""

    def __init__(self, scope: Scope, endpoint: str = "") -> None:
        self.scope = scope
        self.endpoint = endpoint  # a middleware stands before the routes, and knows none
        self._path: str | None = None
        self._headers: ScopeHeaders | None = None
        self._cookies = self._query = None

    @property
    def method(self) -> str:  # type: ignore[override]
        """The method in capitals: some servers pass on `get` as it was sent, and some applications accept it."""
        method: str = self.scope.get("method", "GET")
        return method if method.isupper() else method.upper()

    @property
    def departure(self) -> Any:
        """Signals that the client is gone; None where the limits do not wait."""
        return self.scope.get(DEPARTURE)

    @property
    def path(self) -> str:  # type: ignore[override]
        """The path as it was sent, with its query."""
        target = self._path
        if target is None:
            sent, query = self.scope.get("raw_path"), self.scope.get("query_string")
            path = target_text(sent) if sent else path_text(self.scope["path"])
            target = f"{path}?{target_text(query)}" if query else path
            others = self.other_paths()
            self._path = target = RootedPath(target, others) if others else target
        return target

    def other_paths(self) -> tuple[str, ...]:
        """Return `RootedPath.others` of its path; () where its application has no root path.

        The prefix that a mount of Starlette adds to the root path is part of all paths below the mount.
        """
        root = self.scope.get("root_path")
        return other_paths(self.scope["path"], self.scope.get("app_root_path", root)) if root else ()

    @property
    def client_ip(self) -> str:  # type: ignore[override]
        """The address of the peer."""
        client = self.scope.get("client")
        return client[0] if client else ""

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """The headers, by name in lower case; a look-up may use any case."""
        headers = self._headers
        if headers is None:
            headers = self._headers = ScopeHeaders(self.scope["headers"])
        return headers

    def header(self, name: str) -> str:
        """Return the value of a header; see `Request`."""
        return one_value(self.headers, name)

    @property
    def host(self) -> str:  # type: ignore[override]
        """The host that the request names."""
        return self.headers.get("host", "")


def other_paths(path: str, root: str) -> tuple[str, ...]:
    """Return the other paths that frameworks may read where an application has a root path, percent-encoded.

    The root path of a server or of FastAPI may be part of the paths in a scope or not: the same route is found.
    Litestar finds it by what follows the root path wherever that is in the path, Quart also where no slash follows it.
    """
    if not root.strip("/") or not path.startswith("/"):
        return ()
    before, found, inner = path.partition(root)
    if not found:
        forms = [root + path]
    elif not before and inner[:1] in ("", "/"):
        forms = [inner or "/"]
    else:
        forms = [inner or "/", root + inner, root + path]
    return tuple(path_text(form) for form in forms)


class ScopeHeaders(Mapping[str, str]):
    """The headers of a scope, in lower case as in ASGI, looked up in any case; repeated ones are joined to one list.

    They are read from the scope at each look-up: a key by one header reads no other.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs if isinstance(pairs, list | tuple) else list(pairs)

    def __getitem__(self, name: str) -> str:
        value: str | None = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a header, `default` where there is none."""
        wanted = name.lower().replace("_", "-").encode("latin-1", "replace")
        found: bytes | None = None
        length = len(wanted)
        for own, value in self._pairs:
            if len(own) == length and (own == wanted or own.replace(b"_", b"-") == wanted):
                if found is not None:
                    return self._joined(wanted)
                found = value
        return default if found is None else found.decode("latin-1")

    def _joined(self, wanted: bytes) -> str:
        """Return the joined lines of a header that was sent several times."""
        lines = [(own, value.decode("latin-1")) for own, value in self._pairs if own.replace(b"_", b"-") == wanted]
        return joined([value for _, value in lines], [value for own, value in lines if own == wanted])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(header_name(name.decode("latin-1")) for name, _ in self._pairs))

    def __len__(self) -> int:
        return sum(1 for _ in self)
