//! Header fields as a policy reads them: bytes as Latin-1, lines of one name as one list.

use std::borrow::Cow;
use std::cell::OnceCell;

use headgate_policy::compiled::Policy;
use headgate_policy::subject::Sent;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use crate::table::LeftToPython;

/// The names of the headers that a policy reads, by their numbers.
#[derive(Debug)]
pub struct Names {
    texts: Box<[Box<str>]>,
    /// None for a name that no field can have.
    names: Box<[Option<HeaderName>]>,
}

impl Names {
    pub fn of(policy: &Policy) -> Self {
        let names = policy.headers.iter().map(|text| HeaderName::from_bytes(text.as_bytes()).ok());
        Self { texts: policy.headers.clone().into(), names: names.collect() }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// The lines of the header of a number.
    pub fn lines<'a>(&self, number: usize, headers: &'a HeaderMap) -> Lines<'a> {
        self.names[number].as_ref().map_or(Lines::None, |name| Lines::of(name, headers))
    }

    /// Python has to answer where a name that matters is written with `_`: the order of its lines is unknown.
    pub fn check_spellings(&self, headers: &HeaderMap, others: &[HeaderName]) -> Result<(), LeftToPython> {
        for name in headers.keys().map(HeaderName::as_str) {
            if name.contains('_') {
                let plain = name.replace('_', "-");
                if self.texts.iter().any(|text| **text == *plain) || others.iter().any(|other| *other == *plain) {
                    return Err(LeftToPython);
                }
            }
        }
        Ok(())
    }
}

/// The lines of one header.
#[derive(Debug)]
pub enum Lines<'a> {
    None,
    One(Cow<'a, str>),
    Several { joined: String, each: Vec<Cow<'a, str>> },
}

impl<'a> Lines<'a> {
    pub fn of(name: &HeaderName, headers: &'a HeaderMap) -> Self {
        let mut values = headers.get_all(name).iter().map(text_of);
        let Some(first) = values.next() else {
            return Self::None;
        };
        Self::from_lines(first, values)
    }

    /// Of lines in their order.
    pub fn from_lines(first: Cow<'a, str>, rest: impl Iterator<Item = Cow<'a, str>>) -> Self {
        let mut each: SmallVec<[Cow<'a, str>; 1]> = SmallVec::new();
        each.push(first);
        each.extend(rest);
        if each.len() == 1 {
            return each.pop().map_or(Self::None, Self::One);
        }
        Self::Several { joined: each.join(", "), each: each.into_vec() }
    }

    /// All lines as one list; "" where there are none.
    pub fn joined(&self) -> &str {
        match self {
            Self::None => "",
            Self::One(text) => text,
            Self::Several { joined, .. } => joined,
        }
    }

    pub fn sent(&self) -> Option<Sent<'_>> {
        match self {
            Self::None => None,
            Self::One(text) => Some(Sent::One(text)),
            Self::Several { joined, each } => {
                Some(Sent::Several { joined, lines: each.iter().map(|line| &**line).collect() })
            }
        }
    }
}

/// Lines of headers by number, each read once.
pub struct LineCache<'a>(SmallVec<[OnceCell<Lines<'a>>; 4]>);

impl<'a> LineCache<'a> {
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| OnceCell::new()).collect())
    }

    pub fn get(&self, number: usize, read: impl FnOnce() -> Lines<'a>) -> Option<Sent<'_>> {
        self.0[number].get_or_init(read).sent()
    }
}

/// A value as Latin-1.
pub fn text_of(value: &HeaderValue) -> Cow<'_, str> {
    match value.to_str() {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(value.as_bytes().iter().copied().map(char::from).collect()),
    }
}
