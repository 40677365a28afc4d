//! The value of a name that is meant to have one in a request: nothing, one value, or several.

use std::borrow::Cow;

use crate::text::{sent_text, strip};

/// The value of a header, a cookie or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// It was not sent, or is empty.
    Missing,
    /// The one value that the application will read; never empty.
    One(Cow<'a, str>),
    /// Several values were sent, or applications read different ones: none of them is the one value.
    Repeated,
}

/// The answer depends on tables of Unicode, which differ between versions of Python: Python has to give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsPython;

/// `headgate.policy.request.one_of_values`: the only value among these, none being empty text or all alike.
pub fn one_of_values<'a>(values: impl IntoIterator<Item = Value<'a>>) -> Value<'a> {
    let mut found = Value::Missing;
    for sent in values {
        let value = match sent {
            Value::Missing => continue,
            Value::Repeated => return Value::Repeated,
            Value::One(text) => stripped(text),
        };
        if value.is_empty() {
            continue;
        }
        match &found {
            Value::One(other) if *other != value => return Value::Repeated,
            Value::One(_) => {}
            _ => found = Value::One(value),
        }
    }
    found
}

/// The value of a header, of which these are the lines as they were sent; none for one that is not there.
pub fn one_of_lines<'a>(lines: &[&'a str]) -> Value<'a> {
    match lines {
        [only] => one_line(only),
        several => one_of_values(several.iter().map(|line| Value::One(sent_text(line)))),
    }
}

/// The value of a header of one line.
#[inline]
pub fn one_line(line: &str) -> Value<'_> {
    let text = sent_text(line);
    if text.is_empty() { Value::Missing } else { Value::One(text) }
}

impl Value<'_> {
    /// The same, of text of its own.
    pub fn into_owned<'a>(self) -> Value<'a> {
        match self {
            Self::Missing => Value::Missing,
            Self::One(text) => Value::One(Cow::Owned(text.into_owned())),
            Self::Repeated => Value::Repeated,
        }
    }
}

/// The lines of a header as one list, as `headgate.policy.request.joined` gives it; "" where there are none.
pub fn joined<'a>(lines: &[&'a str]) -> Cow<'a, str> {
    match lines {
        [] => Cow::Borrowed(""),
        [only] => Cow::Borrowed(only),
        several => Cow::Owned(several.join(", ")),
    }
}

fn stripped(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(strip(text)),
        Cow::Owned(text) if strip(&text).len() == text.len() => Cow::Owned(text),
        Cow::Owned(text) => Cow::Owned(strip(&text).to_owned()),
    }
}
