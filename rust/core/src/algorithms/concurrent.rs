//! Places in flight: a number of units at one time, each held for the time of its lease.
//!
//! State is (request, used, last): the leases of a key and the end of the requested one, the places in use, and when
//! the last of them is over, None where there is none. What a decision takes is in `used` and `last`; the store
//! adds its lease. A lease is over at its end. Times are microseconds. Pure. See docs/algorithms.md#places-in-flight.

use crate::algorithms::leases::{LeaseRequest, Leases};
use crate::algorithms::log_view::Marked;
use crate::limit::Limit;

/// (request, used, last)
pub type State<L> = (LeaseRequest<L>, i64, Option<i64>);

/// The state as it stands at `now`.
pub fn roll<L: Leases>(_limit: &Limit, request: LeaseRequest<L>, now: i64) -> State<L> {
    match &request.leases {
        None => (request, 0, None),
        Some(leases) => {
            let (used, last) = (leases.used(now), leases.last(now));
            (request, used, last)
        }
    }
}

/// How long this cost must wait at the most: 0 to pass now, None for never.
pub fn admit<L: Leases>(limit: &Limit, state: &State<L>, now: i64, cost: i64) -> Option<i64> {
    let (_, used, _) = state;
    if cost == 0 || *used + cost <= limit.quota {
        return Some(0);
    }
    if cost > limit.quota {
        return None;
    }
    Some(freed(state, now, used + cost - limit.quota))
}

/// The state after an admitted cost.
pub fn charge<L: Leases>(_limit: &Limit, state: State<L>, _now: i64, cost: i64) -> State<L> {
    let (request, used, last) = state;
    let until = request.until.filter(|_| cost != 0);
    (request, used + cost, last.max(until))
}

/// (remaining, reset_after, next_after): what is free, when all of it is, when one more is.
pub fn measure<L: Leases>(limit: &Limit, state: &State<L>, now: i64) -> (i64, i64, i64) {
    let (_, used, last) = (&state.0, state.1, state.2);
    let remaining = (limit.quota - used).max(0);
    let Some(last) = last else {
        return (remaining, 0, 0);
    };
    (remaining, last - now, freed(state, now, (used - limit.quota + 1).max(1)))
}

/// The state of a limit whose numbers were `former`: what is in flight remains in flight.
pub fn convert<L: Leases>(_limit: &Limit, state: State<L>, _now_us: i64, _former: &Limit) -> Option<State<L>> {
    Some(state)
}

/// The unchanged state: only settling frees places.
pub fn give_back<L: Leases>(
    _limit: &Limit,
    state: State<L>,
    _now: i64,
    _cost: i64,
    _earliest: i64,
) -> Option<State<L>> {
    Some(state)
}

/// What a hold remembers: nothing, as the store keeps its lease.
pub fn mark<L: Leases>(_limit: &Limit, _state: &State<L>, _now: i64) -> Marked {
    [0, 0]
}

/// The unchanged state: the store removes the lease.
pub fn settle<L: Leases>(
    _limit: &Limit,
    state: State<L>,
    _now: i64,
    _marked: Marked,
    _change: i64,
    _refunded: i64,
) -> (State<L>, i64) {
    (state, 0)
}

/// Whether exact arithmetic holds this state: always.
pub fn fits<L: Leases>(_limit: &Limit, _state: &State<L>) -> bool {
    true
}

fn freed<L: Leases>(state: &State<L>, now: i64, needed: i64) -> i64 {
    let (request, _, last) = state;
    // One place is free when the first of them is over; whether as many are in use matters only for more.
    if let Some(leases) = &request.leases
        && (needed == 1 || needed <= leases.used(now))
        && let Some(until) = leases.freed_at(now, needed)
    {
        return until - now;
    }
    last.map_or(0, |last| last - now)
}
