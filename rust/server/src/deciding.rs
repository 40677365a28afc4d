//! The current decider, which is swapped atomically: a request is decided by the old one or by the new one.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::decide::{Answer, Check, Decide};

/// The current decider.
pub struct Deciding(ArcSwap<Box<dyn Decide>>);

impl Deciding {
    pub fn new(decider: Box<dyn Decide>) -> Self {
        Self(ArcSwap::from_pointee(decider))
    }

    pub fn decide(&self, check: &Check<'_>) -> Answer {
        self.0.load().decide(check)
    }

    /// Replace the decider; the old one finishes the requests that it is deciding.
    pub fn swap(&self, decider: Box<dyn Decide>) {
        self.0.store(Arc::new(decider));
    }
}
