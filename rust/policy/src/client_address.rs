//! The client's address: which of the addresses that a request names may be believed.
//!
//! Only what a trusted proxy added counts. A header that the client may have written is read from the right, as far as
//! the hops are trusted. Source: RFC 7239, and nginx's `real_ip_recursive`; see docs/policy.md#client-addresses.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

pub use crate::address_text::address_text;
use crate::ipv4_text::is_ipv4;
pub use crate::networks::{Network, is_in, tidy};
use crate::text::{is_longer, partition, strip};

/// The name that a list of trusted proxies has for the peers of a Unix socket, which have no address.
pub const UNIX: &str = "unix";
/// The header of RFC 7239; in any other each element is an address.
const FORWARDED: &str = "forwarded";
const MOST_ELEMENTS: usize = 64;
const LONGEST_HEADER: usize = 4096;

/// Which proxies to believe, and how much of an address tells clients apart.
///
/// Without trusted proxies the address is the peer's. With `hops` the header's element at that place from the right is
/// taken, whatever wrote the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRules {
    /// The one header that is looked at, in lower case; "" for none.
    pub header: String,
    /// The proxies that are believed; `tidy`.
    pub trusted: Vec<Network>,
    /// Whether the peers of a Unix socket are believed.
    pub trust_unix: bool,
    /// Which element from the right is the client; 0 where trusted proxies decide.
    pub hops: usize,
    /// Bits of an IPv4 address that tell clients apart, in [0, 32].
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that tell clients apart, in [0, 128].
    pub ipv6_prefix: u8,
}

impl Default for AddressRules {
    fn default() -> Self {
        let header = String::new();
        Self { header, trusted: Vec::new(), trust_unix: false, hops: 0, ipv4_prefix: 32, ipv6_prefix: 64 }
    }
}

type Elements<'a> = SmallVec<[Cow<'a, str>; 4]>;

impl AddressRules {
    /// The text that identifies the client: its address or its network; the peer's own text where it is neither.
    ///
    /// `header` has all lines of the header as one list, "" where it is not there.
    pub fn client<'a>(&self, peer: &'a str, header: &'a str) -> Cow<'a, str> {
        // An address with one form only identifies the client as it is: the peer's, or the only one that a trusted
        // proxy named.
        if self.ipv4_prefix == 32 {
            if self.header.is_empty() && is_ipv4(peer) {
                return Cow::Borrowed(peer);
            }
            if self.hops <= 1 && is_ipv4(header) && self.header != FORWARDED && self.believes(peer, parse_address(peer))
            {
                return Cow::Borrowed(header);
            }
        }
        match self.address(peer, header) {
            Some(address) => Cow::Owned(self.network(address)),
            None => Cow::Borrowed(peer),
        }
    }

    /// The client's whole address; None where it has none that can be read.
    pub fn address(&self, peer: &str, header: &str) -> Option<IpAddr> {
        let address = parse_address(peer);
        if self.header.is_empty() {
            return address;
        }
        if self.believes(peer, address) { self.believed(address, &self.elements(header)) } else { address }
    }

    /// Whether this peer is believed about other addresses.
    fn believes(&self, peer: &str, address: Option<IpAddr>) -> bool {
        match address {
            Some(address) => self.trusts(address),
            None => self.trust_unix && matches!(peer, "" | UNIX),
        }
    }

