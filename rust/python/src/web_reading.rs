//! The fields that a policy reads from the requests of one application, and how.

use std::cell::OnceCell;

use headgate_policy::compiled::{Conditions, Policy};
use headgate_policy::identity::{Identity, Source};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::gate_subject::ReadError;
use crate::server_text::Text;

/// Any path, where the policy looks at none: one that has a single form.
pub const UNREAD: &str = "/-";
/// The name of a peer without an address where all clients have a key.
const UNIX: &str = "unix";
/// The most bytes of an address; a longer text is none.
const LONGEST_PEER: usize = 64;
/// Headers whose names in an environ are no others' and that are empty text where they are not there (PEP 3333).
const OF_THE_BODY: [&str; 2] = ["content-type", "content-length"];

/// A header as servers name it.
pub struct WebName {
    /// In lower case, with "-" for "_"; None where that takes more than ASCII.
    pub in_scopes: Option<Box<[u8]>>,
    /// As CGI has it.
    pub in_environs: Py<PyString>,
    pub is_of_body: bool,
}

impl WebName {
    fn new(py: Python<'_>, name: &str) -> Self {
        let is_of_body = OF_THE_BODY.contains(&name.to_lowercase().as_str());
        let upper = name.to_uppercase().replace('-', "_");
        let in_environs = if is_of_body { upper } else { format!("HTTP_{upper}") };
        let in_scopes = name.is_ascii().then(|| name.to_ascii_lowercase().replace('_', "-").into_bytes().into());
        Self { in_scopes, in_environs: PyString::intern(py, &in_environs).unbind(), is_of_body }
    }
}

/// The keys of every scope of ASGI, created once: each request looks them up.
pub struct ScopeNames {
    pub kind: Py<PyString>,
    pub method: Py<PyString>,
    pub raw_path: Py<PyString>,
    pub root_path: Py<PyString>,
    pub client: Py<PyString>,
    pub headers: Py<PyString>,
}

impl ScopeNames {
    fn new(py: Python<'_>) -> Self {
        let name = |text| PyString::intern(py, text).unbind();
        Self {
            kind: name("type"),
            method: name("method"),
            raw_path: name("raw_path"),
            root_path: name("root_path"),
            client: name("client"),
            headers: name("headers"),
        }
    }
}

/// How requests are read.
pub struct Reading {
    pub in_scopes: ScopeNames,
    /// The headers that the policy reads, by their numbers.
    pub names: Box<[WebName]>,
    pub host: WebName,
    /// Whether the policy uses paths and queries. A part that it does not use is not read.
    pub reads_paths: bool,
    pub reads_queries: bool,
    reads_cookies: bool,
    reads_endpoints: bool,
    /// Whether a framework's parser decides the values of repeated headers, of cookies and of parameters.
    pub is_of_framework: bool,
    /// Whether every client has a key: a peer without an address is `unix`.
    every_client_has_a_key: bool,
    endpoint: Box<str>,
}

impl Reading {
    /// The reading of a policy. `endpoint` is that of all requests, "" where each may have its own.
    pub fn new(
        py: Python<'_>,
        policy: &Policy,
        is_of_framework: bool,
        every_client_has_a_key: bool,
        endpoint: &str,
    ) -> Self {
        let mut identities: Vec<&Identity> = policy.rules.iter().flat_map(|rule| &rule.key.members).collect();
        identities.extend(policy.tiers.iter().map(|tiers| &tiers.source));
        let any = |wanted: fn(&Source) -> bool| identities.iter().any(|identity| reads(identity, wanted));
        let has_paths = |conditions: &Conditions| !conditions.paths.is_empty();
        let reads_queries = any(|source| matches!(source, Source::Query { .. }));
        Self {
            in_scopes: ScopeNames::new(py),
            names: policy.headers.iter().map(|name| WebName::new(py, name)).collect(),
            host: WebName::new(py, "host"),
            reads_paths: reads_queries
                || policy.exempt.iter().any(has_paths)
                || policy.rules.iter().any(|rule| has_paths(&rule.conditions)),
            reads_queries,
            reads_cookies: any(|source| matches!(source, Source::Cookie { .. })),
            reads_endpoints: any(|source| matches!(source, Source::Endpoint)),
            is_of_framework,
            every_client_has_a_key,
            endpoint: endpoint.into(),
        }
    }

    /// Whether all that the policy reads can be read here: values that a framework parses in its own way cannot.
    pub fn is_possible(&self) -> bool {
        !(self.is_of_framework && (self.reads_queries || self.reads_cookies))
    }

    /// Whether the endpoint of a request makes a difference.
    pub fn distinguishes_endpoints(&self) -> bool {
        self.reads_endpoints && self.endpoint.is_empty()
    }

    /// The endpoint of all requests, or that of this one.
    pub fn endpoint_or<'own>(&'own self, of_this_one: &'own str) -> &'own str {
        if self.endpoint.is_empty() { of_this_one } else { &self.endpoint }
    }

    /// A peer as the key of its client has it.
    #[inline]
    pub fn peer<'py>(&self, peer: Text<'py>) -> Result<Text<'py>, ReadError> {
        if !self.every_client_has_a_key {
            return Ok(peer);
        }
        let text = peer.as_str()?;
        if text.is_empty() || !text.is_ascii() {
            return Ok(Text::Known(UNIX));
        }
        if text.len() > LONGEST_PEER { Err(ReadError::NeedsPython) } else { Ok(peer) }
    }
}

fn reads(identity: &Identity, wanted: fn(&Source) -> bool) -> bool {
    match &identity.source {
        Source::FirstOf(members) => members.iter().any(|member| reads(member, wanted)),
        source => wanted(source),
    }
}

/// The value of a cell, read if it is not there yet.
#[inline]
pub fn read_once<T>(place: &OnceCell<T>, read: impl FnOnce() -> Result<T, ReadError>) -> Result<&T, ReadError> {
    if place.get().is_none() {
        let _ = place.set(read()?);
    }
    place.get().ok_or(ReadError::NeedsPython)
}
