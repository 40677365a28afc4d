//! Reports decisions to clients in the same bytes as Python writes: `headgate.http.fields.ratelimit`,
//! `headgate.http.refusal` and `headgate.service.checks.decision_json`.
//!
//! Everything is written from the integers of a table's answer and from texts that are the same in all answers of a
//! limit. There is no Python here, no I/O and no clock. tests/laws/test_native_answers.py holds both sides together.

#![forbid(unsafe_code)]

pub mod decision_json;
pub mod problem;
pub mod ratelimit;
mod text;

use headgate_core::algorithms::transition::{NEVER, Reading};
use headgate_core::table::answer::{Answer, OnFull};

use crate::ratelimit::Form;

const US: i64 = 1_000_000;

/// A limit as it is reported to clients.
#[derive(Clone, Debug)]
pub struct NamedLimit {
    /// The numbers that its header fields are written from.
    pub form: Form,
    /// Its name.
    pub name: Box<str>,
    /// The name of its rule, empty outside a policy.
    pub rule: Box<str>,
    /// The limit as people write it: `5/minute`.
    pub text: Box<str>,
    /// The unit that it counts, of money billionths: `requests`, `nano-usd`.
    pub unit: Box<str>,
}

/// The limits that a decision was about, in its order.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The limits.
    pub all: Vec<NamedLimit>,
    /// The value of RateLimit-Policy; None where every limit is a shadow.
    pub policy: Option<Box<str>>,
}

/// One decision, as it is reported.
#[derive(Clone, Copy, Debug)]
pub struct Verdict<'a> {
    /// The answer of the table.
    pub answer: &'a Answer,
    /// What decided in place of the store: `local`, `open`, `closed`, else empty.
    pub degraded: &'a str,
}

impl<'a> Verdict<'a> {
    /// The answer of a table.
    pub fn of(answer: &'a Answer) -> Self {
        let degraded = match answer.full {
            None => "",
            Some(OnFull::Pass) => "open",
            Some(OnFull::Forget | OnFull::Refuse) => "closed",
        };
        Self { answer, degraded }
    }

    /// Whether the request may pass.
    pub fn allowed(&self) -> bool {
        self.answer.allowed
    }

    /// The numbers of each limit.
    pub fn readings(&self) -> &'a [Reading] {
        self.answer.readings.all()
    }

    /// The status of a response to a gateway: 200, 429, or 503 where the store's failure refuses.
    pub fn status(&self) -> u16 {
        match (self.answer.allowed, self.degraded) {
            (true, _) => 200,
            (false, "closed") => 503,
            (false, _) => 429,
        }
    }

    /// Microseconds until the request would pass: 0 when it does, None for never.
    pub fn retry_after_us(&self) -> Option<i64> {
        if self.answer.allowed {
            return Some(0);
        }
        let binding = self.readings().get(usize::from(self.answer.binding?))?;
        (binding.retry_after_us != NEVER).then_some(binding.retry_after_us)
    }

    /// The value of Retry-After on a refusal, in seconds: at least 1; None where waiting cannot help.
    pub fn retry_after_s(&self) -> Option<i64> {
        self.retry_after_us().map(|wait_us| rounded_up(wait_us, US).max(1))
    }
}

/// A whole number of units, rounded up; the amount is not negative.
fn rounded_up(amount: i64, unit: i64) -> i64 {
    amount / unit + i64::from(amount % unit > 0)
}
