"""The keys that requests are counted by: a client's address or its network, parts of bounded length, and scopes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.errors import ArgumentError, ConfigError, kind_of
from headgate.http.server.ipv6_aggregate import MOST_TIMES
from headgate.keys import Key
from headgate.policy.client_address import UNIX, AddressRules, parse_network
from headgate.policy.key_parts import LONGEST_VALUE, bounded
from headgate.policy.request import REPEATED, Repeated

_MOST_HOPS = 64
SEVERAL = str(REPEATED)
"""The part of a key in place of a value that was sent several times."""


class NetworkPair(NamedTuple):
    """The keys of an IPv6 client's network and of the wider one around it."""

    network: Key
    wider: Key


def address_rules(options: Mapping[str, Any]) -> AddressRules:
    """Return which proxies are trusted to report a client's address; raises ConfigError."""
    proxies, hops = options.get("trusted_proxies", ()), options.get("trusted_hops", 0)
    prefix = options.get("ipv6_prefix", 64)
    if not _is_whole(prefix) or not 32 <= prefix <= 128:
        raise ConfigError(f"ipv6_prefix is a number of bits, 32 to 128, not {prefix!r:.40}")
    if not isinstance(proxies, list | tuple | Set) or not all(isinstance(proxy, str) for proxy in proxies):
        raise ConfigError(f'trusted_proxies are a list of networks, such as ["10.0.0.0/8"], not {proxies!r:.40}')
    if not _is_whole(hops) or not 0 <= hops <= _MOST_HOPS:
        raise ConfigError(f"trusted_hops is a number of proxies, 0 to {_MOST_HOPS}, not {hops!r:.40}")
    if not isinstance(options.get("address_header", ""), str):
        raise ConfigError(f"address_header is the name of a header, not {options['address_header']!r:.40}")
    if not proxies and not hops:
        if "address_header" in options:
            raise ConfigError("address_header needs trusted_proxies or trusted_hops, or clients could write it")
        return AddressRules(ipv6_prefix=prefix)
    return AddressRules(
        header=options.get("address_header", "X-Forwarded-For").lower(),
        trusted=tuple(parse_network(proxy) for proxy in proxies if proxy != UNIX),
        trust_unix=UNIX in proxies,
        hops=hops,
        ipv6_prefix=prefix,
    )


def wide_rules(options: Mapping[str, Any], narrow: AddressRules) -> tuple[AddressRules, int] | None:
    """Return the rules of the wider network, and by how much its limits are multiplied; None without `ipv6_wide`."""
    option = options.get("ipv6_wide")
    if option is None:
        return None
    prefix = times = 0
    try:
        prefix, times = option
        usable = _is_whole(prefix) and _is_whole(times)
        usable = usable and 16 <= prefix < narrow.ipv6_prefix and 1 <= times <= MOST_TIMES
    except (TypeError, ValueError):
        usable = False
    if not usable:
        raise ConfigError(
            f"ipv6_wide is (bits, times), as (48, 8): fewer bits than ipv6_prefix, which is {narrow.ipv6_prefix}, "
            f"and 1 to {MOST_TIMES} times; not {option!r:.40}"
        )
    if options.get("wait"):
        raise ConfigError("ipv6_wide cannot be combined with wait: a request cannot wait in two lines")
    return replace(narrow, ipv6_prefix=prefix), times


def usable(key: Any) -> Any:
    """Return a key as it is counted; None for one that lacks a part.

    Parts that are long or not valid text, as a client may send them, are replaced by digests. Raises ArgumentError for
    what is no key.
    """
    if type(key) is str and 0 < len(key) <= LONGEST_VALUE and key.isascii():
        return key
    parts, plain = parts_of(key), True
    if not parts:
        return None
    for part in parts:
        if part is None or part == "":
            return None
        if isinstance(part, str):
            if not (len(part) <= LONGEST_VALUE and part.isascii()):
                plain = False
        elif not isinstance(part, int):
            raise ArgumentError(
                f"the function for key returned {kind_of(key)}{f' with {kind_of(part)}' if part is not key else ''}: "
                "a key is text, or a tuple of texts and whole numbers"
            )
    if not plain:
        parts = tuple(bounded(part) if isinstance(part, str) else part for part in parts)
        return parts if isinstance(key, tuple) else parts[0]
    return key


def is_repeated(key: Any) -> bool:
    """Whether a part of a key was sent several times with different values."""
    if isinstance(key, tuple):
        for part in key:
            if type(part) is Repeated:
                return True
    return type(key) is Repeated


def parts_of(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def within(scope: str, key: Any) -> Any:
    """Return the key inside a scope."""
    if type(key) is NetworkPair:
        return NetworkPair(within(scope, key.network), within(scope, key.wider))
    return (scope, *key) if isinstance(key, tuple) else (scope, key)


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
