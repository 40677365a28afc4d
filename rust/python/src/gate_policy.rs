//! A policy of Python, `headgate.policy.compiled`, read by its attributes.
//!
//! A policy that only Python can apply, for a function that computes identities or for text without UTF-8, is refused.

use headgate_policy::client_address::{AddressRules, Network};
use headgate_policy::compiled::{ClientNetworks, Conditions, Policy, Rule, Ruleset, TierLimits, Tiers};
use headgate_policy::entries::{EntryConditions, EntryPattern, EntryValues};
use headgate_policy::identity::{AddressSource, Combination, Identity, Source};
use headgate_policy::sent_values::SentName;
use headgate_policy::subject::Name;
use headgate_policy::value::NeedsPython;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::gate_subject::ReadError;

type ReadResult<T> = Result<T, ReadError>;

/// The most rules: the native gate numbers them with 16 bits.
const MOST_RULES: usize = u16::MAX as usize;

/// Read a `headgate.policy.compiled.Policy`.
pub fn read_policy(policy: &Bound<'_, PyAny>) -> ReadResult<Policy> {
    let mut reader = Reader { headers: Vec::new(), units: texts(&policy.getattr("units")?)? };
    let mut rules = Vec::new();
    for rule in policy.getattr("rules")?.try_iter()? {
        rules.push(reader.rule(&rule?)?);
    }
    if rules.len() > MOST_RULES {
        return Err(NeedsPython.into());
    }
    let exempt = each(&policy.getattr("exempt")?, |conditions| reader.conditions(conditions))?;
    let tiers = policy.getattr("tiers")?;
    let tiers = if tiers.is_none() { None } else { Some(reader.tiers(&tiers)?) };
    let mut rulesets = Vec::new();
    for (name, names) in policy.getattr("rulesets")?.cast_into::<PyDict>().map_err(PyErr::from)? {
        let names = texts(&names)?;
        rulesets
            .push(Ruleset { name: text(&name)?, has: rules.iter().map(|rule| names.contains(&rule.name)).collect() });
    }
    Ok(Policy { headers: reader.headers, units: reader.units, tiers, rules, exempt, rulesets })
}

struct Reader {
    headers: Vec<Box<str>>,
    units: Vec<Box<str>>,
}

impl Reader {
    fn rule(&mut self, rule: &Bound<'_, PyAny>) -> ReadResult<Rule> {
        let mut limits = Vec::new();
        for (tier, _) in rule.getattr("limits")?.cast_into::<PyDict>().map_err(PyErr::from)? {
            let units = texts(&rule.call_method1("units", (&tier,))?)?;
            let places = units.iter().map(|unit| self.units.iter().position(|known| known == unit).ok_or(NeedsPython));
            limits.push(TierLimits { tier: text(&tier)?, units: places.collect::<Result<_, _>>()? });
        }
        let costs = self.units.iter().map(|unit| rule.call_method1("cost_in", (&**unit,))?.extract());
        let costs = costs.collect::<PyResult<_>>()?;
        Ok(Rule {
            name: text(&rule.getattr("name")?)?,
            conditions: self.conditions(&rule.getattr("conditions")?)?,
            costs,
            key: self.combination(&rule.getattr("key")?)?,
            limits,
            default: rule.getattr("default")?.extract()?,
            shadow: rule.getattr("shadow")?.extract()?,
        })
    }

    fn combination(&mut self, key: &Bound<'_, PyAny>) -> ReadResult<Combination> {
        Ok(Combination {
            members: each(&key.getattr("members")?, |member| self.identity(member))?,
            refuses_missing: *text(&key.getattr("missing")?)? == *"refuse",
            refuses_repeated: *text(&key.getattr("repeated")?)? == *"refuse",
        })
    }

    fn tiers(&mut self, tiers: &Bound<'_, PyAny>) -> ReadResult<Tiers> {
        let map = tiers.getattr("map")?;
        let map = match map.cast::<PyDict>() {
            Ok(map) => {
                let pairs: ReadResult<_> = map.iter().map(|(from, tier)| Ok((text(&from)?, text(&tier)?))).collect();
                Some(pairs?)
            }
            Err(_) if map.is_none() => None,
            Err(_) => return Err(NeedsPython.into()),
        };
        Ok(Tiers { source: self.identity(&tiers.getattr("source")?)?, map })
    }

