//! What the door asks about a check, and what it is answered.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

/// Decides checks. It is asked on the threads of the door, and must not block.
pub trait Decide: Send + Sync {
    /// The answer to a check.
    fn decide(&self, check: &Check<'_>) -> Answer;
}

impl<D: Decide + ?Sized> Decide for Arc<D> {
    fn decide(&self, check: &Check<'_>) -> Answer {
        (**self).decide(check)
    }
}

/// A request to the door that asks for a decision.
pub struct Check<'a> {
    /// What is asked.
    pub question: Question<'a>,
    /// The method of the request to the door.
    pub method: &'a Method,
    /// Its header fields; `host` is there if the client named one in any way.
    pub headers: &'a HeaderMap,
    /// The address of the client of the door.
    pub peer: IpAddr,
}

/// What a check asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    /// `/check/{ruleset}` and `/check-403/{ruleset}`: whether the request that the header fields describe may pass.
    Forwarded {
        /// The ruleset, as the path has it.
        ruleset: &'a str,
        /// What follows the ruleset in the path, with its slash; `/` where nothing does.
        path: &'a str,
        /// Whether a refusal is 403 without a body, with the problem in a field, as nginx needs it.
        bare: bool,
    },
    /// `POST /v1/check`: whether the requests of a body may pass.
    Described {
        /// The body.
        body: &'a [u8],
    },
}

/// The answer to a check.
#[derive(Debug)]
pub enum Answer {
    /// What the client gets.
    Reply(Reply),
    /// The Python service is to answer: nothing was decided, and nothing charged.
    Pass,
}

/// A response that is there as a whole.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// What `body` is; not sent where that is empty.
    pub content_type: &'static str,
    /// Header fields, in their order; all but those that any response has.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: Bytes,
}
