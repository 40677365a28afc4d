//! What comes of checks that wait for a store.

use headgate_core::table::answer::Answer;
use headgate_server::decide::Reply;
use smallvec::SmallVec;

/// What came of a check.
#[derive(Debug)]
pub enum Outcome {
    /// A decision, and what made it in place of the store: `local`, `open`, `closed`, else empty.
    Decided(Answer, &'static str),
    /// A failure, with the response that tells of it.
    Failed(Reply),
}

/// What came of each check of a request; None where that is lost.
pub type Outcomes = SmallVec<[Option<Outcome>; 1]>;
