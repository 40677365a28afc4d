"""Identities: the parts of a rule's key, taken from a request.

A part is text of bounded length. What was marked secret is replaced by a digest before anything else
sees it. A missing identity is never a free pass: it is `None` here, and the rule says what happens.
One that was sent several times, with different values, is the same parts whatever they are.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b

from headgate.policy.client_address import AddressRules
from headgate.policy.request import REPEATED, Request, header_name

Parts = tuple[str, ...]
Extract = Callable[[Request], Parts | None]
"""The parts of a key that one identity gives; None where the request lacks it."""

BUILT_IN = ("ip", "endpoint", "host", "method")
ANONYMOUS = "anonymous"
"""Starts the parts of a missing identity; no identity can have this name."""

REPEATED_IDENTITY = str(REPEATED)
"""Starts the parts of an identity that was sent several times with different values; no identity has this name."""

EVERYONE: Parts = ("everyone",)
"""The key of a rule that counts all requests together."""

_LONGEST_VALUE = 256
_MOST_HOSTS = 16
_CREDENTIALS = ("authorization", "proxy-authorization")
_STANDARD_BASE64 = str.maketrans("-_", "+/")
_BEGIN_TOKENS = ("eyJ", ".eJ")
"""How base64 of a JSON object begins, and in itsdangerous, which Flask's sessions are made with, a compressed one."""

_MOST_TOKEN_PARTS = 8
_ADDRESSES_REMEMBERED = 65536


def from_header(name: str, *, secret: bool, called: str = "") -> Extract:
    """The value of a header; `called` is the identity's name, for a value that was sent several times.

    A secret has no comma: what has one is a list that a server or a gateway has made of several lines.
    """
    lower, repeated = header_name(name), _repeated(called or name)
    credentials = lower in _CREDENTIALS

    def extract_secret(request: Request) -> Parts | None:
        value = request.header(lower)
        if not value:
            return None
        if value is REPEATED or ("," in value and len(set(map(str.strip, value.split(",")))) > 1):
            return repeated
        return (_digest(_one_spelling(value) if credentials else _plain_token(value)),)

    def extract(request: Request) -> Parts | None:
        value = request.header(lower)
        if not value:
            return None
        if value is REPEATED:
            return repeated
        value = _one_spelling(value) if credentials else _plain_token(value)
        return (value,) if value.isascii() and len(value) <= _LONGEST_VALUE else (_bounded(value),)

    return extract_secret if secret else extract


def from_cookie(name: str, *, secret: bool, called: str = "") -> Extract:
    """The value of a cookie; `called` as in `from_header`."""
    read, repeated = _digest if secret else _bounded, _repeated(called or name)

    def extract(request: Request) -> Parts | None:
        value = request.cookie(name)
        if value is REPEATED:
            return repeated
        return (read(_plain_token(value)),) if value else None

    return extract


def from_query(name: str, *, secret: bool, called: str = "") -> Extract:
    """The value of a query parameter; `called` as in `from_header`."""
    read, repeated = _digest if secret else _bounded, _repeated(called or name)

    def extract(request: Request) -> Parts | None:
        value = request.query(name)
        if value is REPEATED:
            return repeated
        return (read(_plain_token(value)),) if value else None

    return extract


def from_address(rules: AddressRules) -> Extract:
    """The client's network, by the policy's rules on which proxies to believe."""
    header = rules.header

    @lru_cache(maxsize=_ADDRESSES_REMEMBERED)
    def parts_of(peer: str, value: str) -> Parts | None:
        client = rules.client(peer, value)
        return (_bounded(client),) if client else None

    def from_peer(request: Request) -> Parts | None:
        return parts_of(request.client_ip, "")

    def from_peer_or_header(request: Request) -> Parts | None:
        return parts_of(request.client_ip, request.headers.get(header, ""))

    return from_peer_or_header if header else from_peer


def from_method(request: Request) -> Parts | None:
    """The request's method."""
    return (_bounded(request.method),) if request.method else None


def from_host(request: Request) -> Parts | None:
    """The host that the request was sent to, without its port, in lower case."""
    hosts = hosts_of(request.host)
    if len(hosts) > 1:
        return _repeated("host")
    return (_bounded(hosts[0]),) if hosts[0] else None


def first_of(names: Sequence[str], identities: Sequence[Extract]) -> Extract:
    """The first identity that the request has, with its name: user 7 is not key 7.

    One that was sent several times is had: the next ones are not asked.
    """
    pairs = tuple(zip(names, identities, strict=True))

    def extract(request: Request) -> Parts | None:
        for name, identity in pairs:
            parts = identity(request)
            if parts is not None:
                return parts if is_repeated(parts) else (name, *parts)
        return None

    return extract


def host_of(host: str) -> str:
    """A host without its port, in lower case."""
    name = host.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0].rstrip(".")


def hosts_of(host: str) -> list[str]:
    """The hosts that a request names, each once, without ports and in lower case; more than one if it has a list."""
    return list(dict.fromkeys(map(host_of, host.split(",", _MOST_HOSTS)))) if "," in host else [host_of(host)]


def is_repeated(parts: Parts) -> bool:
    """Whether these are the parts of an identity that was sent several times with different values."""
    return len(parts) == 2 and parts[0] == REPEATED_IDENTITY


def _repeated(name: str) -> Parts:
    return (REPEATED_IDENTITY, name)


def _one_spelling(credentials: str) -> str:
    """`Bearer x`, `bearer x` and `BEARER  x` are the same credentials (RFC 9110, 11.1), and so are many of Basic."""
    scheme, *rest = credentials.split(None, 1)
    if not rest:
        return credentials
    scheme, token = scheme.lower(), rest[0]
    return f"{scheme} {_plain_base64(token) if scheme == 'basic' else _plain_token(token)}"


def _plain_token(value: str) -> str:
    """A token of base64 parts, such as a JWT, in one spelling; anything else as it is.

    Most decoders ignore what is no base64 and the last bits of a part, so a signature has many spellings.
    """
    if not value.startswith(_BEGIN_TOKENS):
        return value
    return ".".join(map(_plain_base64, value.split(".", _MOST_TOKEN_PARTS)))


def _plain_base64(text: str) -> str:
    """Base64 as it is written without padding; what cannot be read as it is."""
    with suppress(ValueError):
        return urlsafe_b64encode(b64decode(text.translate(_STANDARD_BASE64) + "==")).decode().rstrip("=")
    return text


def _bounded(value: str) -> str:
    """A value as a part of a key: long ones, and those that are no text, by their digest."""
    if len(value) <= _LONGEST_VALUE and (value.isascii() or _is_text(value)):
        return value
    return "digest-" + _digest(value)


def _digest(value: str) -> str:
    """128 bits in hexadecimal, the same in every process; the value cannot be read back from it."""
    return blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16, person=b"headgate").hexdigest()


def _is_text(value: str) -> bool:
    try:
        return len(value.encode()) <= 4 * _LONGEST_VALUE
    except UnicodeEncodeError:
        return False
