//! The state of one thread for its exchanges, and the state that all threads of a door share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;
use tokio_rustls::rustls::ServerConfig;

use crate::bounds::Bounds;
use crate::decide::{Answer, Check, Reply};
use crate::deciding::Deciding;
use crate::forward::Forward;
use crate::registry::Registry;
use crate::stats::Stats;

/// The state that all threads of a door share.
pub struct Shared {
    pub bounds: Arc<Bounds>,
    pub registry: Arc<Registry>,
    pub deciding: Deciding,
    /// The TLS configuration of new connections; None without TLS.
    pub tls: Option<ArcSwap<ServerConfig>>,
    pub stats: Vec<Stats>,
    /// Whether every response is the last one of its connection.
    pub ends: AtomicBool,
}

/// One thread, as its exchanges see it.
pub struct Worker {
    pub shared: Arc<Shared>,
    pub number: usize,
    forward: Forward,
    /// The number of connections that it serves.
    pub open: AtomicUsize,
    /// Held by the exchange whose check is decided in pieces; others wait for it.
    in_pieces: Mutex<()>,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, number: usize, forward: Forward) -> Self {
        Self { shared, number, forward, open: AtomicUsize::new(0), in_pieces: Mutex::new(()) }
    }

    pub fn bounds(&self) -> &Bounds {
        &self.shared.bounds
    }

    pub fn stats(&self) -> &Stats {
        &self.shared.stats[self.number]
    }

    /// The reply to a check; None where the Python service must answer.
    ///
    /// Checks that are decided in pieces take turns, so that at most one piece comes before any other request.
    pub async fn decide(&self, check: &Check<'_>) -> Option<Reply> {
        let mut answer = self.shared.deciding.decide(check);
        loop {
            match answer {
                Answer::Reply(reply) => return Some(reply),
                Answer::Later(later) => return Some(later.reply().await),
                Answer::InPieces(pieces) => {
                    let _turn = self.in_pieces.lock().await;
                    answer = pieces.answer().await;
                }
                Answer::Pass => {
                    self.stats().left_to_python.fetch_add(1, Relaxed);
                    return None;
                }
            }
        }
    }

    pub fn forward(&self) -> &Forward {
        &self.forward
    }

    pub fn ends(&self) -> bool {
        self.shared.ends.load(Relaxed)
    }
}
