"""The parts of the gate by name, in both cores: text, lists and numbers go in, the same come out.

`None` stands for a value that is repeated. Arguments and answers are those of `vectors/policy_parts.jsonl`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from headgate.core import native
from headgate.errors import ArgumentError
from headgate.keys import encode_key
from headgate.policy import client_address, entries, key_parts, path_forms
from headgate.policy.client_address import AddressRules, parse_network
from headgate.policy.path_tree import PathTree
from headgate.policy.request import one_of_values, one_value
from headgate.policy.sent_values import cookie_values, query_values
from headgate.policy.subject import REPEATED, Repeated

Values = Sequence[str | None]


def values_of(given: Any) -> list[str | None]:
    return [None if value is REPEATED else value for value in given]


def lines_of(lines: Sequence[str]) -> str:
    """The lines of a header as a request has them."""
    return lines[0] if len(lines) == 1 else Repeated(", ".join(lines), tuple(lines))


def tree_of(templates: Sequence[tuple[int, str]]) -> PathTree:
    tree = PathTree()
    for owner, template in templates:
        tree.add(template, owner)
    return tree


def match_path(templates: Sequence[tuple[int, str]], path: str) -> list[Any]:
    found = tree_of(templates).match(path)
    return [[list(one) for one in sorted(found.found.items())], sorted(found.surely)]


def rules_of(rules: Mapping[str, Any]) -> AddressRules:
    return AddressRules(**{**rules, "trusted": tuple(map(parse_network, rules.get("trusted", ())))})


def client(rules: Mapping[str, Any], peer: str, header: str) -> list[str | None]:
    """The client, and its address as it is written."""
    made = rules_of(rules)
    address = made.address(peer, header)
    return [made.client(peer, header), None if address is None else client_address.address_text(address)]


def parse_address(text: str) -> str | None:
    address = client_address.parse_address(text)
    return None if address is None else address.hex()


def address_text(address: str) -> str:
    return client_address.address_text(bytes.fromhex(address))


def is_in(address: str, networks: Sequence[str]) -> bool:
    return client_address.is_in(bytes.fromhex(address), list(map(parse_network, networks)))


def key(parts: Sequence[str]) -> str | None:
    try:
        return encode_key(tuple(parts))
    except ArgumentError:
        return None


def one_of(values: Values) -> str | None:
    found = one_of_values(REPEATED if value is None else value for value in values)
    return None if found is REPEATED else found


def one_of_lines(lines: Sequence[str]) -> str | None:
    found = one_value({"a": lines_of(lines)} if lines else {}, "a")
    return None if found is REPEATED else found


PYTHON: dict[str, Callable[..., Any]] = {
    "forms_of": path_forms.forms_of,
    "match_path": match_path,
    "client": client,
    "parse_address": parse_address,
    "address_text": address_text,
    "is_in": is_in,
    "forwarded_for": client_address.forwarded_for,
    "host_of": key_parts.host_of,
    "hosts_of": key_parts.hosts_of,
    "one_spelling": key_parts.one_spelling,
    "plain_token": key_parts.plain_token,
    "bounded": key_parts.bounded,
    "digest": key_parts.digest,
    "cookie_values": lambda lines, name: values_of(cookie_values(lines_of(lines), name)),
    "query_values": lambda query, name: values_of(query_values(query, name)),
    "one_of_values": one_of,
    "one_of_lines": one_of_lines,
    "encode_key": key,
    "is_like": entries.is_like,
    "entries_text": entries.entries_text,
}


_parts: Any = getattr(native, "PolicyParts", None)


def _networks(networks: Sequence[str]) -> list[tuple[int, int, int]]:
    parsed = map(parse_network, networks)
    return [(network.length, network.first, network.mask) for network in parsed]


def _rules(rules: Mapping[str, Any]) -> Any:
    made = rules_of(rules)
    trusted = _networks(rules.get("trusted", ()))
    return made.header, trusted, made.trust_unix, made.hops, made.ipv4_prefix, made.ipv6_prefix


def _native_client(rules: Mapping[str, Any], peer: str, header: str) -> list[str | None]:
    made = _rules(rules)
    address = _parts.address(made, peer, header)
    text = None if address is None else _parts.address_text(ip_address(address))
    return [_parts.client(made, peer, header), text]


def _native_match(templates: Sequence[tuple[int, str]], path: str) -> list[Any]:
    found, surely = _parts.match_path([(owner, template) for owner, template in templates], path)
    return [list(map(list, found)), surely]


def _native_parse(text: str) -> str | None:
    address = _parts.parse_address(text)
    return None if address is None else address.hex()


def _bytes(address: str) -> Any:
    return ip_address(bytes.fromhex(address))


NATIVE: dict[str, Callable[..., Any]] = {name: getattr(_parts, name) for name in PYTHON if hasattr(_parts, name)}
if NATIVE:
    NATIVE |= {
        "match_path": _native_match,
        "client": _native_client,
        "parse_address": _native_parse,
        "address_text": lambda address: _parts.address_text(_bytes(address)),
        "entries_text": lambda pairs: _parts.entries_text(list(map(tuple, pairs))),
        "is_in": lambda address, networks: _parts.is_in(_bytes(address), _networks(networks)),
    }
"""The same in Rust, where the native core is there. None for the whole of an answer leaves it to Python."""

MAY_LEAVE = {"host_of", "hosts_of", "one_spelling", "cookie_values", "query_values"}
"""What needs tables of Unicode for some text, and leaves that to Python."""
