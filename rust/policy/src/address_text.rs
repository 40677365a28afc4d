//! Addresses as text: that of `inet_ntop`, which Python gives.

use std::net::{IpAddr, Ipv6Addr};

/// An address as text, each in one form only.
pub fn address_text(address: IpAddr) -> String {
    let mut text = String::with_capacity(45);
    match address {
        IpAddr::V4(address) => push_ipv4(&mut text, address.octets()),
        IpAddr::V6(address) => push_ipv6(&mut text, address),
    }
    text
}

fn push_ipv4(text: &mut String, octets: [u8; 4]) {
    for (place, octet) in octets.into_iter().enumerate() {
        if place > 0 {
            text.push('.');
        }
        for (unit, is_needed) in [(100, octet >= 100), (10, octet >= 10), (1, true)] {
            if is_needed {
                text.push(char::from(b'0' + octet / unit % 10));
            }
        }
    }
}

/// RFC 5952, but for one form that it leaves out: of addresses for IPv4 also the deprecated ones have dots.
fn push_ipv6(text: &mut String, address: Ipv6Addr) {
    let segments = address.segments();
    let (start, length) = longest_zeros(&segments);
    let mut place = 0;
    while place < 8 {
        if place == start && length > 1 {
            text.push_str("::");
            place += length;
            continue;
        }
        if place > 0 && !(length > 1 && place == start + length) {
            text.push(':');
        }
        if place == 6 && start == 0 && (length == 6 || (length == 5 && segments[5] == 0xffff)) {
            let [.., a, b, c, d] = address.octets();
            return push_ipv4(text, [a, b, c, d]);
        }
        let segment = segments[place];
        for (shift, is_needed) in [(12, segment > 0xfff), (8, segment > 0xff), (4, segment > 0xf), (0, true)] {
            if is_needed {
                text.extend(char::from_digit(u32::from(segment >> shift & 0xf), 16));
            }
        }
        place += 1;
    }
}

/// Where the longest run of zeros begins, the first of several, and its length.
fn longest_zeros(segments: &[u16; 8]) -> (usize, usize) {
    let mut longest = (0, 0);
    for start in 0..segments.len() {
        let length = segments[start..].iter().take_while(|segment| **segment == 0).count();
        if length > longest.1 {
            longest = (start, length);
        }
    }
    longest
}
