//! Whether a text is an IPv4 address, which the gate asks of nearly each request: by one look at each character, without
//! a branch for each.

/// How far an octet has come, to which eight times its number is added.
mod state {
    pub const BEGUN: u8 = 0;
    pub const NOUGHT: u8 = 1;
    pub const ONE: u8 = 2;
    pub const TWO: u8 = 3;
    /// From 3 to 9.
    pub const MORE: u8 = 4;
    pub const TWENTY_FIVE: u8 = 5;
    /// One more digit may follow, whatever it is.
    pub const TWO_DIGITS: u8 = 6;
    pub const FULL: u8 = 7;
    /// No address, whatever follows.
    pub const NONE: u8 = 32;
}

/// Octets of an address.
const OCTETS: usize = 4;
const LONGEST: usize = 15;

/// Kinds of characters: 0, 1, 2, 3 and 4, 5, 6 to 9, a dot, any other.
const KINDS: [u8; 256] = {
    let (mut kinds, digits, mut digit) = ([7; 256], [0, 1, 2, 3, 3, 4, 5, 5, 5, 5], 0);
    while digit < digits.len() {
        kinds[b'0' as usize + digit] = digits[digit];
        digit += 1;
    }
    kinds[b'.' as usize] = DOT as u8;
    kinds
};
const DIGITS: usize = 6;
const DOT: usize = 6;

/// Where each kind of digit leads in an octet.
const OCTET: [[u8; DIGITS]; 8] = {
    use state::*;
    [
        [NOUGHT, ONE, TWO, MORE, MORE, MORE],
        [NONE; DIGITS],
        [TWO_DIGITS; DIGITS],
        [TWO_DIGITS, TWO_DIGITS, TWO_DIGITS, TWO_DIGITS, TWENTY_FIVE, FULL],
        [FULL; DIGITS],
        [FULL, FULL, FULL, FULL, FULL, NONE],
        [FULL; DIGITS],
        [NONE; DIGITS],
    ]
};

/// Where each kind of character leads from each state.
const STEPS: [[u8; 8]; state::NONE as usize + 1] = {
    let mut steps = [[state::NONE; 8]; state::NONE as usize + 1];
    let mut from = 0;
    while from < OCTETS * OCTET.len() {
        let (octet, own) = (from / OCTET.len(), from % OCTET.len());
        let mut kind = 0;
        while kind < DIGITS {
            let to = OCTET[own][kind];
            steps[from][kind] = if to == state::NONE { to } else { (octet * OCTET.len()) as u8 + to };
            kind += 1;
        }
        if own != state::BEGUN as usize && octet < OCTETS - 1 {
            steps[from][DOT] = ((octet + 1) * OCTET.len()) as u8;
        }
        from += 1;
    }
    steps
};

/// `text.parse::<Ipv4Addr>().is_ok()`
#[inline]
pub fn is_ipv4(text: &str) -> bool {
    let step = |state: u8, byte: &u8| STEPS[usize::from(state)][usize::from(KINDS[usize::from(*byte)])];
    let last = ((OCTETS - 1) * OCTET.len()) as u8;
    text.len() <= LONGEST
        && (last + state::NOUGHT..state::NONE).contains(&text.as_bytes().iter().fold(state::BEGUN, step))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[track_caller]
    fn is_told_apart(text: &str) {
        assert_eq!(is_ipv4(text), text.parse::<Ipv4Addr>().is_ok(), "{text:?}");
    }

    #[test]
    fn a_text_is_an_address_where_the_standard_library_reads_one() {
        for octet in 0..=1100 {
            for spelled in [format!("{octet}"), format!("0{octet}"), format!("{octet}.")] {
                is_told_apart(&format!("{spelled}.0.2.1"));
                is_told_apart(&format!("203.{spelled}.113.9"));
                is_told_apart(&format!("203.0.113.{spelled}"));
            }
        }
        for text in ["", ".", "1", "1.2.3", "1.2.3.", ".1.2.3", "1..2.3", "1.2.3.4.5", "1.2.3.4 ", " 1.2.3.4", "::1", "é"] {
            is_told_apart(text);
        }
    }

    #[test]
    fn no_single_character_makes_an_address_of_what_is_none() {
        for place in 0..=11 {
            for byte in 0..=127_u8 {
                let mut text = "203.0.113.99".to_owned();
                text.insert(place, char::from(byte));
                is_told_apart(&text);
                text.remove(place + 1);
                is_told_apart(&text);
            }
        }
    }
}
