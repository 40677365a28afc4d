//! All values that some application may read for a cookie or a query parameter.
//!
//! Servers and frameworks parse them in different ways: the same text may be one value for some and another for others.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::text::{first_word, is_space, partition, sent_text, strip, unquote, unquote_plus};
use crate::value::{NeedsPython, Value};

const LONGEST_COOKIES: usize = 1 << 14;
const MOST_COOKIES: usize = 512;
/// Beyond these a cookie or a parameter counts as repeated: nothing hides behind padding.
const MOST_FIELDS: usize = 1000;

/// The values that `one_of_values` chooses from; some may be empty text.
pub type Values<'a> = SmallVec<[Value<'a>; 2]>;

/// The name of a cookie or a parameter that a policy reads, ready to be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentName {
    name: String,
    plain: String,
}

impl SentName {
    /// A name, as the policy has it. It cannot be compared here where its lower case is not only ASCII.
    pub fn new(name: &str) -> Result<Self, NeedsPython> {
        let plain = plain_name(&plain_text(name)).collect::<Option<String>>().ok_or(NeedsPython)?;
        Ok(Self { name: name.to_owned(), plain })
    }

    /// Whether some application takes this for the name.
    fn is_spelled(&self, spelled: &str) -> bool {
        let spelled = strip(spelled);
        // A name of such characters alone is longer or shorter, or it may be this one.
        if spelled.len() != self.plain.len()
            && spelled.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[".contains(&byte))
        {
            return false;
        }
        let spelled = plain_text(spelled);
        let mut plain = plain_name(&spelled);
        self.plain.chars().all(|wanted| plain.next() == Some(Some(wanted))) && plain.next().is_none()
    }
}

/// All values that some application may read for a cookie, decoded; `lines` are those of the header.
///
/// Most split at ";" alone; `http.cookies` also at white space, parsers of RFC 2109 at commas. Some decode names (PHP,
/// Rack), more decode values (Express, Litestar), some take upper for lower case (ASP.NET).
pub fn cookie_values<'a>(lines: &[&'a str], name: &SentName) -> Values<'a> {
    let mut values = Values::new();
    if are_too_many(lines) {
        values.push(Value::Repeated);
        return values;
    }
    for pair in lines.iter().flat_map(|line| line.split(';')) {
        if let Some((spelled, value)) = pair.split_once('=')
            && (strip(spelled) == name.name || name.is_spelled(spelled))
        {
            add_spellings(&mut values, value);
        }
        if let Some(value) = hidden(pair, &name.name) {
            add_spellings(&mut values, value);
        }
    }
    values
}

/// Whether these lines, with ", " between them, are longer or have more cookies than is meant.
fn are_too_many(lines: &[&str]) -> bool {
    let bytes: usize = lines.iter().map(|line| line.len() + 2).sum();
    let too_long = || {
        let joined = lines.iter().map(|line| line.chars().count()).sum::<usize>() + 2 * lines.len().saturating_sub(1);
        joined > LONGEST_COOKIES
    };
    let pairs = || lines.iter().flat_map(|line| line.bytes()).filter(|byte| *byte == b';').count();
    (bytes > LONGEST_COOKIES && too_long()) || (bytes > MOST_COOKIES && pairs() > MOST_COOKIES)
}

/// The value of a text that only some applications take for a cookie, as in `a=b name=value`.
fn hidden<'a>(pair: &'a str, name: &str) -> Option<&'a str> {
    // White space at the beginning follows a ";": most cookies have no other.
    if pair.bytes().skip(1).all(|byte| byte.is_ascii_graphic() && byte != b',') && !pair.get(1..)?.starts_with(name) {
        return None;
    }
    let starts = pair.char_indices().filter(|(_, before)| *before == ',' || is_space(*before));
    starts
        .map(|(place, before)| &pair[place + before.len_utf8()..])
        .find_map(|text| text.strip_prefix(name)?.trim_start_matches(is_space).strip_prefix('='))
}

/// The values that applications may read in a cookie: all of the text, or only the part before white space.
fn add_spellings<'a>(values: &mut Values<'a>, text: &'a str) {
    match sent_text(text) {
        Cow::Borrowed(text) => add_spellings_of(values, text),
        Cow::Owned(text) => {
            let mut spelled = Values::new();
            add_spellings_of(&mut spelled, &text);
            values.extend(spelled.into_iter().map(Value::into_owned));
        }
    }
}

