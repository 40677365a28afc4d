//! The counters of the door, for the service's metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;

/// The route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/healthz`.
    Health,
    /// `/check/{ruleset}`.
    Check,
    /// `/check-403/{ruleset}`.
    Check403,
    /// `POST /v1/check`.
    Described,
    /// Anything else, which the Python service answers.
    Other,
    /// None: the request could not be read, or did not arrive in time.
    None,
}

/// All routes with their names, in the order of `Route`.
pub const ROUTES: [&str; 6] = ["healthz", "check", "check-403", "v1/check", "other", "none"];

const FIRST_STATUS: usize = 100;
const STATUSES: usize = 500;

/// The counters of one thread.
pub struct Stats {
    responses: Vec<AtomicU64>,
    /// Checks that the decider left to the Python service.
    pub(crate) left_to_python: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) gave_way: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) idle: AtomicU64,
    pub(crate) no_handshake: AtomicU64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            responses: (0..ROUTES.len() * STATUSES).map(|_| AtomicU64::new(0)).collect(),
            left_to_python: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            gave_way: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            no_handshake: AtomicU64::new(0),
        }
    }
}

impl Stats {
    pub(crate) fn count(&self, route: Route, status: StatusCode) {
        let status = usize::from(status.as_u16()).saturating_sub(FIRST_STATUS);
        if let Some(counter) = self.responses.get(route as usize * STATUSES + status.min(STATUSES - 1)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The counters of a door since it opened, summed over its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// (route, status, responses), where there was one.
    pub responses: Vec<(&'static str, u16, u64)>,
    /// Checks that the decider left to the Python service.
    pub left_to_python: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that are open.
    pub open: u64,
    /// Bytes of requests that are incomplete or wait for their turn at the Python service.
    pub held: u64,
    /// Connections that were closed in favour of others.
    pub gave_way: u64,
    /// Connections whose client took too long.
    pub expired: u64,
    /// Connections on which no further request came.
    pub idle: u64,
    /// Connections whose client sent something else than TLS, or had no accepted certificate.
    pub no_handshake: u64,
}

impl Figures {
    /// The sum of the counters of threads.
    pub(crate) fn of<'a>(threads: impl Iterator<Item = &'a Stats> + Clone, open: usize, held: usize) -> Self {
        let sum = |one: fn(&Stats) -> &AtomicU64| threads.clone().map(|stats| one(stats).load(Ordering::Relaxed)).sum();
        let mut responses = vec![];
        for index in 0..ROUTES.len() * STATUSES {
            let count = |stats: &Stats| stats.responses.get(index).map_or(0, |count| count.load(Ordering::Relaxed));
            let count: u64 = threads.clone().map(count).sum();
            if count > 0 {
                responses.push((ROUTES[index / STATUSES], (index % STATUSES + FIRST_STATUS) as u16, count));
            }
        }
        Self {
            responses,
            left_to_python: sum(|stats| &stats.left_to_python),
            accepted: sum(|stats| &stats.accepted),
            open: open as u64,
            held: held as u64,
            gave_way: sum(|stats| &stats.gave_way),
            expired: sum(|stats| &stats.expired),
            idle: sum(|stats| &stats.idle),
            no_handshake: sum(|stats| &stats.no_handshake),
        }
    }

    /// How many responses there were.
    pub fn total(&self) -> u64 {
        self.responses.iter().map(|(_, _, count)| count).sum()
    }
}
