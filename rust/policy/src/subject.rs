//! The subject that a policy is evaluated for: all that its conditions and identities read.
//!
//! A request of a web server is one, be it Python's or of a server in Rust; so is a set of entries that a gateway
//! describes a request by, which has "" for fields that it does not know. Nothing in it is trusted.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::value::NeedsPython;

/// The name of a header in lower case, and its number among those that a policy reads.
///
/// A subject that is read by many names may cache the headers that it found by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// As headers are found by it.
    pub text: Box<str>,
    /// Its place in `Policy::headers`.
    pub number: usize,
}

/// The lines of a header as they were sent.
#[derive(Clone, Debug)]
pub enum Sent<'a> {
    /// One line.
    One(&'a str),
    /// Several lines of one name.
    Several {
        /// All in order, with ", " between them.
        joined: &'a str,
        /// Each as it was sent.
        lines: SmallVec<[&'a str; 4]>,
    },
}

impl<'a> Sent<'a> {
    /// All lines as one list.
    pub fn joined(&self) -> &'a str {
        match self {
            Self::One(text) => text,
            Self::Several { joined, .. } => joined,
        }
    }

    /// Each line.
    pub fn lines(&self) -> &[&'a str] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Several { lines, .. } => lines,
        }
    }
}

/// The subject of an evaluation of a policy.
pub trait Subject {
    /// Why a field could not be read; one reason is that only Python can read it.
    type Error: From<NeedsPython>;

    /// The method, in upper case.
    fn method(&self) -> Result<&str, Self::Error>;

    /// The path as it was sent, with its query.
    fn path(&self) -> Result<&str, Self::Error>;

    /// Another path that the application may read in it; see `RootedPath` of `headgate.policy.subject`.
    fn other_path(&self) -> Result<Option<Cow<'_, str>>, Self::Error> {
        Ok(None)
    }

    /// The host as it was sent.
    fn host(&self) -> Result<&str, Self::Error>;

    /// The address of the peer. Whether a header may replace it is the policy's decision.
    fn client_ip(&self) -> Result<&str, Self::Error>;

    /// The template of the route, where the framework knows it, else "".
    fn endpoint(&self) -> Result<&str, Self::Error>;

    /// The lines of a header, None where there is none.
    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, Self::Error>;

    /// The entry of a descriptor at a place, from 0: its key and its value; None after the last, and without one.
    fn entry(&self, _place: usize) -> Result<Option<(&str, &str)>, Self::Error> {
        Ok(None)
    }

    /// An attribute of a call that is no HTTP request, as its user or its model; "" for one that it does not have.
    fn attribute(&self, name: &str) -> Result<&str, Self::Error>;
}
