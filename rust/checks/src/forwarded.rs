//! The original request of a gateway, as the gateway's headers describe it: `headgate.service.checks.forwarded`.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt::Write;

use headgate_policy::subject::{Name, Sent, Subject};
use headgate_server::decide::Check;
use http::header::HOST;
use http::{HeaderMap, HeaderName};
use smallvec::SmallVec;

use crate::header_text::{LineCache, Lines, Names, text_of};
use crate::table::LeftToPython;

const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The names that a gateway's own headers may have.
static GATEWAY_HEADERS: [HeaderName; 6] =
    [FORWARDED_METHOD, ORIGINAL_METHOD, FORWARDED_URI, ORIGINAL_URI, FORWARDED_HOST, HOST];

/// The original request.
pub struct Forwarded<'a> {
    method: Cow<'a, str>,
    path: Cow<'a, str>,
    client_ip: &'a str,
    headers: &'a HeaderMap,
    names: &'a Names,
    /// None where the gateway names no host: then the gateway's own Host header applies.
    host: Option<Cow<'a, str>>,
    gateway_host: OnceCell<Cow<'a, str>>,
    lines: LineCache<'a>,
}

impl<'a> Forwarded<'a> {
    /// `rest` is what follows the ruleset in the path of the gateway's own request.
    ///
    /// Left to Python where a header of the gateway was sent several times with different values, which is refused.
    pub fn new(check: &Check<'a>, rest: &'a str, names: &'a Names) -> Result<Self, LeftToPython> {
        let headers = check.headers;
        names.check_spellings(headers, &GATEWAY_HEADERS)?;
        // Comparing the names that are present takes less time than hashing each of these, most of which are absent.
        let present = GATEWAY_HEADERS.iter().filter(|wanted| headers.keys().any(|name| name == *wanted)).collect();
        let method = match gateway_value(headers, &present, &[FORWARDED_METHOD, ORIGINAL_METHOD])? {
            Some(method) => method,
            None => Cow::Borrowed(check.method.as_str()),
        };
        let path = match gateway_value(headers, &present, &[FORWARDED_URI, ORIGINAL_URI])? {
            // Each character was one byte.
            Some(path) => match path.is_ascii() {
                true => path,
                false => target_text(path.chars().map(|character| character as u8)),
            },
            None if rest.is_ascii() => Cow::Borrowed(rest),
            None => target_text(rest.bytes()),
        };
        Ok(Self {
            method: upper(method)?,
            path,
            client_ip: check.peer,
            headers,
            names,
            host: gateway_value(headers, &present, &[FORWARDED_HOST])?,
            gateway_host: OnceCell::new(),
            lines: LineCache::new(names.len()),
        })
    }
}

/// The gateway's own headers that are present.
type PresentNames = SmallVec<[&'static HeaderName; 4]>;

/// The value of the first of these headers that is not empty; all of its non-empty lines must be equal.
fn gateway_value<'a>(
    headers: &'a HeaderMap,
    present: &PresentNames,
    names: &[HeaderName],
) -> Result<Option<Cow<'a, str>>, LeftToPython> {
    for name in names.iter().filter(|name| present.contains(name)) {
        let mut found: Option<Cow<'a, str>> = None;
        for line in headers.get_all(name).iter().map(text_of).map(without_blanks) {
            match &found {
                _ if line.is_empty() => {}
                Some(other) if *other != line => return Err(LeftToPython),
                Some(_) => {}
                None => found = Some(line),
            }
        }
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The line without leading and trailing blanks, which are no part of the value.
fn without_blanks(line: Cow<'_, str>) -> Cow<'_, str> {
    let blanks = [' ', '\t'];
    match line {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim_matches(blanks)),
        Cow::Owned(text) => Cow::Owned(text.trim_matches(blanks).to_owned()),
    }
}

/// A method in upper case; a method that is not ASCII is left to Python.
pub fn upper(method: Cow<'_, str>) -> Result<Cow<'_, str>, LeftToPython> {
    if !method.is_ascii() {
        return Err(LeftToPython);
    }
    Ok(match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        true => Cow::Owned(method.to_ascii_uppercase()),
        false => method,
    })
}

/// `headgate.policy.request.target_text`: bytes that are no ASCII are percent-encoded.
fn target_text<'a>(bytes: impl Iterator<Item = u8>) -> Cow<'a, str> {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii() {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}"); // writing to a String cannot fail
        }
    }
    Cow::Owned(text)
}

impl Subject for Forwarded<'_> {
    type Error = LeftToPython;

    fn method(&self) -> Result<&str, LeftToPython> {
        Ok(&self.method)
    }

    fn path(&self) -> Result<&str, LeftToPython> {
        Ok(&self.path)
    }

    fn host(&self) -> Result<&str, LeftToPython> {
        Ok(self.host.as_ref().unwrap_or_else(|| {
            self.gateway_host.get_or_init(|| match Lines::of(&HOST, self.headers) {
                Lines::None => Cow::Borrowed(""),
                Lines::One(text) => text,
                Lines::Several { joined, .. } => Cow::Owned(joined),
            })
        }))
    }

    fn client_ip(&self) -> Result<&str, LeftToPython> {
        Ok(self.client_ip)
    }

    fn endpoint(&self) -> Result<&str, LeftToPython> {
        Ok("")
    }

    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, LeftToPython> {
        Ok(self.lines.get(name.number, || self.names.lines(name.number, self.headers)))
    }

    fn attribute(&self, _: &str) -> Result<&str, LeftToPython> {
        Ok("") // a forwarded request has headers, but no attributes
    }
}