    /// `203.0.113.9`, `2001:db8:0:1::/64`
    fn network(&self, address: IpAddr) -> String {
        let (bits, prefix) = match address {
            IpAddr::V4(_) => (32, self.ipv4_prefix),
            IpAddr::V6(_) => (128, self.ipv6_prefix),
        };
        if prefix >= bits {
            return address_text(address);
        }
        let masked = match address {
            IpAddr::V4(address) => IpAddr::V4((address.to_bits() & prefix_mask(prefix, 32) as u32).into()),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() & prefix_mask(prefix, 128)).into()),
        };
        let mut text = address_text(masked);
        let _ = write!(text, "/{prefix}"); // text never fails
        text
    }

    /// Whether this address is believed about other addresses; counting hops alone trusts every peer.
    pub fn trusts(&self, address: IpAddr) -> bool {
        (self.hops > 0 && self.trusted.is_empty() && !self.trust_unix) || is_in(address, &self.trusted)
    }

    fn believed(&self, peer: Option<IpAddr>, elements: &[Cow<'_, str>]) -> Option<IpAddr> {
        if self.hops > 0 {
            let place = elements.len().checked_sub(self.hops);
            return place.and_then(|place| parse_address(&elements[place])).or(peer);
        }
        let mut current = peer;
        for element in elements.iter().rev() {
            if current.is_some_and(|address| !self.trusts(address)) {
                break;
            }
            let Some(address) = parse_address(element) else {
                break; // keep the last address that a trusted proxy vouched for
            };
            current = Some(address);
        }
        current
    }

    fn elements<'a>(&self, header: &'a str) -> Elements<'a> {
        if header.is_empty() || is_longer(header, LONGEST_HEADER) {
            return Elements::new();
        }
        let elements: Elements<'a> = if self.header == FORWARDED {
            forwarded_for(header).into()
        } else {
            header.split(',').map(Cow::Borrowed).take(MOST_ELEMENTS + 1).collect()
        };
        if elements.len() <= MOST_ELEMENTS { elements } else { Elements::new() }
    }
}

/// The first bits of so many, set in a number of so many.
fn prefix_mask(prefix: u8, bits: u8) -> u128 {
    let all = u128::MAX >> (128 - u32::from(bits));
    all & !all.checked_shr(u32::from(prefix)).unwrap_or(0)
}

/// An address as headers write it: with a port, in brackets, with a zone; None for anything else.
///
/// IPv4 in IPv6 (`::ffff:203.0.113.9`) is IPv4.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Some(IpAddr::V4(address)); // most are written like this
    }
    let mut text = strip(text);
    if let Some(inner) = text.strip_prefix('[') {
        let (address, rest) = inner.split_once(']')?;
        if !rest.is_empty() && !is_port(rest) {
            return None;
        }
        text = address;
    } else if text.bytes().filter(|byte| *byte == b':').count() == 1 {
        text = partition(text, ':').0;
    }
    text = partition(text, '%').0;
    if !text.contains(':') {
        return text.parse().ok().map(IpAddr::V4);
    }
    let address: Ipv6Addr = text.parse().ok()?;
    Some(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4))
}

/// `:` and one to five digits.
fn is_port(text: &str) -> bool {
    let digits = text.strip_prefix(':').unwrap_or("");
    (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The `for` of each element of a Forwarded header (RFC 7239), "" where an element has none.
pub fn forwarded_for(value: &str) -> Vec<Cow<'_, str>> {
    split_unquoted(value, ',').into_iter().map(node_of).collect()
}

fn node_of(element: &str) -> Cow<'_, str> {
    let mut node = Cow::Borrowed("");
    for pair in split_unquoted(element, ';') {
        let (name, content) = partition(pair, '=');
        if strip(name).eq_ignore_ascii_case("for") {
            let content = strip(content);
            node = unquoted(content).unwrap_or(Cow::Borrowed(content));
        }
    }
    node
}

/// The text within quotes, unescaped; None where the quotes do not enclose the whole text.
fn unquoted(text: &str) -> Option<Cow<'_, str>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains(['"', '\\']) {
        return Some(Cow::Borrowed(inner));
    }
    let mut plain = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => return None,
            '\\' => plain.push(characters.next().filter(|escaped| *escaped != '\n')?),
            other => plain.push(other),
        }
    }
    Some(Cow::Owned(plain))
}

/// Split at a separator that is not inside quotes.
fn split_unquoted(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (place, character) in text.char_indices() {
        if character == separator && !quoted {
            parts.push(&text[start..place]);
            start = place + separator.len_utf8();
        } else if escaped {
            escaped = false;
        } else if quoted && character == '\\' {
            escaped = true;
        } else if character == '"' {
            quoted = !quoted;
        }
    }
    parts.push(&text[start..]);
    parts
}
