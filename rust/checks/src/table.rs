//! The table that checks are decided on, with its clock, as the binding to Python or a test has it.

use std::sync::Arc;

use headgate_core::hash::Seed;
use headgate_core::shard::registered::Registered;
use headgate_core::table::answer::{Answer, Check};
use headgate_policy::value::NeedsPython;

/// A table, and the clock that it obeys. Many threads use it.
pub trait Table: Send + Sync {
    /// How keys are hashed here.
    fn seed(&self) -> &Seed;

    /// The moment, in microseconds since the epoch.
    fn now_us(&self) -> Result<i64, Failed>;

    /// Whether these limits can be decided together here.
    fn fits(&self, limits: &[Arc<Registered>]) -> bool;

    /// Decide the checks of one request at one instant, and charge all or none; it does not panic.
    fn decide(&self, checks: &[Check<'_>], now_us: i64) -> Result<Answer, Failed>;
}

/// A table that could not decide: nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// The Python service is to answer: nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftToPython;

impl From<NeedsPython> for LeftToPython {
    fn from(_: NeedsPython) -> Self {
        Self
    }
}

impl From<Failed> for LeftToPython {
    fn from(_: Failed) -> Self {
        Self
    }
}
