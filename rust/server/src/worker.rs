//! What the exchanges of one thread need, and what all threads of a door share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use tokio_rustls::rustls::ServerConfig;

use crate::bounds::Bounds;
use crate::decide::{Answer, Check};
use crate::deciding::Deciding;
use crate::forward::Forward;
use crate::registry::Registry;
use crate::stats::Stats;

/// What all threads of a door share.
pub struct Shared {
    pub bounds: Arc<Bounds>,
    pub registry: Arc<Registry>,
    pub deciding: Deciding,
    /// What new connections begin TLS with; None where they are bare.
    pub tls: Option<ArcSwap<ServerConfig>>,
    pub stats: Vec<Stats>,
    /// Every response is the last one of its connection.
    pub ends: AtomicBool,
}

/// One thread, as its exchanges see it.
pub struct Worker {
    pub shared: Arc<Shared>,
    pub number: usize,
    forward: Forward,
    /// Connections that it serves.
    pub open: AtomicUsize,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, number: usize, forward: Forward) -> Self {
        Self { shared, number, forward, open: AtomicUsize::new(0) }
    }

    pub fn bounds(&self) -> &Bounds {
        &self.shared.bounds
    }

    pub fn stats(&self) -> &Stats {
        &self.shared.stats[self.number]
    }

    pub fn decide(&self, check: &Check<'_>) -> Answer {
        self.shared.deciding.decide(check)
    }

    pub fn forward(&self) -> &Forward {
        &self.forward
    }

    pub fn ends(&self) -> bool {
        self.shared.ends.load(Relaxed)
    }
}
