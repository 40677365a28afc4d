"""The client's address: which of the addresses in a request are trusted.

Only addresses that a trusted proxy added count. A header that the client may have written is read from the
right, as far as the hops are trusted. Exactly one header is read. Source: RFC 7239, and the
behaviour of nginx's `real_ip_recursive`; see docs/policy.md#client-addresses.

Addresses are packed here, in 4 or 16 bytes: every request has one, and `ipaddress` would take
longer than the rest of a decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from headgate.errors import ConfigError

PackedAddress = bytes
"""An address in network order: 4 bytes or 16."""

UNIX = "unix"
"""The name of the peers of a Unix socket in a list of trusted proxies; they have no address."""

_MOST_ELEMENTS = 64
_LONGEST_HEADER = 4096
_MAPPED = bytes(10) + b"\xff\xff"
"""The first bytes of an IPv4 address that is written as IPv6, `::ffff:203.0.113.9`."""

_PORT = re.compile(r":[0-9]{1,5}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Network:
    """A range of addresses of one length, in bytes."""

    length: int
    first: int
    mask: int


@dataclass(frozen=True, slots=True)
class AddressRules:
    """Which proxies are trusted, and the prefix length of addresses that distinguishes clients.

    Without trusted proxies the address is the peer's. With `hops` it is the header's element at that position
    from the right, whatever the other elements are.
    """

    header: str = ""
    trusted: tuple[Network, ...] = ()
    trust_unix: bool = False
    hops: int = 0
    ipv4_prefix: int = 32
    ipv6_prefix: int = 64

    def client(self, peer: str, header: str) -> str:
        """The text that distinguishes the client: its address or its network; `peer` itself where it has no address."""
        address = self.address(peer, header)
        return peer if address is None else self._network(address)

    def address(self, peer: str, header: str) -> PackedAddress | None:
        """The client's whole address; None where no address can be read."""
        address = parse_address(peer)
        if self.header and (self.trusts(address) if address is not None else self.trust_unix and peer in ("", UNIX)):
            address = self._believed(address, self._elements(header))
        return address

    def _network(self, address: PackedAddress) -> str:
        """The client's network as text: `203.0.113.9`, `2001:db8:0:1::/64`."""
        bits = 8 * len(address)
        prefix = self.ipv4_prefix if bits == 32 else self.ipv6_prefix
        if prefix == bits:
            return address_text(address)
        network_bits = int.from_bytes(address) >> (bits - prefix) << (bits - prefix)
        return f"{address_text(network_bits.to_bytes(len(address)))}/{prefix}"

    def trusts(self, address: PackedAddress) -> bool:
        """Whether the addresses that a proxy at this address forwards are trusted; `hops` alone trusts every peer."""
        if self.hops and not self.trusted and not self.trust_unix:
            return True
        return is_in(address, self.trusted)

    def _believed(self, peer: PackedAddress | None, elements: Sequence[str]) -> PackedAddress | None:
        if self.hops:
            chosen = parse_address(elements[-self.hops]) if len(elements) >= self.hops else None
            return peer if chosen is None else chosen
        current = peer
        for element in reversed(elements):
            if current is not None and not self.trusts(current):
                break
            address = parse_address(element)
            if address is None:  # keep the last address that a trusted proxy vouched for
                break
            current = address
        return current

    def _elements(self, header: str) -> list[str]:
        if not header or len(header) > _LONGEST_HEADER:
            return []
        elements = forwarded_for(header) if self.header == "forwarded" else header.split(",")
        return elements if len(elements) <= _MOST_ELEMENTS else []


def parse_network(text: str) -> Network:
    """A network, `10.0.0.0/8`, or a single address; raises ConfigError for anything else."""
    try:
        network = ip_network(text, strict=True)
    except ValueError as error:
        raise ConfigError(f'a network is written as "10.0.0.0/8" or "fd00::/8": {error}') from error
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:  # its addresses are read as IPv4
        network = ip_network((mapped, network.prefixlen - 96))
    return Network(network.max_prefixlen // 8, int(network.network_address), int(network.netmask))


def is_in(address: PackedAddress, networks: Iterable[Network]) -> bool:
    """Whether an address is in one of these networks."""
    length, number = len(address), int.from_bytes(address)
    return any(network.length == length and number & network.mask == network.first for network in networks)


def network_text(network: Network) -> str:
    """A network in its usual notation, `10.0.0.0/8`."""
    return f"{address_text(network.first.to_bytes(network.length))}/{network.mask.bit_count()}"


def parse_address(text: str) -> PackedAddress | None:
    """Parse an address as headers contain it: plain, with a port, in brackets, with a zone; None for anything else."""
    try:
        return inet_pton(AF_INET, text)  # the usual form
    except (OSError, ValueError):
        pass
    text = text.strip()
    if text.startswith("["):
        text, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not _PORT.fullmatch(rest)):
            return None
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    text = text.partition("%")[0]
    try:
        address = inet_pton(AF_INET6 if ":" in text else AF_INET, text)
    except (OSError, ValueError):
        return None
    return address[12:] if address.startswith(_MAPPED) else address


def address_text(address: PackedAddress) -> str:
    """An address as text, in its canonical form."""
    return inet_ntop(AF_INET if len(address) == 4 else AF_INET6, address)


def forwarded_for(value: str) -> list[str]:
    """The `for` of each element of a Forwarded header (RFC 7239), "" where an element has none."""
    nodes = []
    for element in _split(value, ","):
        node = ""
        for pair in _split(element, ";"):
            name, _, content = pair.partition("=")
            if name.strip().lower() == "for":
                quoted = _QUOTED.fullmatch(content.strip())
                node = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else content.strip()
        nodes.append(node)
    return nodes


def _split(text: str, separator: str) -> Iterator[str]:
    """Split at a separator that is not inside quotes."""
    part, quoted, escaped = "", False, False
    for character in text:
        if character == separator and not quoted:
            yield part
            part = ""
            continue
        if escaped:
            escaped = False
        elif quoted and character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        part += character
    yield part
