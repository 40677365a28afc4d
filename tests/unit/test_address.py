"""Whose address counts: only what a trusted proxy vouched for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ConfigError
from headgate.policy.client_address import AddressRules, forwarded_for, parse_address, parse_network

LIST = AddressRules(header="x-forwarded-for", trusted=(parse_network("10.0.0.0/8"), parse_network("fd00::/8")))
CASES = [
    # peer, header, client
    ("203.0.113.9", "", "203.0.113.9"),
    ("203.0.113.9", "1.2.3.4", "203.0.113.9"),  # an untrusted peer may say what it likes
    ("10.0.0.1", "", "10.0.0.1"),
    ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
    ("10.0.0.1", "6.6.6.6, 203.0.113.9", "203.0.113.9"),  # the leftmost is the client's own text
    ("10.0.0.1", "6.6.6.6, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
    ("10.0.0.1", "10.0.0.9, 10.0.0.2", "10.0.0.9"),  # nothing but proxies: the first of them
    ("10.0.0.1", "203.0.113.9:4711", "203.0.113.9"),
    ("10.0.0.1", "[2001:db8:1:2:3::9]:4711", "2001:db8:1:2::/64"),
    ("10.0.0.1", "2001:db8:1:2:3::9", "2001:db8:1:2::/64"),
    ("10.0.0.1", "::ffff:203.0.113.9", "203.0.113.9"),  # IPv4 in IPv6 clothes is IPv4
    ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9"),
    ("fd00::1", "203.0.113.9", "203.0.113.9"),
    ("fe80::1%eth0", "", "fe80::/64"),
    ("10.0.0.1", "unknown", "10.0.0.1"),
    ("10.0.0.1", "203.0.113.9, garbage, 10.0.0.2", "10.0.0.2"),  # the last that a trusted proxy vouched for
    ("10.0.0.1", "203.0.113.9, ", "10.0.0.1"),
    ("10.0.0.1", ",".join(["203.0.113.9"] * 65), "10.0.0.1"),  # too long to be meant
    ("10.0.0.1", "203.0.113.9" + " " * 5000, "10.0.0.1"),
    ("not an address", "1.2.3.4", "not an address"),
    ("", "1.2.3.4", ""),
]


@pytest.mark.parametrize(("peer", "header", "client"), CASES, ids=[f"{p} <- {h[:40]}" for p, h, _ in CASES])
def test_the_client_is_the_last_address_that_is_vouched_for(peer: str, header: str, client: str) -> None:
    assert LIST.client(peer, header) == client


def test_without_trusted_proxies_headers_are_ignored() -> None:
    assert AddressRules().client("10.0.0.1", "203.0.113.9") == "10.0.0.1"


def test_counting_hops_takes_the_element_at_that_place_from_the_right() -> None:
    rules = AddressRules(header="x-forwarded-for", hops=2)
    assert rules.client("192.0.2.1", "6.6.6.6, 203.0.113.9, 198.51.100.7") == "203.0.113.9"
    assert rules.client("192.0.2.1", "203.0.113.9") == "192.0.2.1"
    assert rules.client("192.0.2.1", "unknown, 198.51.100.7") == "192.0.2.1"
    behind = AddressRules(header="x-forwarded-for", hops=1, trusted=(parse_network("10.0.0.0/8"),))
    assert behind.client("192.0.2.1", "203.0.113.9") == "192.0.2.1"
    assert behind.client("10.0.0.1", "6.6.6.6, 203.0.113.9") == "203.0.113.9"


def test_peers_of_a_unix_socket_are_trusted_only_where_that_is_written() -> None:
    assert AddressRules(header="x-forwarded-for", trust_unix=True).client("unix", "203.0.113.9") == "203.0.113.9"
    assert LIST.client("unix", "203.0.113.9") == "unix"
    hops = AddressRules(header="x-forwarded-for", trust_unix=True, hops=1)
    assert hops.client("unix", "6.6.6.6, 203.0.113.9") == "203.0.113.9"
    assert hops.client("192.0.2.1", "203.0.113.9") == "192.0.2.1"


def test_prefixes_tell_clients_apart_more_coarsely() -> None:
    wide = AddressRules(ipv4_prefix=24, ipv6_prefix=48)
    assert wide.client("203.0.113.9", "") == "203.0.113.0/24"
    assert wide.client("2001:db8:1:2:3:4:5:6", "") == "2001:db8:1::/48"
    exact = AddressRules(ipv6_prefix=128)
    assert exact.client("2001:DB8:0:0::1", "") == "2001:db8::1"


@given(address=st.ip_addresses(), other=st.ip_addresses())
def test_each_address_has_only_one_written_form(address: object, other: object) -> None:
    exact = AddressRules(ipv6_prefix=128)
    assert (exact.client(str(address), "") == exact.client(str(other), "")) == (
        parse_address(str(address)) == parse_address(str(other))
    )


FORWARDED = [
    ("for=192.0.2.43", ["192.0.2.43"]),
    ('For="[2001:db8:cafe::17]:4711"', ["[2001:db8:cafe::17]:4711"]),
    ("for=192.0.2.60;proto=http;by=203.0.113.43", ["192.0.2.60"]),
    ("for=192.0.2.43, for=198.51.100.17", ["192.0.2.43", "198.51.100.17"]),
    ('for=_hidden, for="a,b;for=6.6.6.6", proto=http', ["_hidden", "a,b;for=6.6.6.6", ""]),
    (r'for="a\"b"', ['a"b']),
    ("for=unknown", ["unknown"]),
]


@pytest.mark.parametrize(("value", "nodes"), FORWARDED, ids=[value for value, _ in FORWARDED])
def test_forwarded_is_read_as_rfc_7239_writes_it(value: str, nodes: list[str]) -> None:
    assert forwarded_for(value) == nodes


def test_forwarded_is_believed_from_the_right_too() -> None:
    rules = AddressRules(header="forwarded", trusted=(parse_network("10.0.0.0/8"),))
    assert rules.client("10.0.0.1", 'for=6.6.6.6, for="[2001:db8::9]:80", for=10.0.0.2') == "2001:db8::/64"
    assert rules.client("10.0.0.1", "for=_secret") == "10.0.0.1"


@given(text=st.text(max_size=60))
def test_no_header_is_an_error(text: str) -> None:
    LIST.client("10.0.0.1", text)
    AddressRules(header="forwarded", trusted=LIST.trusted).client("10.0.0.1", text)
    parse_address(text)


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0.0/33", "::/129", "example.com", "10.0.0"])
def test_an_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a network is written as"):
        parse_network(text)
