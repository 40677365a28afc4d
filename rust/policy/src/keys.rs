//! Keys made of parts: their text, which stores of other processes use, and their hash, which tables use.

use headgate_core::hash::{KeyHash, Seed};

/// Bytes of UTF-8 that a key may have, all parts together; `headgate.keys.LONGEST_KEY`.
pub const LONGEST_KEY: usize = 8192;
/// Parts that a key may have; `headgate.keys.MOST_PARTS`.
pub const MOST_PARTS: usize = 16;

/// The text of a key, as `headgate.keys.encode_key` gives it for the same parts; None for parts that are no key.
pub fn encode_key(parts: &[&str]) -> Option<String> {
    if !is_key(parts) {
        return None;
    }
    let mut text = String::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            text.push('|');
        }
        let mut rest = *part;
        while let Some(place) = rest.find(is_special) {
            text.push_str(&rest[..place]);
            let byte = rest.as_bytes()[place];
            text.push('%');
            text.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])));
            rest = &rest[place + 1..];
        }
        text.push_str(rest);
    }
    Some(text)
}

/// The parts of a key whose text `encode_key` gave.
pub fn decode_key(text: &str) -> Vec<String> {
    let decoded = |part: &str| {
        let mut pieces = part.split('%');
        let mut whole = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let (code, rest) = piece.split_at_checked(2).unwrap_or((piece, ""));
            whole.extend(u8::from_str_radix(code, 16).map(char::from));
            whole.push_str(rest);
        }
        whole
    };
    text.split('|').map(decoded).collect()
}

/// The hash of a key, as every table has it for the same parts; None for parts that are no key.
///
/// A key of one part is the key that is its text.
#[inline]
pub fn hash_key(parts: &[&str], seed: &Seed) -> Option<KeyHash> {
    if !is_key(parts) {
        return None;
    }
    Some(match parts {
        [only] => seed.text(only.as_bytes()),
        several => seed.parts(several.iter().map(|part| part.as_bytes())),
    })
}

/// Whether these are the parts of a key: none of them empty, not too many and not too long together.
#[inline]
fn is_key(parts: &[&str]) -> bool {
    (1..=MOST_PARTS).contains(&parts.len())
        && parts.iter().all(|part| !part.is_empty())
        && parts.iter().map(|part| part.len()).sum::<usize>() <= LONGEST_KEY
}

/// Whether a character separates parts, escapes another, begins or ends a Redis hash tag, or is not printed.
fn is_special(character: char) -> bool {
    matches!(character, '%' | '|' | '{' | '}' | '\0'..=' ' | '\x7f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_key_can_be_read_from_its_text() {
        for parts in [&["a"][..], &["a|b", "%7C{x}"], &["\u{e9} \0", "%", "|", "100%"], &["{", "}", "\u{7f}\u{80}"]] {
            let text = encode_key(parts);
            assert_eq!(text.as_deref().map(decode_key), Some(parts.iter().map(|part| (*part).to_owned()).collect()));
        }
    }
}
