"""Redis and Valkey by URL: `redis://user:password@host:6379/0?timeout=50ms&prefix=hg`.

`redis://`, `rediss://` (TLS) and `unix://` are one server; `redis+sentinel://host:port,host:port/service/db`
asks Sentinels for the primary; `redis+cluster://host:port,host:port` is a Cluster. Each may be written with
`valkey` as well. The options after `?` that are not Headgate's go to redis-py.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from headgate.errors import ConfigError

DEFAULT_TIMEOUT_S = 0.05
DEFAULT_PREFIX = "hg"
DEFAULT_CONNECTIONS = 64
_PORTS = {"redis": 6379, "sentinel": 26379, "cluster": 6379}
_KINDS = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
_SCHEME = re.compile(r"(?:(redis|valkey)(s?)(?:\+(sentinel|cluster))?|(?:(?:redis|valkey)\+)?(unix))", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,40}")


class Address(NamedTuple):
    """Where a server is."""

    host: str
    port: int


class Place(NamedTuple):
    """What a URL names. `kind` is "single", "sentinel" or "cluster"; `timeout_s` the deadline of one call."""

    kind: str
    url: str
    """The same for redis-py, for a single server; it has the password."""

    addresses: tuple[Address, ...]
    service: str
    timeout_s: float
    prefix: str
    connections: int
    options: dict[str, Any]
    """What redis-py takes for a connection to each server: user, password, database, TLS and the like."""

    shown: str
    """The URL without user and password."""


def is_redis(url: str) -> bool:
    """Whether a URL names a Redis or Valkey."""
    return _SCHEME.fullmatch(url.partition("://")[0].lower()) is not None


def read_url(url: str) -> Place:
    """What a URL names; raises ConfigError, which never shows a password."""
    scheme, _, rest = url.partition("://")
    match = _SCHEME.fullmatch(scheme.lower())
    if match is None:
        raise ConfigError(f"no store is of kind {scheme[:40]!r}")
    shown = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"[:120]
    body, _, query = rest.partition("?")
    options, timeout_s, prefix, connections = _read_options(query, shown)
    if match[4]:
        return _one("unix", body, options, timeout_s, prefix, connections, shown)
    if not match[3]:
        return _one(f"redis{match[2]}", body, options, timeout_s, prefix, connections, shown)
    credentials, _, place = body.rpartition("@")
    hosts, _, path = place.partition("/")
    addresses = tuple(_address(host, _PORTS[match[3]], shown) for host in hosts.split(","))
    if credentials:
        user, _, password = credentials.partition(":")
        options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    if match[2]:
        options["ssl"] = True
    service, _, database = path.partition("/")
    if match[3] == "sentinel":
        if not service:
            raise ConfigError(f"{shown}: a Sentinel's URL ends with the name of the service, such as /mymaster/0")
        options["db"] = _database(database, shown)
    elif path.strip("/") not in ("", "0"):
        raise ConfigError(f"{shown}: a Cluster has database 0 alone")
    return Place(
        _KINDS[match[3]], "", addresses, unquote(service), timeout_s, prefix, connections, options, shown,
    )  # fmt: skip


def _one(
    scheme: str, body: str, options: dict[str, Any], timeout_s: float, prefix: str, connections: int, shown: str
) -> Place:
    text = {name: str(value) for name, value in options.items()}
    url = f"{scheme}://{body}" + (f"?{urlencode(text)}" if text else "")
    if scheme == "unix":
        if not body.rpartition("@")[2].startswith("/"):
            raise ConfigError(f'{shown}: a Unix socket is "unix:///path/of/the/socket"')
        return Place("single", url, (), "", timeout_s, prefix, connections, {}, shown)
    parts = urlsplit(url)
    try:
        address = Address(parts.hostname or "localhost", parts.port or _PORTS["redis"])
    except ValueError:
        raise ConfigError(f"{shown}: the port is a number up to 65535") from None
    _database(parts.path.strip("/"), shown)
    return Place("single", url, (address,), "", timeout_s, prefix, connections, {}, shown)


def _read_options(query: str, shown: str) -> tuple[dict[str, Any], float, str, int]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(f"{shown}: what comes after ? is name=value, joined by &") from None
    options: dict[str, Any] = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigError(f"{shown}: an option is given twice")
    timeout_s = _seconds(options.pop("timeout", None), shown)
    prefix = options.pop("prefix", DEFAULT_PREFIX)
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"{shown}: prefix is up to 40 letters, digits, _ . : or -, not {prefix[:40]!r}")
    connections = options.pop("max_connections", str(DEFAULT_CONNECTIONS))
    if not re.fullmatch("[1-9][0-9]{0,4}", connections):
        raise ConfigError(f"{shown}: max_connections is a whole number from 1 to 99999, not {connections[:40]!r}")
    return options, timeout_s, prefix, int(connections)


def _seconds(value: str | None, shown: str) -> float:
    if value is None:
        return DEFAULT_TIMEOUT_S
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s)", value)
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"{shown}: timeout is a time such as 50ms or 1.5s, not {value[:40]!r}")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def _address(text: str, port: int, shown: str) -> Address:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/@]+)(?::([0-9]{1,5}))?", text)
    if match is None or int(match[2] or port) > 65535:
        raise ConfigError(f"{shown}: {text[:60]!r} is no host:port")
    return Address(match[1].strip("[]"), int(match[2] or port))


def _database(text: str, shown: str) -> int:
    if text and not re.fullmatch("[0-9]{1,6}", text):
        raise ConfigError(f"{shown}: the database is a number, not {text[:40]!r}")
    return int(text or 0)
