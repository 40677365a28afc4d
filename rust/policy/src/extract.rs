//! The parts of a key that identities give for a subject.
//!
//! A part is text of bounded length. What was marked secret is replaced by a digest before anything else sees it. A
//! missing identity is never a free pass: it is `Missing` here, and the rule says what happens. One that was sent
//! several times, with different values, is the same parts whatever they are.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::compiled::{ANY_TIER, Tiers};
use crate::entries::{entries_of, entries_text, entry_value};
use crate::identity::{AddressSource, Identity, Source};
use crate::key_parts::{CREDENTIALS, bounded, digest, hosts_of, is_list, one_spelling, plain_token};
use crate::sent_values::{SentName, cookie_values, query_values};
use crate::subject::{Name, Sent, Subject};
use crate::value::{Value, one_line, one_of_lines, one_of_values};

/// The value of an identity for a subject.
#[derive(Clone, Debug, PartialEq)]
pub enum Extracted<'a> {
    /// The subject lacks it.
    Missing,
    /// It was sent several times with different values; the name of the identity.
    Repeated(&'a str),
    /// The parts are the names of the members that gave it, where it is the first of several, and its value.
    Present {
        /// The outer name first.
        names: SmallVec<[&'a str; 2]>,
        /// The last part.
        value: Cow<'a, str>,
    },
}

impl<'a> Extracted<'a> {
    fn value(value: Cow<'a, str>) -> Self {
        Self::Present { names: SmallVec::new(), value }
    }

    fn text_or_missing(value: &'a str) -> Self {
        if value.is_empty() { Self::Missing } else { Self::value(Cow::Borrowed(value)) }
    }

    fn bounded_or_missing(value: &'a str) -> Self {
        if value.is_empty() { Self::Missing } else { Self::value(bounded(Cow::Borrowed(value))) }
    }
}

/// The value of an identity for a subject. `template` is the endpoint of a request whose framework reports none.
pub fn extract<'a, S: Subject>(
    identity: &'a Identity,
    template: &'a str,
    subject: &'a S,
) -> Result<Extracted<'a>, S::Error> {
    Ok(match &identity.source {
        Source::Header { header, secret } => return of_header(&identity.name, header, *secret, subject),
        Source::Cookie { cookie, header, secret } => {
            of_token(&identity.name, sent_cookie(cookie, header, subject)?, *secret)
        }
        Source::Query { parameter, secret } => of_token(&identity.name, sent_query(parameter, subject)?, *secret),
        Source::Entry { .. } | Source::Entries { .. } => return of_entries(identity, subject),
        Source::Address(source) => return of_address(source, subject),
        Source::Method => Extracted::bounded_or_missing(subject.method()?),
        Source::Host => of_host(subject)?,
        Source::Endpoint => {
            let endpoint = subject.endpoint()?;
            Extracted::text_or_missing(if endpoint.is_empty() { template } else { endpoint })
        }
        Source::Attribute => Extracted::bounded_or_missing(subject.attribute(&identity.name)?),
        Source::FirstOf(members) => return first_of(members, subject),
    })
}

/// The tier of a subject; a value of which nothing is known is that of no tier.
pub fn tier_of<'a, S: Subject>(tiers: &'a Tiers, subject: &'a S) -> Result<Cow<'a, str>, S::Error> {
    let Extracted::Present { value, .. } = extract(&tiers.source, "", subject)? else {
        return Ok(Cow::Borrowed(ANY_TIER));
    };
    Ok(match &tiers.map {
        None => value,
        Some(map) => Cow::Borrowed(map.get(&*value).map_or(ANY_TIER, |tier| &**tier)),
    })
}

/// The one value of a header, without white space around it.
#[inline]
pub fn header_value<'a, S: Subject>(name: &Name, subject: &'a S) -> Result<Value<'a>, S::Error> {
    Ok(match subject.header(name)? {
        None => Value::Missing,
        Some(Sent::One(line)) => one_line(line),
        Some(Sent::Several { lines, .. }) => one_of_lines(&lines),
    })
}

fn sent_cookie<'a, S: Subject>(cookie: &SentName, header: &Name, subject: &'a S) -> Result<Value<'a>, S::Error> {
    Ok(match subject.header(header)? {
        None => Value::Missing,
        Some(sent) => one_of_values(cookie_values(sent.lines(), cookie)),
    })
}

fn sent_query<'a, S: Subject>(parameter: &SentName, subject: &'a S) -> Result<Value<'a>, S::Error> {
    Ok(match subject.path()?.split_once('?') {
        None => Value::Missing,
        Some((_, query)) => one_of_values(query_values(query, parameter)),
    })
}

