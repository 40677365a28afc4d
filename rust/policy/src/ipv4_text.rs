//! Whether a text is an IPv4 address, which the gate tests for nearly each request: it reads each character once,
//! without a branch for each.

/// The progress within an octet.
mod octet {
    pub const BEGUN: u8 = 0;
    pub const ONE: u8 = 1;
    pub const TWO: u8 = 2;
    /// From 3 to 9.
    pub const MORE: u8 = 3;
    pub const TWENTY_FIVE: u8 = 4;
    /// One more digit may follow, whatever it is.
    pub const TWO_DIGITS: u8 = 5;
    /// No more digit may follow: a nought alone is such, too.
    pub const FULL: u8 = 6;
    /// Of no octet: no address, whatever follows.
    pub const NONE: u8 = 7;
}

/// Octets of an address.
const OCTETS: usize = 4;
const LONGEST: usize = 15;
/// The states of an octet, and kinds of characters.
const EACH: usize = 8;

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
const OCTET: [[u8; DIGITS]; EACH] = {
    use octet::*;
    [
        [FULL, ONE, TWO, MORE, MORE, MORE],
        [TWO_DIGITS; DIGITS],
        [TWO_DIGITS, TWO_DIGITS, TWO_DIGITS, TWO_DIGITS, TWENTY_FIVE, FULL],
        [FULL; DIGITS],
        [FULL, FULL, FULL, FULL, FULL, NONE],
        [FULL; DIGITS],
        [NONE; DIGITS],
        [NONE; DIGITS],
    ]
};

/// A place in `STEPS`, without the kind of a character: that of an octet in this state.
const fn place(number: usize, come: u8) -> u8 {
    ((number * EACH + come as usize) * EACH) as u8
}

/// The state that each kind of character leads to, at the sum of the places of the present state and of that kind.
const STEPS: [u8; OCTETS * EACH * EACH] = {
    let mut steps = [place(0, octet::NONE); OCTETS * EACH * EACH];
    let (mut number, mut come) = (0, 0);
    while number < OCTETS {
        let mut kind = 0;
        while kind < DIGITS {
            let to = OCTET[come as usize][kind];
            if to != octet::NONE {
                steps[place(number, come) as usize + kind] = place(number, to);
            }
            kind += 1;
        }
        if come != octet::BEGUN && come != octet::NONE && number < OCTETS - 1 {
            steps[place(number, come) as usize + DOT] = place(number + 1, octet::BEGUN);
        }
        come += 1;
        if come as usize == EACH {
            (number, come) = (number + 1, 0);
        }
    }
    steps
};

/// `text.parse::<Ipv4Addr>().is_ok()`
#[inline]
pub fn is_ipv4(text: &str) -> bool {
    let step = |at: u8, byte: &u8| STEPS[usize::from(at | KINDS[usize::from(*byte)])];
    text.len() <= LONGEST && text.as_bytes().iter().fold(place(0, octet::BEGUN), step) >= place(OCTETS - 1, octet::ONE)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[track_caller]
    fn assert_agrees(text: &str) {
        assert_eq!(is_ipv4(text), text.parse::<Ipv4Addr>().is_ok(), "{text:?}");
    }

    #[test]
    fn a_text_is_an_address_where_the_standard_library_reads_one() {
        for octet in 0..=1100 {
            for spelled in [format!("{octet}"), format!("0{octet}"), format!("{octet}.")] {
                assert_agrees(&format!("{spelled}.0.2.1"));
                assert_agrees(&format!("203.{spelled}.113.9"));
                assert_agrees(&format!("203.0.113.{spelled}"));
            }
        }
        for text in
            ["", ".", "1", "1.2.3", "1.2.3.", ".1.2.3", "1..2.3", "1.2.3.4.5", "1.2.3.4 ", " 1.2.3.4", "::1", "é"]
        {
            assert_agrees(text);
        }
    }

    #[test]
    fn no_single_character_makes_an_address_of_another_text() {
        for place in 0..=11 {
            for byte in 0..=127_u8 {
                let mut text = "203.0.113.99".to_owned();
                text.insert(place, char::from(byte));
                assert_agrees(&text);
                text.remove(place + 1);
                assert_agrees(&text);
            }
        }
    }
}
