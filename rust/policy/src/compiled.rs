//! A policy as data: the contents of its file, with names resolved and defaults filled in. Plain, immutable values.
//!
//! `headgate.policy.compiled` has the same under the same names, and reads and checks the file; fields that only people
//! or stores read are left to it. `matching` and `extract` read this for a subject.

use rustc_hash::FxHashMap;

use crate::entries::EntryConditions;
use crate::identity::{AddressSource, Combination, Identity};
use crate::networks::Network;
use crate::subject::Name;

/// The tier of limits that hold for all requests, and of tiers that a rule does not name.
pub const ANY_TIER: &str = "";

/// Networks that a client's address is in, and whether the peers of Unix sockets are.
#[derive(Clone, Debug)]
pub struct ClientNetworks {
    /// One is enough.
    pub networks: Vec<Network>,
    /// Whether a peer without an address is meant.
    pub unix: bool,
    /// How the address is found.
    pub source: AddressSource,
}

/// Which requests are meant; all that is given must hold, and of several values one.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// In upper case.
    pub methods: Vec<Box<str>>,
    /// Without ports, in lower case.
    pub hosts: Vec<Box<str>>,
    /// They begin with a dot and mean all hosts below.
    pub parent_hosts: Vec<Box<str>>,
    /// Names with their values, None for any value.
    pub headers: Vec<(Name, Option<Vec<Box<str>>>)>,
    /// Templates.
    pub paths: Vec<Box<str>>,
    /// Where the client is.
    pub clients: Option<ClientNetworks>,
    /// Names of language models in small letters, or beginnings of names with a `*`.
    pub models: Vec<Box<str>>,
    /// The entries that a descriptor must have; a subject that is no descriptor does not match.
    pub entries: Option<EntryConditions>,
}

impl Conditions {
    /// Whether more of a request matters than its method, host and path.
    pub fn look_further(&self) -> bool {
        !self.headers.is_empty() || !self.models.is_empty() || self.clients.is_some() || self.entries.is_some()
    }

    /// Whether a request of this method is meant, sent to these hosts: one is enough.
    pub fn is_for(&self, method: &str, hosts: &[&str]) -> bool {
        self.is_method(method) && (self.is_any_host() || hosts.iter().any(|host| self.is_host(host)))
    }

    /// `is_for`, where each of the hosts must be meant.
    pub fn is_surely_for(&self, method: &str, hosts: &[&str]) -> bool {
        self.is_for(method, hosts) && (self.is_any_host() || hosts.iter().all(|host| self.is_host(host)))
    }

    fn is_method(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|one| **one == *method)
    }

    fn is_any_host(&self) -> bool {
        self.hosts.is_empty() && self.parent_hosts.is_empty()
    }

    fn is_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|one| **one == *host) || self.parent_hosts.iter().any(|one| host.ends_with(&**one))
    }
}

/// Where a request's tier is read from: the last part of an identity, which `map` may give another name.
#[derive(Clone, Debug)]
pub struct Tiers {
    /// The identity that is read.
    pub source: Identity,
    /// The tier of each value; a value that is not here is of no tier.
    pub map: Option<FxHashMap<Box<str>, Box<str>>>,
}

/// The units that the limits of a rule count for one tier.
#[derive(Clone, Debug)]
pub struct TierLimits {
    /// The tier, `ANY_TIER` for all others.
    pub tier: Box<str>,
    /// The units that its limits count, by their places in `Policy::units`: each is a group of a decision.
    pub units: Vec<usize>,
}

/// Which requests are counted, as what, and under which limits.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name in the policy.
    pub name: Box<str>,
    /// The requests that it counts.
    pub conditions: Conditions,
    /// The key that it counts them by.
    pub key: Combination,
    /// An entry for each tier that the rule names, and one for all others.
    pub limits: Vec<TierLimits>,
    /// The cost of one request in each of `Policy::units`.
    pub costs: Vec<i64>,
    /// Whether it applies only where no other enforced rule does.
    pub default: bool,
    /// Whether it never refuses.
    pub shadow: bool,
}

impl Rule {
    /// Whether the limits depend on the request's tier.
    pub fn is_tiered(&self) -> bool {
        self.limits.len() > 1
    }

    /// The units that its limits of a tier count.
    pub fn units(&self, tier: &str) -> &[usize] {
        let named = self.limits.iter().find(|limits| *limits.tier == *tier);
        let of_tier = named.or_else(|| self.limits.iter().find(|limits| *limits.tier == *ANY_TIER));
        of_tier.map_or(&[], |limits| &limits.units)
    }
}

/// Some of the rules, by name.
#[derive(Clone, Debug)]
pub struct Ruleset {
    /// The name that callers request it by.
    pub name: Box<str>,
    /// Whether each of `Policy::rules` is one of it.
    pub has: Vec<bool>,
}

/// The rules of one system.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The names of all headers that it reads, by their numbers.
    pub headers: Vec<Box<str>>,
    /// Requests, and the other units that any of its limits count.
    pub units: Vec<Box<str>>,
    /// How the tier of a request is determined.
    pub tiers: Option<Tiers>,
    /// In the order of the file.
    pub rules: Vec<Rule>,
    /// Requests that no rule is for.
    pub exempt: Vec<Conditions>,
    /// All rulesets that may be requested.
    pub rulesets: Vec<Ruleset>,
}