fn add_spellings_of<'a>(values: &mut Values<'a>, text: &'a str) {
    let mut rest = text;
    if let Some(end) = quoted_end(text) {
        values.push(Value::One(decoded(unescaped(&text[1..end - 1]))));
        rest = &text[end..];
        if rest.is_empty() {
            return;
        }
    }
    if text.starts_with('"') && rest.contains('"') {
        values.push(Value::Repeated); // parsers disagree on where it ends
        return;
    }
    values.push(Value::One(unquote(text)));
    let (first, _) = first_word(text);
    if !first.is_empty() && first != text {
        values.push(Value::One(unquote(first)));
    }
}

/// Where the text ends that is in quotes at the beginning; None where there is no such.
fn quoted_end(text: &str) -> Option<usize> {
    let mut characters = text.strip_prefix('"')?.char_indices();
    while let Some((place, character)) = characters.next() {
        match character {
            '"' => return Some(place + 2),
            '\\' => _ = characters.next().filter(|(_, escaped)| *escaped != '\n')?,
            _ => {}
        }
    }
    None
}

/// The text of a quoted one: a backslash stands before a character, or before three octal digits of one.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let octal = after.get(..3).filter(|three| is_octal(three)).and_then(|three| u8::from_str_radix(three, 8).ok());
        let mut characters = after.chars();
        if let Some(number) = octal {
            plain.push(char::from(number));
            rest = &after[3..];
        } else {
            plain.extend(characters.next());
            rest = characters.as_str();
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// Whether these are octal digits of a number in [0, 255].
fn is_octal(three: &str) -> bool {
    three.starts_with(['0', '1', '2', '3']) && three.bytes().all(|byte| (b'0'..=b'7').contains(&byte))
}

fn decoded(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => unquote(text),
        Cow::Owned(text) => Cow::Owned(unquote(&text).into_owned()),
    }
}

/// All values that some application may read for a parameter, decoded.
///
/// A server may cut off what begins with "#", an application may take ";" for "&".
pub fn query_values<'a>(query: &'a str, name: &SentName) -> Values<'a> {
    let mut values = Values::new();
    let cut = query.contains('#').then(|| partition(query, '#').0);
    let spellings =
        [Some((query, false)), cut.map(|cut| (cut, false)), Some((query, true)), cut.map(|cut| (cut, true))];
    for (spelling, at_semicolons) in spellings.into_iter().flatten() {
        if at_semicolons && !spelling.contains(';') {
            continue;
        }
        let separates = |byte: u8| byte == b'&' || (at_semicolons && byte == b';');
        if spelling.bytes().filter(|byte| separates(*byte)).count() >= MOST_FIELDS {
            values.push(Value::Repeated);
            return values;
        }
        for field in spelling.split(|c: char| u8::try_from(c).is_ok_and(separates)) {
            let (spelled, value) = partition(field, '=');
            if spelled == name.name || name.is_spelled(spelled) {
                values.push(Value::One(unquote_plus(value)));
            }
        }
    }
    values
}

/// A name up to a NUL and without white space around it, decoded.
fn plain_text(name: &str) -> Cow<'_, str> {
    let plain = |text: &str| -> (usize, usize) {
        let before = partition(text, '\0').0;
        let start = before.len() - before.trim_start_matches(is_space).len();
        (start, start + strip(before).len())
    };
    match unquote_plus(name) {
        Cow::Borrowed(text) => {
            let (start, end) = plain(text);
            Cow::Borrowed(&text[start..end])
        }
        Cow::Owned(text) => {
            let (start, end) = plain(&text);
            Cow::Owned(text[start..end].to_owned())
        }
    }
}

/// The characters of a name, the same for all spellings that some application takes for one; None for one of no ASCII.
///
/// PHP takes ".", " " and "[" for "_" and ends a name at a NUL; others ignore case. Of all characters that are no ASCII
/// the sign of Kelvin alone has a lower case in ASCII.
fn plain_name(text: &str) -> impl Iterator<Item = Option<char>> {
    text.chars().map(|character| match character {
        '.' | ' ' | '[' => Some('_'),
        '\u{212a}' => Some('k'),
        character => character.is_ascii().then(|| character.to_ascii_lowercase()),
    })
}