    fn identity(&mut self, identity: &Bound<'_, PyAny>) -> ReadResult<Identity> {
        let sent = |field: &str| -> ReadResult<SentName> { Ok(SentName::new(&text(&identity.getattr(field)?)?)?) };
        let secret = || -> ReadResult<bool> { Ok(identity.getattr("secret")?.extract()?) };
        let source = match identity.get_type().name()?.to_str().map_err(|_| NeedsPython)? {
            "HeaderIdentity" => {
                Source::Header { header: self.header(&identity.getattr("header")?)?, secret: secret()? }
            }
            "CookieIdentity" => {
                Source::Cookie { cookie: sent("cookie")?, header: self.named("cookie".into()), secret: secret()? }
            }
            "QueryIdentity" => Source::Query { parameter: sent("parameter")?, secret: secret()? },
            "EntryIdentity" => Source::Entry { entry: text(&identity.getattr("entry")?)?, secret: secret()? },
            "EntriesIdentity" => Source::Entries { secret: secret()? },
            "AddressIdentity" => Source::Address(self.addresses(&identity.getattr("rules")?)?),
            "MethodIdentity" => Source::Method,
            "HostIdentity" => Source::Host,
            "EndpointIdentity" => Source::Endpoint,
            "AttributeIdentity" => Source::Attribute,
            "FirstOf" => Source::FirstOf(each(&identity.getattr("members")?, |member| self.identity(member))?),
            _ => return Err(NeedsPython.into()), // a function of Python
        };
        Ok(Identity { name: text(&identity.getattr("name")?)?, source })
    }

    fn addresses(&mut self, rules: &Bound<'_, PyAny>) -> ReadResult<AddressSource> {
        let header = text(&rules.getattr("header")?)?;
        Ok(AddressSource {
            header: (!header.is_empty()).then(|| self.named(header.clone())),
            rules: AddressRules {
                header: header.into(),
                trusted: each(&rules.getattr("trusted")?, network)?,
                trust_unix: rules.getattr("trust_unix")?.extract()?,
                hops: rules.getattr("hops")?.extract()?,
                ipv4_prefix: rules.getattr("ipv4_prefix")?.extract()?,
                ipv6_prefix: rules.getattr("ipv6_prefix")?.extract()?,
            },
        })
    }

    fn conditions(&mut self, conditions: &Bound<'_, PyAny>) -> ReadResult<Conditions> {
        let mut headers = Vec::new();
        for pair in conditions.getattr("headers")?.try_iter()? {
            let (name, values): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
            let values = if values.is_none() { None } else { Some(texts(&values)?) };
            headers.push((self.header(&name)?, values));
        }
        let (clients, entries) = (conditions.getattr("clients")?, conditions.getattr("entries")?);
        Ok(Conditions {
            methods: texts(&conditions.getattr("methods")?)?,
            hosts: texts(&conditions.getattr("hosts")?)?,
            parent_hosts: texts(&conditions.getattr("parent_hosts")?)?,
            headers,
            paths: texts(&conditions.getattr("paths")?)?,
            clients: if clients.is_none() { None } else { Some(self.clients(&clients)?) },
            models: texts(&conditions.getattr("models")?)?,
            entries: if entries.is_none() { None } else { Some(entry_conditions(&entries)?) },
        })
    }

    fn clients(&mut self, clients: &Bound<'_, PyAny>) -> ReadResult<ClientNetworks> {
        Ok(ClientNetworks {
            networks: each(&clients.getattr("networks")?, network)?,
            unix: clients.getattr("unix")?.extract()?,
            source: self.addresses(&clients.getattr("rules")?)?,
        })
    }

    fn header(&mut self, name: &Bound<'_, PyAny>) -> ReadResult<Name> {
        Ok(self.named(text(name)?))
    }

    fn named(&mut self, name: Box<str>) -> Name {
        let number = self.headers.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.headers.push(name.clone());
            self.headers.len() - 1
        });
        Name { text: name, number }
    }
}

fn entry_conditions(entries: &Bound<'_, PyAny>) -> ReadResult<EntryConditions> {
    let values = |values: Bound<'_, PyAny>| -> ReadResult<Option<EntryValues>> {
        if values.is_none() {
            return Ok(None);
        }
        let (exact, patterns) = (texts(&values.getattr("texts")?)?, texts(&values.getattr("patterns")?)?);
        Ok(Some(EntryValues { texts: exact, patterns }))
    };
    let patterns = each(&entries.getattr("patterns")?, |pattern| {
        Ok(EntryPattern {
            key: text(&pattern.getattr("key")?)?,
            values: values(pattern.getattr("values")?)?,
            excepted: values(pattern.getattr("excepted")?)?,
        })
    });
    Ok(EntryConditions { patterns: patterns?, whole: entries.getattr("whole")?.extract()? })
}

fn network(network: &Bound<'_, PyAny>) -> ReadResult<Network> {
    Ok(Network {
        length: network.getattr("length")?.extract()?,
        first: network.getattr("first")?.extract()?,
        mask: network.getattr("mask")?.extract()?,
    })
}

fn each<'py, T>(
    values: &Bound<'py, PyAny>,
    mut read: impl FnMut(&Bound<'py, PyAny>) -> ReadResult<T>,
) -> ReadResult<Vec<T>> {
    values.try_iter()?.map(|value| read(&value?)).collect()
}

fn texts(values: &Bound<'_, PyAny>) -> ReadResult<Vec<Box<str>>> {
    each(values, text)
}

/// A text; one that has no UTF-8 is left to Python.
fn text(value: &Bound<'_, PyAny>) -> ReadResult<Box<str>> {
    let text = value.cast::<PyString>().map_err(|_| NeedsPython)?;
    Ok(text.to_str().map_err(|_| NeedsPython)?.into())
}
