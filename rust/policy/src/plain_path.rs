//! Paths that have one form and stand in it already, as by far most do: found by one look at each byte.

use crate::text::is_longer;

/// Characters of the longest path, with its query, that is brought into its forms.
pub const LONGEST_PATH: usize = 4096;

/// What a byte may be in a path that has one form, and stands in it already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Literal,
    Dot,
    Slash,
    Question,
    Other,
}

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        kinds[byte] = match byte as u8 {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => Kind::Literal,
            b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@' | b'-' => {
                Kind::Literal
            }
            b'.' => Kind::Dot,
            b'/' => Kind::Slash,
            b'?' => Kind::Question,
            _ => Kind::Other,
        };
        byte += 1;
    }
    kinds
};

/// The segments of a path, joined, that has one form and stands in it already; None for any other.
#[inline]
pub fn plain_path(path: &str) -> Option<&str> {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') {
        return None;
    }
    let mut before = Kind::Slash;
    let mut end = bytes.len();
    for (place, byte) in bytes.iter().enumerate().skip(1) {
        let kind = KINDS[usize::from(*byte)];
        match kind {
            Kind::Literal | Kind::Dot => {}
            Kind::Slash if before == Kind::Literal => {}
            Kind::Question => {
                if is_longer(path, LONGEST_PATH) || bytes[place..].contains(&b'#') {
                    return None;
                }
                end = place;
                break;
            }
            _ => return None,
        }
        before = kind;
    }
    if before == Kind::Dot || end < 2 {
        return None;
    }
    Some(if before == Kind::Slash { &path[1..end - 1] } else { &path[1..end] })
}
