//! Fields of the bodies of checks: `headgate.service.checks.body_fields`.

use std::borrow::Cow;

use crate::json::Value;
use crate::table::LeftToPython;

const LONGEST_TEXT: usize = 8192;
const MOST_HEADERS: usize = 256;
const MOST_ENTRIES: usize = 256;

pub type Map<'a> = Vec<(Cow<'a, str>, Value<'a>)>;
/// Lines of headers, as they were sent.
pub type Headers<'a> = Vec<Header<'a>>;
/// Keys and values, in order.
pub type Entries<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// A line of a header.
pub struct Header<'a> {
    /// In lower case, with "-" for "_".
    pub name: Cow<'a, str>,
    pub line: Cow<'a, str>,
    /// Whether the name was spelled without "_".
    pub is_plain: bool,
}

/// The entries of a descriptor; a missing value is empty.
pub fn read_entries<'a>(items: Vec<Value<'a>>) -> Result<Entries<'a>, LeftToPython> {
    if !(1..=MOST_ENTRIES).contains(&items.len()) {
        return Err(LeftToPython);
    }
    let mut entries = Vec::with_capacity(items.len());
    for item in items {
        let Value::Map(fields) = item else {
            return Err(LeftToPython);
        };
        let (mut key, mut value) = (Cow::Borrowed(""), Cow::Borrowed(""));
        for (name, text) in fields {
            match (&*name, text) {
                ("key", Value::Text(text)) => key = bounded(text)?,
                ("value", Value::Text(text)) => value = bounded(text)?,
                _ => return Err(LeftToPython),
            }
        }
        if key.is_empty() {
            return Err(LeftToPython);
        }
        entries.push((key, value));
    }
    Ok(entries)
}

/// A header may be there several times, and names be spelled in several ways.
pub fn read_headers<'a>(fields: Map<'a>) -> Result<Headers<'a>, LeftToPython> {
    if fields.len() > MOST_HEADERS {
        return Err(LeftToPython);
    }
    let mut headers = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let is_plain = !name.contains('_');
        let name = header_name(name)?;
        match value {
            Value::Text(text) => headers.push(Header { name, line: bounded(text)?, is_plain }),
            Value::List(lines) => {
                for line in lines {
                    let Value::Text(text) = line else {
                        return Err(LeftToPython);
                    };
                    headers.push(Header { name: name.clone(), line: bounded(text)?, is_plain });
                }
            }
            _ => return Err(LeftToPython),
        }
    }
    Ok(headers)
}

/// `headgate.policy.headers.header_name`; a name that is not ASCII is left to Python to write in lower case.
fn header_name(name: Cow<'_, str>) -> Result<Cow<'_, str>, LeftToPython> {
    if !name.is_ascii() {
        return Err(LeftToPython);
    }
    Ok(match name.bytes().any(|byte| byte == b'_' || byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase().replace('_', "-")),
        false => name,
    })
}

/// A text that is not too long.
pub fn bounded(text: Cow<'_, str>) -> Result<Cow<'_, str>, LeftToPython> {
    let fits = text.len() <= LONGEST_TEXT || text.chars().count() <= LONGEST_TEXT;
    if fits { Ok(text) } else { Err(LeftToPython) }
}
