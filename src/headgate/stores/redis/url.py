"""Redis and Valkey by URL: `redis://user:password@host:6379/0?timeout=50ms&prefix=hg`.

`redis://`, `rediss://` (TLS) and `unix://` name one server; `redis+sentinel://host:port,host:port/service/db`
queries Sentinels for the primary; `redis+cluster://host:port,host:port` names a Cluster. Each may be written with
`valkey` as well. Options after `?` that are not Headgate's go to redis-py, converted to the types that it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from headgate.errors import ConfigError
from headgate.stores.redis.tls_files import TlsContext, check_tls
from headgate.stores.url_parts import StoreUrl, check_options, scheme_of, split_url

DEFAULT_TIMEOUT_S = 0.05
DEFAULT_CONNECT_TIMEOUT_S = 1.0
DEFAULT_PREFIX = "hg"
DEFAULT_CONNECTIONS = 64
_DEFAULT_PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_KINDS = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
_SCHEME = re.compile(r"(?:(redis|valkey)(s?)(?:\+(sentinel|cluster))?|(?:(?:redis|valkey)\+)?(unix))", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,40}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[^:\[\]/@%\s]{1,253})(?::([0-9]{1,5}))?")
_PLAIN_PATH = re.compile(r"(?:/[a-z0-9_.-]{0,40}){0,8}")
"""Paths that messages may show: a path of another form may be a part of a password."""

GUARD_OPTIONS = ("on_error", "local_share", "remember")
"""Options of a URL for the guard of a store, not for the server; see `headgate.stores.guard.store`."""


class Address(NamedTuple):
    """The host and port of a server."""

    host: str
    port: int


class RedisTarget(NamedTuple):
    """The server or servers that a URL names. `kind` is "single", "sentinel" or "cluster"."""

    kind: str
    addresses: tuple[Address, ...]
    socket: str
    """The path of a Unix socket, instead of addresses."""

    service: str
    """The name of the primary at the Sentinels."""

    shown: str
    """The URL without user, password and options."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    """The deadline of one call."""

    connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S
    """The deadline of a process's first connection; see `first_timeout_s`."""

    prefix: str = DEFAULT_PREFIX
    connections: int = DEFAULT_CONNECTIONS
    options: Mapping[str, Any] = MappingProxyType({})
    """Options of redis-py for a connection to each server: user, password, database, TLS and the like."""

    sentinel: Mapping[str, str] = MappingProxyType({})
    """The `username` and `password` for the Sentinels, each only where it is given."""

    tls: TlsContext | None = None
    """The context of TLS; None where connections do not use it."""

    @property
    def first_timeout_s(self) -> float:
        """How long a process waits for its first connection: at least as long as for a call."""
        return max(self.connect_timeout_s, self.timeout_s)

    @property
    def per_server_timeout_s(self) -> float:
        """The timeout of one of several servers that know the topology, so that there is time to query another one."""
        min_timeout_s = self.timeout_s if len(self.addresses) == 1 else min(self.timeout_s, self.first_timeout_s / 2)
        return max(self.first_timeout_s / (len(self.addresses) + 1), min_timeout_s)


def is_redis(url: str) -> bool:
    """Whether a URL names a Redis or Valkey."""
    scheme, mark, _ = url.partition("://")
    return bool(mark) and _SCHEME.fullmatch(scheme.lower()) is not None


