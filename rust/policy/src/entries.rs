//! The parts of a policy that read a descriptor's entries: conditions, and the identities of keys.
//!
//! Of the entries the key is compared exactly; a value exactly, or with a pattern in which each `*` stands for any
//! text.

use std::borrow::Cow;

use crate::subject::Subject;
use crate::value::Value;

/// The key of the entry in which a gateway reports the client's address.
pub const REMOTE_ADDRESS: &str = "remote_address";

/// Values of an entry: these texts, sorted, and all that are like one of these patterns.
#[derive(Clone, Debug)]
pub struct EntryValues {
    /// Exact values.
    pub texts: Vec<Box<str>>,
    /// Texts in which a `*` stands for any text.
    pub patterns: Vec<Box<str>>,
}

impl EntryValues {
    /// Whether a value is among them.
    fn has(&self, value: &str) -> bool {
        self.texts.binary_search_by(|text| (**text).cmp(value)).is_ok()
            || self.patterns.iter().any(|pattern| is_like(pattern, value))
    }
}

/// An entry that is meant: its key, and its value; None for any value, and for no exception.
#[derive(Clone, Debug)]
pub struct EntryPattern {
    /// The key.
    pub key: Box<str>,
    /// The value is one of these.
    pub values: Option<EntryValues>,
    /// The value is none of these.
    pub excepted: Option<EntryValues>,
}

impl EntryPattern {
    /// Whether an entry of this key has one of these values.
    fn is_met_by(&self, value: &str) -> bool {
        if self.excepted.as_ref().is_some_and(|excepted| excepted.has(value)) {
            return false;
        }
        self.values.as_ref().is_none_or(|values| values.has(value))
    }
}

/// Which descriptors are meant: those that have an entry of each pattern, whatever else they have, in any order.
#[derive(Clone, Debug)]
pub struct EntryConditions {
    /// The entries.
    pub patterns: Vec<EntryPattern>,
    /// Whether they have exactly one entry of each pattern, in their order, and no others.
    pub whole: bool,
}

impl EntryConditions {
    /// Whether a subject matches. Of a key that was sent several times one value must match, `surely` all.
    pub fn are_met<S: Subject>(&self, subject: &S, surely: bool) -> Result<bool, S::Error> {
        if self.whole {
            return self.is_whole(subject);
        }
        for pattern in &self.patterns {
            let (mut meant, mut others) = (false, false);
            for entry in entries_of(subject) {
                let (key, value) = entry?;
                if *key == *pattern.key {
                    let is_met = pattern.is_met_by(value);
                    meant |= is_met;
                    others |= !is_met;
                }
            }
            if !meant || (surely && others) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_whole<S: Subject>(&self, subject: &S) -> Result<bool, S::Error> {
        for (place, pattern) in self.patterns.iter().enumerate() {
            match subject.entry(place)? {
                Some((key, value)) if *key == *pattern.key && pattern.is_met_by(value) => {}
                _ => return Ok(false),
            }
        }
        Ok(subject.entry(self.patterns.len())?.is_none())
    }
}

/// Whether a text is the pattern's, in which each `*` stands for any text, or none.
pub fn is_like(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return text == pattern;
    };
    let (middle, last) = rest.rsplit_once('*').map_or((None, rest), |(middle, last)| (Some(middle), last));
    let Some(mut rest) = text.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    for part in middle.into_iter().flat_map(|middle| middle.split('*')) {
        // The first place is as good as any later one.
        match rest.find(part) {
            Some(place) => rest = &rest[place + part.len()..],
            None => return false,
        }
    }
    true
}

/// The entries of a subject, in order; none of a subject that is no descriptor.
pub fn entries_of<S: Subject>(subject: &S) -> impl Iterator<Item = Result<(&str, &str), S::Error>> {
    (0..).map_while(|place| subject.entry(place).transpose())
}

/// The one value of the entries with a key. An empty value is none, as with headers.
pub fn entry_value<'a, S: Subject>(key: &str, subject: &'a S) -> Result<Value<'a>, S::Error> {
    let mut found = "";
    for entry in entries_of(subject) {
        let (entry_key, value) = entry?;
        if entry_key == key && !value.is_empty() {
            if !found.is_empty() && found != value {
                return Ok(Value::Repeated);
            }
            found = value;
        }
    }
    Ok(if found.is_empty() { Value::Missing } else { Value::One(Cow::Borrowed(found)) })
}

/// The address that a descriptor reports, "" where it reports none or several.
pub fn remote_address<S: Subject>(subject: &S) -> Result<&str, S::Error> {
    Ok(match entry_value(REMOTE_ADDRESS, subject)? {
        Value::One(Cow::Borrowed(address)) => address,
        _ => "",
    })
}

/// All entries in their order as one text, different for different entries: `generic_key=api&user=7`.
pub fn entries_text<'a, E>(entries: impl Iterator<Item = Result<(&'a str, &'a str), E>>) -> Result<String, E> {
    let mut text = String::new();
    for entry in entries {
        let (key, value) = entry?;
        if !text.is_empty() {
            text.push('&');
        }
        push_escaped(&mut text, key);
        text.push('=');
        push_escaped(&mut text, value);
    }
    Ok(text)
}

fn push_escaped(escaped: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '%' => escaped.push_str("%25"),
            '&' => escaped.push_str("%26"),
            '=' => escaped.push_str("%3D"),
            other => escaped.push(other),
        }
    }
}
