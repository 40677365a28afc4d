//! Waiting for a shard of a zone: usually for less time than it takes to fall asleep, and no longer than that where
//! its holder is known to be stopped.

use std::thread;
use std::time::{Duration, Instant};

/// The longest that one decision waits.
pub const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// The progress of a wait: it spins, then yields, then sleeps, until `LONGEST_WAIT` is over.
#[derive(Default)]
pub struct Backoff {
    pauses: u32,
    since: Option<Instant>,
}

impl Backoff {
    /// Wait a bit; false if the wait was long enough, which for a holder that `is_stopped` is a few microseconds.
    pub fn pause(&mut self, is_stopped: bool) -> bool {
        const SPINS: u32 = 6;
        const YIELDS: u32 = 40;
        const NAP: Duration = Duration::from_micros(50);
        match self.pauses {
            ..SPINS => (0..1 << self.pauses).for_each(|_| std::hint::spin_loop()),
            _ if is_stopped => return false,
            SPINS..YIELDS => thread::yield_now(),
            _ => {
                if self.since.get_or_insert_with(Instant::now).elapsed() > LONGEST_WAIT {
                    return false;
                }
                thread::sleep(NAP);
            }
        }
        self.pauses = self.pauses.saturating_add(1);
        true
    }
}