def read_url(url: str) -> RedisTarget:
    """Parse a URL; raises ConfigError, which never shows a password."""
    if not is_redis(url):
        raise ConfigError(f"a Redis store is redis://, rediss:// or the like, not {scheme_of(url) or 'this'!r}")
    parts = split_url(url)
    scheme = _SCHEME.fullmatch(parts.scheme)
    assert scheme is not None
    form = f"{parts.scheme}://"
    if "@" in parts.path:
        raise ConfigError(f'{form}: an "@" stands after a "/": in a user or password, "/" is written %2F')
    kind = _KINDS[scheme[3] or ""]
    addresses: tuple[Address, ...] = ()
    socket = service = ""
    if scheme[4]:
        if parts.host or len(parts.path) < 2:
            raise ConfigError(f'{form}: a Unix socket is "unix:///path/of/the/socket"')
        socket, database = unquote(parts.path), ""
    else:
        texts = parts.host.split(",") if kind != "single" else [parts.host or "localhost"]
        addresses = tuple(_address(text, number, kind, form) for number, text in enumerate(texts, 1))
        service, _, database = parts.path[1:].partition("/") if kind == "sentinel" else ("", "", parts.path.strip("/"))
    shown = f"{form}{parts.host}{parts.path if _PLAIN_PATH.fullmatch(parts.path) else ''}"[:120]
    if kind == "sentinel" and not service:
        raise ConfigError(f"{form}: a Sentinel's URL ends with the name of the service, such as /mymaster/0")
    target = RedisTarget(kind, addresses, socket, unquote(service), shown=shown)
    return _with_options(target, parts, database.strip("/"), form, tls=bool(scheme[2]))


def _with_options(target: RedisTarget, parts: StoreUrl, database: str, form: str, *, tls: bool) -> RedisTarget:
    """Apply the options after the "?"; messages show no more of the URL than its scheme and the option."""
    for name, _ in parts.options:
        if name in _REPLACEMENTS:
            raise ConfigError(f"{form}: {name} is no option of a store's URL: {_REPLACEMENTS[name]}")
        if name in _TLS_OPTIONS and not tls:
            raise ConfigError(f"{form}: {name} is for TLS, which rediss:// and the like have")
        if name in _SENTINEL_OPTIONS and target.kind != "sentinel":
            raise ConfigError(f"{form}: {name} is for Sentinels, which redis+sentinel:// names")
    known_names = (
        *_STORE_OPTIONS, *GUARD_OPTIONS, *_CONNECTION_OPTIONS, *(() if target.socket else _TCP_OPTIONS),
        *(_SENTINEL_OPTIONS if target.kind == "sentinel" else ()), *(_TLS_OPTIONS if tls else ()),
    )  # fmt: skip
    check_options(parts.options, known_names, f"{form}: the store")
    remaining = dict(parts.options)
    for name in GUARD_OPTIONS:
        if name in remaining:
            raise ConfigError(f"{form}: {name} is for a store with a guard, which Limiter and Gate open by URL")
    fields: dict[str, Any] = {
        field: parse(name, remaining.pop(name), form)
        for name, (field, parse) in _STORE_OPTIONS.items()
        if name in remaining
    }
    sentinel_options = {_SENTINEL_OPTIONS[name]: remaining.pop(name) for name in _SENTINEL_OPTIONS if name in remaining}
    fields["sentinel"] = {field: value for field, value in sentinel_options.items() if value}
    options = {
        name: (_CONNECTION_OPTIONS | _TCP_OPTIONS | _TLS_OPTIONS)[name](name, value, form)
        for name, value in remaining.items()
    }
    user, _, password = parts.credentials.partition(":")
    for name, text in (("username", user), ("password", password)):
        if text and options.get(name):
            raise ConfigError(f'{form}: {name} is given twice, before the "@" and after the "?"')
        if parts.credentials:
            options[name] = unquote(text) or options.get(name) or None
    if tls:
        check_tls(options, form)
        fields["tls"] = TlsContext(options)
        options["ssl"] = True
    if target.kind == "cluster":
        if database not in ("", "0") or options.pop("db", 0) != 0:
            raise ConfigError(f"{form}: a Cluster has database 0 alone")
    else:
        if not re.fullmatch("[0-9]{0,6}", database):
            seen = f", not {database!r}" if _PLAIN_PATH.fullmatch(f"/{database}") else ""
            raise ConfigError(f"{form}: the database is a number{seen}")
        if database and options.get("db", int(database)) != int(database):
            raise ConfigError(f"{form}: the path names database {int(database)}, and db is {options['db']}: give one")
        options.setdefault("db", int(database or 0))
    return target._replace(options=options, **fields)


