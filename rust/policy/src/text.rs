//! Text as Python's `str` and `urllib` read it. Functions that need tables of Unicode, which change, are not here.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// `str.isspace` of a character; the same for `\s` of regular expressions.
#[inline]
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// `str.strip`
#[inline]
pub fn strip(text: &str) -> &str {
    match text.as_bytes() {
        // Nothing to take off, as by far most have.
        [only] | [only, .., _] if !only.is_ascii_graphic() => text.trim_matches(is_space),
        [.., last] if !last.is_ascii_graphic() => text.trim_matches(is_space),
        _ => text,
    }
}

/// `headgate.policy.sent_values.sent_text`: bytes of UTF-8 that were read as Latin-1 are the characters that they mean.
#[inline]
pub fn sent_text(value: &str) -> Cow<'_, str> {
    if value.is_ascii() { Cow::Borrowed(strip(value)) } else { sent_characters(value) }
}

#[cold]
fn sent_characters(value: &str) -> Cow<'_, str> {
    let bytes: Option<Vec<u8>> = value.chars().map(|character| u8::try_from(character).ok()).collect();
    match bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
        Some(text) if strip(&text).len() == text.len() => Cow::Owned(text),
        Some(text) => Cow::Owned(strip(&text).to_owned()),
        None => Cow::Borrowed(strip(value)),
    }
}

/// `str.partition`, without the separator: the text before it and the text after it, "" without a separator.
#[inline]
pub fn partition(text: &str, separator: char) -> (&str, &str) {
    text.split_once(separator).unwrap_or((text, ""))
}

/// `str.split(None, 1)`: the first word and all that follows it, "" where there is no such.
pub fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_start_matches(is_space);
    match text.find(is_space) {
        Some(end) => (&text[..end], text[end..].trim_start_matches(is_space)),
        None => (text, ""),
    }
}

/// Whether a text has more characters than this.
#[inline]
pub fn is_longer(text: &str, most: usize) -> bool {
    text.len() > most && (text.is_ascii() || text.chars().nth(most).is_some())
}

/// `urllib.parse.unquote` with `errors="replace"`: decoded once, with bytes that are not UTF-8 replaced.
///
/// Characters that are no ASCII stay, and no sequence of encoded bytes runs across them.
pub fn unquote(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    if text.is_ascii() {
        return percent_decode_str(text).decode_utf8_lossy();
    }
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii()).unwrap_or(rest.len());
        decoded.push_str(&percent_decode_str(&rest[..end]).decode_utf8_lossy());
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii()).unwrap_or(rest.len());
        decoded.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    Cow::Owned(decoded)
}

/// `urllib.parse.unquote_plus` with `errors="replace"`
pub fn unquote_plus(text: &str) -> Cow<'_, str> {
    if !text.contains('+') {
        return unquote(text);
    }
    Cow::Owned(unquote(&text.replace('+', " ")).into_owned())
}
