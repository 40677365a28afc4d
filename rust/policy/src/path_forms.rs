//! The forms of a request's path: each is one that some server may give it.
//!
//! The reasons are in `headgate.policy.path_forms` and in docs/policy.md#matching.

use std::borrow::Cow;

use crate::text::{partition, unquote};

/// The segments of a path in one form.
pub type Form = Vec<String>;

/// The forms of one path, the usual one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forms<'a> {
    /// The `*` of OPTIONS, and nothing at all: no path.
    None,
    /// One form, by far the most: its segments joined by `/`, "" for none.
    One(Cow<'a, str>),
    /// All that servers may make of it.
    Several(Readings<'a>),
}

/// The forms in which servers may read a path: as many as they have habits, however long it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readings<'a>(Vec<Reading<'a>>);

/// The decoded segments of a path in one reading.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reading<'a> {
    /// With `/` between them.
    Joined(Cow<'a, str>),
    /// Some of which may have a `/` in them.
    Apart(Vec<Cow<'a, str>>),
}

impl Readings<'_> {
    /// Call `each` with the segments of each form; the same ones may be repeated.
    pub fn each_form(&self, mut each: impl FnMut(&[&str])) {
        for reading in &self.0 {
            let segments: Vec<&str> = match reading {
                Reading::Joined(text) => text.split('/').collect(),
                Reading::Apart(segments) => segments.iter().map(|segment| &**segment).collect(),
            };
            without_dots(&segments, &mut each);
        }
    }
}

impl Forms<'_> {
    /// The segments in each form.
    pub fn lists(self) -> Vec<Form> {
        match self {
            Self::None => Vec::new(),
            Self::One(text) if text.is_empty() => vec![Vec::new()],
            Self::One(text) => vec![text.split('/').map(str::to_owned).collect()],
            Self::Several(readings) => {
                let mut forms: Vec<Form> = Vec::new();
                readings.each_form(|segments| {
                    if !forms.iter().any(|form| form.iter().eq(segments)) {
                        forms.push(segments.iter().map(|segment| (*segment).to_owned()).collect());
                    }
                });
                forms
            }
        }
    }
}

/// The segments of a request's path in each form that some server may give it.
pub fn forms_of(path: &str) -> Forms<'_> {
    let path = if path.contains('#') { path } else { query_cut(path) };
    if path.is_empty() || path == "*" {
        return Forms::None;
    }
    if path.starts_with('/') && !has_encoded_separator(path) {
        let decoded = unquote(path);
        if path.len() == 1 || !(is_strange(path) || is_strange(&decoded) || decoded.contains('%')) {
            return Forms::One(match decoded {
                Cow::Borrowed(text) => Cow::Borrowed(text.trim_matches('/')),
                Cow::Owned(text) => Cow::Owned(text.trim_matches('/').to_owned()),
            });
        }
    }
    let mut all = Vec::new();
    for target in targets(path) {
        readings(target, &mut all);
    }
    Forms::Several(Readings(all))
}

/// Whether a path has more than one form for reasons other than characters that stay encoded and encoded separators.
fn is_strange(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.iter().enumerate().any(|(index, byte)| match byte {
        b';' | b'\\' | b'\0' | b'\t' | b'\r' | b'\n' | b'#' => true,
        b'/' => bytes.get(index + 1) == Some(&b'/'),
        b'.' | b' ' => matches!(bytes.get(index + 1), None | Some(b'/')),
        _ => false,
    })
}

/// Whether a path has `%2F` or `%5C`.
fn has_encoded_separator(path: &str) -> bool {
    path.as_bytes().windows(3).any(|three| matches!(three, [b'%', b'2', b'f' | b'F'] | [b'%', b'5', b'c' | b'C']))
}

/// The path that is in a request's target, which may have a scheme and a host; with `#`, also as it stands.
fn targets(path: &str) -> Vec<Cow<'_, str>> {
    let query_only = query_cut(path);
    let cuts = if path.contains('#') { vec![query_cut(partition(path, '#').0), query_only] } else { vec![query_only] };
    let mut targets = Vec::new();
    for target in cuts {
        let authority = authority_end(target);
        if target.starts_with('/') {
            targets.push(Cow::Borrowed(target));
        } else if authority.is_none() {
            targets.push(Cow::Owned(format!("/{target}")));
        }
        if let Some(end) = authority {
            // "//host/path" is a path for most servers, and has a host for others.
            targets.push(Cow::Borrowed(if end < target.len() { &target[end..] } else { "/" }));
        }
    }
    targets
}