def _address(text: str, number: int, kind: str, form: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        if _ADDRESS.fullmatch(text.rpartition(":")[0]):
            raise ConfigError(f"{form}: the port is a number up to 65535")
        server = "the server" if kind == "single" else f"server {number}"
        raise ConfigError(f"{form}: {server} is named by host:port, an IPv6 address by [address]:port")
    port = int(match[2] or _DEFAULT_PORTS[kind])
    if port > 65535:  # the digits may be a password
        raise ConfigError(f"{form}: the port is a number up to 65535")
    return Address(match[1].strip("[]"), port)


def _time(name: str, value: str, form: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s)", value)
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"{form}: {name} is a time such as 50ms or 1.5s, not {value[:40]!r}")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def check_prefix(name: str, value: object, form: str) -> str:
    """Check a prefix of Redis keys: it has no character with a meaning in patterns or in hash tags."""
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ConfigError(f"{form}: {name} is up to 40 letters, digits, _ . : or -, not {value!r:.42}")
    return value


def _count(name: str, value: str, form: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,4}", value):
        raise ConfigError(f"{form}: {name} is a whole number from 1 to 99999, not {value[:40]!r}")
    return int(value)


def _database(name: str, value: str, form: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", value):
        raise ConfigError(f"{form}: {name} is a number, not {value[:40]!r}")
    return int(value)


def _text(name: str, value: str, form: str) -> str:
    return value


def _file(name: str, value: str, form: str) -> str:
    if not value:
        raise ConfigError(f"{form}: {name} is a path, and none is given")
    return value


def _name(name: str, value: str, form: str) -> str:
    if not re.fullmatch("[!-~]{1,100}", value):
        raise ConfigError(f"{form}: {name} is up to 100 characters without spaces, not {value[:40]!r}")
    return value


def _switch(name: str, value: str, form: str) -> bool:
    enabled = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}.get(value.lower())
    if enabled is None:
        raise ConfigError(f"{form}: {name} is yes or no, not {value[:40]!r}")
    return enabled


def _cert_reqs(name: str, value: str, form: str) -> str:
    if value not in ("none", "optional", "required"):
        raise ConfigError(f"{form}: {name} is none, optional or required, not {value[:40]!r}")
    return value


def _tls_version(name: str, value: str, form: str) -> int:
    number = {"TLSv1.2": 0x303, "TLSv1.3": 0x304, "771": 0x303, "772": 0x304}.get(value)
    if number is None:
        raise ConfigError(f"{form}: {name} is TLSv1.2 or TLSv1.3, not {value[:40]!r}")
    return number


Parse = Callable[[str, str, str], Any]

_STORE_OPTIONS: dict[str, tuple[str, Parse]] = {
    "timeout": ("timeout_s", _time), "connect_timeout": ("connect_timeout_s", _time),
    "prefix": ("prefix", check_prefix), "max_connections": ("connections", _count),
}  # fmt: skip
_CONNECTION_OPTIONS: dict[str, Parse] = {
    "db": _database, "username": _text, "password": _text, "client_name": _name,
    "socket_read_size": _count,
}  # fmt: skip
_TCP_OPTIONS: dict[str, Parse] = {"socket_keepalive": _switch}
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}
_TLS_OPTIONS: dict[str, Parse] = {
    "ssl_ca_certs": _file, "ssl_ca_path": _file, "ssl_ca_data": _text, "ssl_certfile": _file, "ssl_keyfile": _file,
    "ssl_password": _text, "ssl_cert_reqs": _cert_reqs, "ssl_check_hostname": _switch, "ssl_min_version": _tls_version,
    "ssl_ciphers": _text,
}  # fmt: skip

_REPLACEMENTS = {
    "socket_timeout": "the deadline of a call is timeout, such as timeout=50ms",
    "socket_connect_timeout": "the deadline of a process's first connection is connect_timeout, such as"
    " connect_timeout=1s",
    "retry_on_timeout": "a call whose reply was lost may have been charged and is never repeated",
    "retry_on_error": "a call whose reply was lost may have been charged and is never repeated",
    "decode_responses": "replies are read as bytes",
    "encoding": "replies are read as bytes",
    "encoding_errors": "replies are read as bytes",
    "protocol": "Headgate chooses the protocol",
    "health_check_interval": "a probe in the background finds out when a server is back",
}
"""Options of redis-py that Headgate does not take, and what replaces them."""