/// A secret has no comma: a value with one is a list that a server or a gateway has joined from several lines.
#[inline]
fn of_header<'a, S: Subject>(
    identity: &'a str,
    header: &'a Name,
    secret: bool,
    subject: &'a S,
) -> Result<Extracted<'a>, S::Error> {
    let value = match header_value(header, subject)? {
        Value::Missing => return Ok(Extracted::Missing),
        Value::Repeated => return Ok(Extracted::Repeated(identity)),
        Value::One(value) => value,
    };
    if secret && value.contains(',') && is_list(&value) {
        return Ok(Extracted::Repeated(identity));
    }
    let spelled = if CREDENTIALS.contains(&&*header.text) { one_spelling(value)? } else { plain_token(value) };
    Ok(Extracted::value(if secret { digest(&spelled).into() } else { bounded(spelled) }))
}

fn of_token<'a>(identity: &'a str, value: Value<'a>, secret: bool) -> Extracted<'a> {
    match value {
        Value::Missing => Extracted::Missing,
        Value::Repeated => Extracted::Repeated(identity),
        Value::One(value) => {
            let plain = plain_token(value);
            Extracted::value(if secret { digest(&plain).into() } else { bounded(plain) })
        }
    }
}

/// An entry of a descriptor, or all of them: a function of its own, so that requests are read as fast as without it.
#[cold]
#[inline(never)]
fn of_entries<'a, S: Subject>(identity: &'a Identity, subject: &'a S) -> Result<Extracted<'a>, S::Error> {
    match &identity.source {
        Source::Entry { entry, secret } => of_entry(&identity.name, entry, *secret, subject),
        Source::Entries { secret } => {
            let text = entries_text(entries_of(subject))?;
            Ok(match text.is_empty() {
                true => Extracted::Missing,
                false => Extracted::value(if *secret { digest(&text).into() } else { bounded(text) }),
            })
        }
        _ => Ok(Extracted::Missing),
    }
}

/// A value is read as that of a header is, but for white space around it.
fn of_entry<'a, S: Subject>(
    identity: &'a str,
    entry: &str,
    secret: bool,
    subject: &'a S,
) -> Result<Extracted<'a>, S::Error> {
    let value = match entry_value(entry, subject)? {
        Value::Missing => return Ok(Extracted::Missing),
        Value::Repeated => return Ok(Extracted::Repeated(identity)),
        Value::One(value) => value,
    };
    if secret && value.contains(',') && is_list(&value) {
        return Ok(Extracted::Repeated(identity));
    }
    let credentials = CREDENTIALS.iter().any(|one| one.eq_ignore_ascii_case(entry));
    let spelled = if credentials { one_spelling(value)? } else { plain_token(value) };
    Ok(Extracted::value(if secret { digest(&spelled).into() } else { bounded(spelled) }))
}

#[inline]
fn of_address<'a, S: Subject>(source: &'a AddressSource, subject: &'a S) -> Result<Extracted<'a>, S::Error> {
    let sent = sent_addresses(source, subject)?;
    let client = source.rules.client(subject.client_ip()?, sent);
    Ok(if client.is_empty() { Extracted::Missing } else { Extracted::value(bounded(client)) })
}

/// The value of the header that may report the client's address.
#[inline]
pub fn sent_addresses<'a, S: Subject>(source: &AddressSource, subject: &'a S) -> Result<&'a str, S::Error> {
    match &source.header {
        None => Ok(""),
        Some(name) => Ok(subject.header(name)?.map_or("", |sent| sent.joined())),
    }
}

fn of_host<S: Subject>(subject: &S) -> Result<Extracted<'_>, S::Error> {
    let mut hosts = hosts_of(subject.host()?)?;
    Ok(match hosts.len() {
        1 => match hosts.pop() {
            Some(host) if !host.is_empty() => Extracted::value(bounded(host)),
            _ => Extracted::Missing,
        },
        _ => Extracted::Repeated("host"),
    })
}

/// A member that was sent several times counts as present: the next ones are not read.
fn first_of<'a, S: Subject>(members: &'a [Identity], subject: &'a S) -> Result<Extracted<'a>, S::Error> {
    for member in members {
        match extract(member, "", subject)? {
            Extracted::Missing => {}
            Extracted::Repeated(name) => return Ok(Extracted::Repeated(name)),
            Extracted::Present { mut names, value } => {
                names.insert(0, &member.name);
                return Ok(Extracted::Present { names, value });
            }
        }
    }
    Ok(Extracted::Missing)
}