/// Where a scheme and a host end that a target begins with; None where it does not.
fn authority_end(target: &str) -> Option<usize> {
    let is_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+.-".contains(byte);
    let scheme = target.bytes().take_while(|byte| is_scheme(byte)).count();
    let begins = target.starts_with(|c: char| c.is_ascii_alphabetic()) && target[scheme..].starts_with(':');
    let slashes = if begins { scheme + 1 } else { 0 };
    let host = target[slashes..].strip_prefix("//")?;
    Some(target.len() - host.len() + host.find(['/', '?', '#', '\\']).unwrap_or(host.len()))
}

fn query_cut(path: &str) -> &str {
    partition(path, '?').0
}

/// The decoded segments of a path: as usual, then by each habit that some servers have, then by all of them.
fn readings<'a>(target: Cow<'a, str>, readings: &mut Vec<Reading<'a>>) {
    let decoded = decoded(target.clone());
    let habits: Vec<Habit> = HABITS.iter().filter(|(sign, _)| sign(&decoded)).map(|(_, habit)| *habit).collect();
    readings.push(Reading::Joined(decoded.clone()));
    readings.extend(habits.iter().map(|habit| Reading::Joined(Cow::Owned(habit(&decoded)))));
    if habits.len() > 1 {
        let all = habits.iter().fold(decoded.into_owned(), |path, habit| habit(&path));
        readings.push(Reading::Joined(Cow::Owned(all)));
    }
    if has_encoded_separator(&target) {
        let segments = target.split('/').map(|segment| Cow::Owned(unquote(segment).into_owned()));
        readings.push(Reading::Apart(segments.collect()));
    }
}

/// `unquote` of text that may be borrowed for longer than this call.
fn decoded(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => unquote(text),
        Cow::Owned(text) => Cow::Owned(unquote(&text).into_owned()),
    }
}

type Sign = fn(&str) -> bool;
type Habit = fn(&str) -> String;

/// The features of a path that some servers read in another way, and how they do.
const HABITS: [(Sign, Habit); 6] = [
    (is_encoded_again, |path| unquote(path).into_owned()), // decoded by a gateway and by an application
    (|path| path.contains('\\'), |path| path.replace('\\', "/")), // IIS
    (|path| path.contains(REMOVED), |path| path.replace(REMOVED, "")), // parsers of URLs (WHATWG; Python's `urlsplit`)
    (|path| path.contains('\0'), |path| partition(path, '\0').0.to_owned()), // written in C
    (|path| path.contains(';'), without_parameters),       // Java
    (has_trailing, without_trailing),                      // Windows
];
const REMOVED: [char; 3] = ['\t', '\r', '\n'];
const TRAILING: [char; 2] = ['.', ' '];

fn is_encoded_again(path: &str) -> bool {
    path.as_bytes()
        .windows(3)
        .any(|three| three[0] == b'%' && three[1].is_ascii_hexdigit() && three[2].is_ascii_hexdigit())
}

fn without_parameters(path: &str) -> String {
    let segments: Vec<&str> = path.split('/').map(|segment| partition(segment, ';').0).collect();
    segments.join("/")
}

/// Whether a segment ends with dots or spaces after something else.
fn has_trailing(path: &str) -> bool {
    path.split('/').any(|segment| {
        let trimmed = segment.trim_end_matches(TRAILING);
        !trimmed.is_empty() && trimmed.len() < segment.len()
    })
}

fn without_trailing(path: &str) -> String {
    let trimmed = path.split('/').map(|segment| match segment.trim_end_matches(TRAILING) {
        "" => segment,
        trimmed => trimmed,
    });
    trimmed.collect::<Vec<&str>>().join("/")
}

/// The segments without empty ones and `.`; `..` goes up, or stands where a server leaves that alone.
fn without_dots(decoded: &[&str], each: &mut impl FnMut(&[&str])) {
    let plain: Vec<&str> = decoded.iter().copied().filter(|segment| !matches!(*segment, "" | ".")).collect();
    if !plain.contains(&"..") {
        return each(&plain);
    }
    each(&resolved(plain.iter().copied()));
    let inner = decoded.get(1..decoded.len().saturating_sub(1)).unwrap_or(&[]);
    if inner.contains(&"") {
        // RFC 3986 takes an empty segment for one that ".." goes up from.
        let mut form = resolved(decoded.iter().copied().skip(1).filter(|segment| *segment != "."));
        form.retain(|segment| !segment.is_empty());
        each(&form);
    }
    each(&plain);
}

fn resolved<'a>(segments: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut resolved = Vec::new();
    for segment in segments {
        if segment == ".." {
            resolved.pop();
        } else {
            resolved.push(segment);
        }
    }
    resolved
}
