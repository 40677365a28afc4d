//! Networks that contain addresses: sorted and disjoint, so that the one of an address is found by binary search.

use std::net::IpAddr;

/// A range of addresses of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Bytes of an address: 4 or 16.
    pub length: u8,
    /// The first address, as a number.
    pub first: u128,
    /// The bits that all its addresses have as the first one has them.
    pub mask: u128,
}

impl Network {
    /// Whether an address of this length is in it.
    #[inline]
    fn has(&self, length: u8, number: u128) -> bool {
        self.length == length && number & self.mask == self.first
    }
}

/// Sort networks, and leave out those that lie in others or have no address, as `is_in` needs them.
pub fn tidy(networks: &mut Vec<Network>) {
    networks.retain(|network| network.has(network.length, network.first));
    // Of two that begin alike the wider one has the smaller mask.
    networks.sort_unstable_by_key(|network| (network.length, network.first, network.mask));
    let mut widest: Option<Network> = None;
    networks.retain(|network| {
        let is_within = widest.is_some_and(|wide| wide.has(network.length, network.first));
        if !is_within {
            widest = Some(*network);
        }
        !is_within
    });
}

/// Whether an address is in one of these networks, which are `tidy`.
pub fn is_in(address: IpAddr, networks: &[Network]) -> bool {
    let (length, number) = match address {
        IpAddr::V4(address) => (4, u128::from(address.to_bits())),
        IpAddr::V6(address) => (16, address.to_bits()),
    };
    // They do not overlap: none but the last that begins at the address or before it can have it.
    let next = networks.partition_point(|network| (network.length, network.first) <= (length, number));
    next.checked_sub(1).is_some_and(|last| networks[last].has(length, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_networks_that_have_it_however_these_overlap() {
        let mut numbers = 0x9e37_79b9_7f4a_7c15_u64;
        let mut number = |below: u64| {
            numbers = numbers.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (numbers >> 33) % below
        };
        let (mut inside, mut tested) = (0, 0);
        for _ in 0..300 {
            let mut networks = Vec::new();
            for _ in 0..number(12) {
                let free = number(9) as u32;
                let length = [4, 16][number(2) as usize];
                let mask = (u128::MAX << free) & if length == 4 { u128::from(u32::MAX) } else { u128::MAX };
                let first = u128::from(number(256));
                // Now and then with bits that no address of the network has as the first one.
                networks.push(Network { length, mask, first: if number(9) == 0 { first } else { first & mask } });
            }
            let mut tidied = networks.clone();
            tidy(&mut tidied);
            for last in 0..=256_u32 {
                for address in [IpAddr::V4(last.into()), IpAddr::V6(u128::from(last).into())] {
                    let length = if address.is_ipv4() { 4 } else { 16 };
                    let expected = networks.iter().any(|network| network.has(length, last.into()));
                    assert_eq!(is_in(address, &tidied), expected, "{address} in {networks:?}");
                    (inside, tested) = (inside + usize::from(expected), tested + 1);
                }
            }
        }
        assert!(inside > tested / 10 && inside < tested * 9 / 10, "both answers are tested");
    }
}
