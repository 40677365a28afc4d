//! Identities as a policy names them: which part of a request tells callers apart. Plain values.
//!
//! `extract` reads them for a subject. An identity that a Python function computes is none of them.

use crate::client_address::AddressRules;
use crate::sent_values::SentName;
use crate::subject::Name;

/// Starts the parts of a missing identity; no identity can have this name.
pub const ANONYMOUS: &str = "anonymous";

/// Starts the parts of an identity that was sent several times with different values; no identity has this name.
pub const REPEATED_IDENTITY: &str = "repeated";

/// The key of a rule that counts all requests together.
pub const EVERYONE: &str = "everyone";

/// Which part of a request tells callers apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// Its name in the policy.
    pub name: Box<str>,
    /// Where it is read.
    pub source: Source,
}

/// Where an identity is read.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// The value of a header; of a `secret` one its digest.
    Header {
        /// The header's name.
        header: Name,
        /// Whether only its digest is used.
        secret: bool,
    },
    /// The value of a cookie; of a `secret` one its digest.
    Cookie {
        /// The cookie's name.
        cookie: SentName,
        /// Where cookies are sent.
        header: Name,
        /// Whether only its digest is used.
        secret: bool,
    },
    /// The value of a query parameter; of a `secret` one its digest.
    Query {
        /// The parameter's name.
        parameter: SentName,
        /// Whether only its digest is used.
        secret: bool,
    },
    /// The value of a descriptor's entry with this key; of a `secret` one its digest.
    Entry {
        /// The entry's key.
        entry: Box<str>,
        /// Whether only its digest is used.
        secret: bool,
    },
    /// All entries of a descriptor, in their order; of `secret` ones their digest.
    Entries {
        /// Whether only their digest is used.
        secret: bool,
    },
    /// The client's network, found by these rules.
    Address(AddressSource),
    /// The request's method.
    Method,
    /// The host that the request was sent to, without its port, in lower case.
    Host,
    /// The endpoint: the framework's template of the route, else the template of the rule that the path matched.
    Endpoint,
    /// The attribute of a call with the identity's name.
    Attribute,
    /// The first of these identities that a request has, with its name.
    FirstOf(Vec<Identity>),
}

/// Rules that find a client's address, and the header that they read.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressSource {
    /// Which proxies to believe.
    pub rules: AddressRules,
    /// The one header that they may be believed in.
    pub header: Option<Name>,
}

/// The identities that together make a rule's key; none at all counts all requests as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Combination {
    /// In the order of their parts.
    pub members: Vec<Identity>,
    /// Whether a request without one of them is refused, instead of counted as anonymous.
    pub refuses_missing: bool,
    /// Whether one that sends one of them several times, with different values, is refused, instead of counted with
    /// all such.
    pub refuses_repeated: bool,
}
