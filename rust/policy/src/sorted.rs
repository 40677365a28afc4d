//! A policy whose lists are sorted, so that a request's values are found in them by binary search.
//!
//! `Matcher::new` sorts; `matching` and `networks` search.

use crate::compiled::{Conditions, Policy};
use crate::identity::{AddressSource, Identity, Source};
use crate::networks::tidy;

/// A policy that means the same, its lists of networks and of the values of headers and entries sorted.
pub fn sorted(mut policy: Policy) -> Policy {
    for conditions in &mut policy.exempt {
        sort_conditions(conditions);
    }
    for rule in &mut policy.rules {
        sort_conditions(&mut rule.conditions);
        rule.key.members.iter_mut().for_each(sort_identity);
    }
    if let Some(tiers) = &mut policy.tiers {
        sort_identity(&mut tiers.source);
    }
    policy
}

fn sort_conditions(conditions: &mut Conditions) {
    for (_, values) in &mut conditions.headers {
        values.iter_mut().for_each(|values| values.sort_unstable());
    }
    for pattern in conditions.entries.iter_mut().flat_map(|entries| &mut entries.patterns) {
        pattern.values.iter_mut().chain(&mut pattern.excepted).for_each(|values| values.texts.sort_unstable());
    }
    if let Some(clients) = &mut conditions.clients {
        tidy(&mut clients.networks);
        sort_source(&mut clients.source);
    }
}

fn sort_identity(identity: &mut Identity) {
    match &mut identity.source {
        Source::Address(source) => sort_source(source),
        Source::FirstOf(members) => members.iter_mut().for_each(sort_identity),
        _ => {}
    }
}

fn sort_source(source: &mut AddressSource) {
    tidy(&mut source.rules.trusted);
}
