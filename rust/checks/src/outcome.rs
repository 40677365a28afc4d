//! The outcomes of checks that wait for a store.

use headgate_core::table::answer::Answer;
use headgate_server::decide::Reply;
use smallvec::SmallVec;

/// The outcome of a check.
#[derive(Debug)]
pub enum Outcome {
    /// A decision, and what made it in place of the store: `local`, `open`, `closed`, else empty.
    Decided(Answer, &'static str),
    /// A failure, with the response that reports it.
    Failed(Reply),
}

/// The outcome of each check of a request; None where it is lost.
pub type Outcomes = SmallVec<[Option<Outcome>; 1]>;
