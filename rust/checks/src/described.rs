//! The requests that the body of `POST /v1/check` describes: `headgate.service.checks.body`.
//!
//! A body that cannot be used is left to Python, which says what is wrong with it.

use std::borrow::Cow;

use headgate_core::limit::LARGEST;
use headgate_policy::costs::Cost;
use headgate_policy::entries::remote_address;
use headgate_policy::subject::{Name, Sent, Subject};
use smallvec::SmallVec;

use crate::forwarded::upper;
use crate::header_text::{Lines, Remembered};
use crate::json::Value;
use crate::table::LeftToPython;

const LONGEST_TEXT: usize = 8192;
const MOST_HEADERS: usize = 256;
const MOST_ENTRIES: usize = 256;
const MOST_UNITS: usize = 16;
const REQUESTS: &str = "requests";

type Map<'a> = Vec<(Cow<'a, str>, Value<'a>)>;
/// Names in lower case, with "-" for "_", and lines, as they came.
type Headers<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;
/// Keys and values, in order.
type Entries<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// A unit that a policy's limits count.
#[derive(Clone, Debug)]
pub struct Unit {
    /// As bodies name it.
    pub name: Box<str>,
    /// Whether it is a currency, whose amounts Python reads.
    pub is_money: bool,
}

/// What bodies are read for: the policy's units, and how many headers it reads.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub units: &'a [Unit],
    pub headers: usize,
}

/// The requests of a body.
pub enum Body<'a> {
    /// One, by itself.
    One(Box<Described<'a>>),
    /// A list of them.
    Several(Vec<Described<'a>>),
}

/// A request and its cost.
pub struct Described<'a> {
    method: Cow<'a, str>,
    path: Cow<'a, str>,
    host: Cow<'a, str>,
    client_ip: Cow<'a, str>,
    headers: Headers<'a>,
    /// Those of a descriptor; it has nothing else.
    entries: Entries<'a>,
    lines: Remembered<'a>,
    times: i64,
    told: SmallVec<[(usize, i64); 2]>,
}

impl Described<'_> {
    /// Its cost.
    pub fn cost(&self) -> Cost<'_> {
        Cost { times: self.times, told: &self.told }
    }
}

impl Reader<'_> {
    /// The requests of a body.
    pub fn read<'a>(self, body: &'a [u8]) -> Result<Body<'a>, LeftToPython> {
        let Value::Map(mut fields) = Value::read(body)? else {
            return Err(LeftToPython);
        };
        if fields.iter().any(|(name, _)| name == "request") {
            return Ok(Body::One(Box::new(self.check(fields)?)));
        }
        match (fields.pop(), fields.is_empty()) {
            (Some((name, Value::List(items))), true) if name == REQUESTS && !items.is_empty() => {
                Ok(Body::Several(items.into_iter().map(|item| self.item(item)).collect::<Result<_, _>>()?))
            }
            _ => Err(LeftToPython),
        }
    }

    /// One of several: a request, or {"request": ..., "cost": ...}.
    fn item<'a>(self, item: Value<'a>) -> Result<Described<'a>, LeftToPython> {
        match item {
            Value::Map(fields) if fields.iter().any(|(name, _)| name == "request") => self.check(fields),
            Value::Map(request) => self.request(request),
            _ => Err(LeftToPython),
        }
    }

    fn check<'a>(self, fields: Map<'a>) -> Result<Described<'a>, LeftToPython> {
        let (mut described, mut cost) = (None, None);
        for (name, value) in fields {
            match (&*name, value) {
                ("request", Value::Map(request)) => described = Some(self.request(request)?),
                ("cost", given) => cost = Some(given),
                _ => return Err(LeftToPython),
            }
        }
        let mut described = described.ok_or(LeftToPython)?;
        match cost {
            None => {}
            Some(Value::Map(amounts)) => self.read_amounts(amounts, &mut described)?,
            Some(number) => described.times = amount(&number)?,
        }
        Ok(described)
    }

    fn read_amounts(self, amounts: Map<'_>, described: &mut Described<'_>) -> Result<(), LeftToPython> {
        if amounts.len() > MOST_UNITS {
            return Err(LeftToPython);
        }
        for (name, value) in amounts {
            let place = self.units.iter().position(|unit| *unit.name == *name && !unit.is_money).ok_or(LeftToPython)?;
            let amount = amount(&value)?;
            if name == REQUESTS {
                described.times = amount;
            } else {
                described.told.push((place, amount));
            }
        }
        Ok(())
    }

    fn request<'a>(self, fields: Map<'a>) -> Result<Described<'a>, LeftToPython> {
        if fields.iter().any(|(name, _)| name == "entries") {
            return self.descriptor(fields);
        }
        let mut described = self.described("GET", "/");
        for (name, value) in fields {
            match (&*name, value) {
                ("method", Value::Text(method)) => described.method = upper(bounded(method)?)?,
                ("path", Value::Text(path)) if path.starts_with('/') => described.path = bounded(path)?,
                ("host", Value::Text(host)) => described.host = bounded(host)?,
                ("client_ip", Value::Text(address)) => described.client_ip = bounded(address)?,
                ("headers", Value::Map(headers)) => described.headers = read_headers(headers)?,
                _ => return Err(LeftToPython),
            }
        }
        if described.host.is_empty() {
            described.host = described.lines_of("host").joined().to_owned().into();
        }
        Ok(described)
    }

    /// What has entries, and nothing else.
    fn descriptor<'a>(self, mut fields: Map<'a>) -> Result<Described<'a>, LeftToPython> {
        let (Some((_, Value::List(items))), true) = (fields.pop(), fields.is_empty()) else {
            return Err(LeftToPython);
        };
        let mut described = self.described("", "");
        described.entries = read_entries(items)?;
        described.client_ip = remote_address(&described)?.to_owned().into();
        Ok(described)
    }

    fn described<'a>(self, method: &'a str, path: &'a str) -> Described<'a> {
        Described {
            method: method.into(),
            path: path.into(),
            host: "".into(),
            client_ip: "".into(),
            headers: Vec::new(),
            entries: Vec::new(),
            lines: Remembered::new(self.headers),
            times: 1,
            told: SmallVec::new(),
        }
    }
}

