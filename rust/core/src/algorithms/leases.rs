//! The leases of one key, by their ends: the places in use are a running sum, not counted anew.

use std::cell::Cell;
use std::collections::BTreeMap;

/// A number of places, until a moment in microseconds. `number` distinguishes leases of the same end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The end, in microseconds.
    pub until: i64,
    /// Distinguishes it from leases of the same end.
    pub number: u64,
    /// The places it takes.
    pub places: i64,
}

/// The leases of one key, wherever they are stored. Moments are microseconds.
pub trait Leases {
    /// The places of the leases that are not over.
    fn used(&self, now: i64) -> i64;

    /// When the last of them is over; None where none is left.
    fn last(&self, now: i64) -> Option<i64>;

    /// When `needed` places, which are in use, will be free if none is extended or freed before.
    fn freed_at(&self, now: i64, needed: i64) -> Option<i64>;
}

/// Leases in the memory of one process, the soonest over first.
#[derive(Debug, Default)]
pub struct KeyLeases {
    leases: BTreeMap<(i64, u64), i64>,
    /// The moment of the last query, and the places that were in use then.
    last_query: Cell<(i64, i64)>,
}

impl Leases for &KeyLeases {
    fn used(&self, now: i64) -> i64 {
        let (border, mut in_use) = self.last_query.get();
        let places = |from: i64, to: i64| {
            self.leases.range((from + 1, 0)..=(to, u64::MAX)).map(|(_, places)| places).sum::<i64>()
        };
        if now > border {
            in_use -= places(border, now);
        } else if now < border {
            in_use += places(now, border);
        }
        self.last_query.set((now, in_use));
        in_use
    }

    fn last(&self, now: i64) -> Option<i64> {
        self.leases.last_key_value().map(|((until, _), _)| *until).filter(|until| *until > now)
    }

    fn freed_at(&self, now: i64, needed: i64) -> Option<i64> {
        let mut needed = needed;
        for ((until, _), places) in self.leases.range((now + 1, 0)..) {
            needed -= places;
            if needed <= 0 {
                return Some(*until);
            }
        }
        None
    }
}

impl KeyLeases {
    /// Add a lease.
    pub fn add(&mut self, lease: Lease) {
        let (border, in_use) = self.last_query.get();
        if lease.until > border {
            self.last_query.set((border, in_use + lease.places));
        }
        self.leases.insert((lease.until, lease.number), lease.places);
    }

    /// Remove a lease, if it is there.
    pub fn take(&mut self, lease: Lease) {
        let (border, in_use) = self.last_query.get();
        if self.leases.remove(&(lease.until, lease.number)).is_some() && lease.until > border {
            self.last_query.set((border, in_use - lease.places));
        }
    }

    /// Drop the leases that are over.
    pub fn drop_over(&mut self, now: i64) {
        (&*self).used(now);
        while let Some(first) = self.leases.first_entry()
            && first.key().0 <= now
        {
            first.remove();
        }
    }
}

/// The leases of a key as a decision sees them, and the end of the lease that it requests.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRequest<L> {
    /// The existing leases; None where the key has none.
    pub leases: Option<L>,
    /// The end of the requested lease; None of a peek.
    pub until: Option<i64>,
}
