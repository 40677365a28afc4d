//! The requests that the body of `POST /v1/check` describes: `headgate.service.checks.body`.
//!
//! A body that cannot be used is left to Python, which says what is wrong with it.

use std::borrow::Cow;

use headgate_core::limit::LARGEST;
use headgate_policy::costs::Cost;
use headgate_policy::entries::remote_address;
use headgate_policy::resolver::Resolver;
use headgate_policy::subject::{Name, Sent, Subject};
use smallvec::SmallVec;

use crate::body_fields::{Entries, Headers, Map, bounded, read_entries, read_headers};
use crate::forwarded::upper;
use crate::header_text::{LineCache, Lines};
use crate::json::Value;
use crate::table::LeftToPython;

/// The ruleset that a request is checked by where it names none.
const ALL_RULES: &str = "default";
const MOST_UNITS: usize = 16;
const REQUESTS: &str = "requests";

/// A unit that a policy's limits count.
#[derive(Clone, Debug)]
pub struct Unit {
    /// As bodies name it.
    pub name: Box<str>,
    /// Whether it is a currency, whose amounts Python reads.
    pub is_money: bool,
}

/// Reads bodies for a policy: the units that it counts, and the number of headers that it reads.
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

/// A request, its cost, and the ruleset that it is checked by.
pub struct Described<'a> {
    method: Cow<'a, str>,
    path: Cow<'a, str>,
    host: Cow<'a, str>,
    client_ip: Cow<'a, str>,
    headers: Headers<'a>,
    /// Those of a descriptor; it has nothing else.
    entries: Entries<'a>,
    lines: LineCache<'a>,
    times: i64,
    amounts: SmallVec<[(usize, i64); 2]>,
    ruleset: Cow<'a, str>,
}

impl Described<'_> {
    /// Its cost.
    pub fn cost(&self) -> Cost<'_> {
        Cost { times: self.times, amounts: &self.amounts }
    }

    /// Which ruleset of a policy it is checked by.
    pub fn ruleset<L>(&self, resolver: &Resolver<L>) -> Result<usize, LeftToPython> {
        resolver.ruleset(&self.ruleset).ok_or(LeftToPython)
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

    /// One of several: a request, or {"request": ..., "cost": ..., "ruleset": ...}.
    fn item<'a>(self, item: Value<'a>) -> Result<Described<'a>, LeftToPython> {
        match item {
            Value::Map(fields) if fields.iter().any(|(name, _)| name == "request") => self.check(fields),
            Value::Map(request) => self.request(request),
            _ => Err(LeftToPython),
        }
    }

    fn check<'a>(self, fields: Map<'a>) -> Result<Described<'a>, LeftToPython> {
        let (mut described, mut cost, mut ruleset) = (None, None, Cow::Borrowed(ALL_RULES));
        for (name, value) in fields {
            match (&*name, value) {
                ("request", Value::Map(request)) => described = Some(self.request(request)?),
                ("cost", value) => cost = Some(value),
                ("ruleset", Value::Text(name)) => ruleset = bounded(name)?,
                _ => return Err(LeftToPython),
            }
        }
        let mut described = described.ok_or(LeftToPython)?;
        described.ruleset = ruleset;
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
                described.amounts.push((place, amount));
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

    /// A descriptor: a request that has entries and no other field.
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
            lines: LineCache::new(self.headers),
            times: 1,
            amounts: SmallVec::new(),
            ruleset: ALL_RULES.into(),
        }
    }
}

impl<'a> Described<'a> {
    /// The lines of a header, and all of them as one list, as `headgate.policy.request.joined` gives it.
    fn lines_of(&self, name: &str) -> Lines<'a> {
        let matching = || self.headers.iter().filter(|header| header.name == name);
        let mut lines = matching().map(|header| header.line.clone());
        let Some(first) = lines.next() else {
            return Lines::None;
        };
        match Lines::from_lines(first, lines) {
            Lines::Several { each, .. } if matching().any(|header| header.is_plain) => {
                let plain: Vec<&str> =
                    matching().filter(|header| header.is_plain).map(|header| &*header.line).collect();
                Lines::Several { joined: plain.join(", "), each }
            }
            lines => lines,
        }
    }
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
        Ok("") // a described request has headers, but no attributes
    }
}