/// The entries of a descriptor; a value that is not there is empty.
fn read_entries<'a>(items: Vec<Value<'a>>) -> Result<Entries<'a>, LeftToPython> {
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

impl<'a> Described<'a> {
    fn lines_of(&self, name: &str) -> Lines<'a> {
        let mut lines = self.headers.iter().filter(|(own, _)| own == name).map(|(_, line)| line.clone());
        match lines.next() {
            Some(first) => Lines::from_lines(first, lines),
            None => Lines::None,
        }
    }
}

/// A header may be there several times, and names be spelled in several ways.
fn read_headers<'a>(fields: Map<'a>) -> Result<Headers<'a>, LeftToPython> {
    if fields.len() > MOST_HEADERS {
        return Err(LeftToPython);
    }
    let mut headers = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let name = header_name(name)?;
        match value {
            Value::Text(text) => headers.push((name, bounded(text)?)),
            Value::List(lines) => {
                for line in lines {
                    let Value::Text(text) = line else {
                        return Err(LeftToPython);
                    };
                    headers.push((name.clone(), bounded(text)?));
                }
            }
            _ => return Err(LeftToPython),
        }
    }
    Ok(headers)
}

/// `headgate.policy.headers.header_name`; what is no ASCII is Python's to write in lower case.
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
fn bounded(text: Cow<'_, str>) -> Result<Cow<'_, str>, LeftToPython> {
    let fits = text.len() <= LONGEST_TEXT || text.chars().count() <= LONGEST_TEXT;
    if fits { Ok(text) } else { Err(LeftToPython) }
}

fn amount(value: &Value<'_>) -> Result<i64, LeftToPython> {
    match value {
        Value::Number(number) if (0..=LARGEST).contains(number) => Ok(*number),
        _ => Err(LeftToPython),
    }
}

impl Subject for Described<'_> {
    type Error = LeftToPython;

    fn method(&self) -> Result<&str, LeftToPython> {
        Ok(&self.method)
    }

    fn path(&self) -> Result<&str, LeftToPython> {
        Ok(&self.path)
    }

    fn host(&self) -> Result<&str, LeftToPython> {
        Ok(&self.host)
    }

    fn client_ip(&self) -> Result<&str, LeftToPython> {
        Ok(&self.client_ip)
    }

    fn endpoint(&self) -> Result<&str, LeftToPython> {
        Ok("")
    }

    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, LeftToPython> {
        Ok(self.lines.get(name.number, || self.lines_of(&name.text)))
    }

    fn entry(&self, place: usize) -> Result<Option<(&str, &str)>, LeftToPython> {
        Ok(self.entries.get(place).map(|(key, value)| (&**key, &**value)))
    }

    fn attribute(&self, _: &str) -> Result<&str, LeftToPython> {
        Ok("") // what a request tells of itself are its headers
    }
}
