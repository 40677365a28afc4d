//! Sliding window log: never more than the limit in any interval of one period, exactly.
//!
//! State is the entries (time, cost) of a key, oldest first; requests of one instant share an entry.
//! An entry leaves when it is a whole period old. Here a state is a view: the entries stay where
//! they are stored, and `charged` is what this decision adds to them. Times are integers of the limit's unit.
//! Pure. See docs/algorithms.md#sliding-window-log.

use crate::algorithms::log_view::{Entry, Log, LogEntries, Marked};
use crate::limit::{LARGEST, Limit};

/// A charge with this many entries since is not given back: all of them might have to be moved.
pub const MOST_SINCE: usize = 200;

/// What is left of a log: its `retained` oldest entries, unchanged, and the `moved` entries behind them.
#[derive(Default)]
pub struct Remainder {
    /// How many of the oldest entries stay as they are.
    pub retained: usize,
    /// The entries behind those, at most `MOST_SINCE`.
    pub moved: Vec<Entry>,
}

/// What becomes of one entry of a log when a hold is settled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settled {
    /// How many stored entries are before it.
    pub older: usize,
    /// Its time.
    pub time: i64,
    /// Its units as they are; 0 where there is no such entry.
    pub before: i64,
    /// Its units as they are to be.
    pub after: i64,
}

/// The entries of a key as they stand at one moment, and what is to be added.
#[derive(Clone)]
pub struct State<E> {
    /// Entries that still count, oldest first.
    live: E,
    /// How many older entries no longer count.
    pub expired: usize,
    /// Units of the live entries and of `charged`.
    pub used: i64,
    /// The time of the newest entry, `charged` included.
    pub last: Option<i64>,
    /// What is added to every stored time: not 0 only after a clock that was once far ahead.
    pub shift: i64,
    /// Units that this decision charges, at `last`.
    pub charged: i64,
}

/// The state as it stands at `now`, or at its last entry if the clock is behind that.
#[inline(always)]
pub fn roll<E: LogEntries>(limit: &Limit, log: Option<Log<E>>, now: i64) -> State<E> {
    let Some(log) = log else {
        return State { live: E::default(), expired: 0, used: 0, last: None, shift: 0, charged: 0 };
    };
    let (mut shift, mut last) = (log.shift, log.last + log.shift);
    if last - now > 2 * limit.period {
        // No clock steps back that far: the state is from a clock once far ahead.
        (shift, last) = (now - log.last, now);
    }
    let border = now.max(last) - limit.period;
    let mut state = State { live: log.entries, expired: 0, used: log.used, last: Some(last), shift, charged: 0 };
    while let Some((time, cost)) = state.live.oldest() {
        if time + shift > border {
            break;
        }
        state.live.next();
        state.expired += 1;
        state.used -= cost;
    }
    if state.used == 0 {
        state.last = None;
    }
    state
}

/// How long this cost must wait: 0 to pass now, None for never.
#[inline(always)]
pub fn admit<E: LogEntries>(limit: &Limit, state: &State<E>, now: i64, cost: i64) -> Option<i64> {
    if cost == 0 {
        return Some(0);
    }
    if cost > limit.quota {
        return None;
    }
    if state.used + cost <= limit.quota {
        return Some(0);
    }
    Some(freed(limit, state, now, state.used + cost - limit.quota))
}

/// The state after an admitted cost.
#[inline(always)]
pub fn charge<E: LogEntries>(_limit: &Limit, state: State<E>, now: i64, cost: i64) -> State<E> {
    if cost == 0 {
        return state;
    }
    let last = state.last.map_or(now, |last| last.max(now));
    State { used: state.used + cost, charged: state.charged + cost, last: Some(last), ..state }
}

/// (remaining, reset_after, next_after): what is left, when all of it is back, when one more is.
#[inline(always)]
pub fn measure<E: LogEntries>(limit: &Limit, state: &State<E>, now: i64) -> (i64, i64, i64) {
    let Some(last) = state.last else {
        return (limit.quota, 0, 0);
    };
    let reset_after = last + limit.period - now;
    let next_after = freed(limit, state, now, (state.used - limit.quota + 1).max(1));
    ((limit.quota - state.used).max(0), reset_after, next_after)
}

/// The log of a limit whose numbers were `former`: entries that had left under those are dropped, the rest stays.
pub fn convert<E: LogEntries>(_limit: &Limit, log: Log<E>, now_us: i64, former: &Limit) -> Option<Log<E>> {
    let state = roll(former, Some(log), now_us / former.unit_us);
    let last = state.last? - state.shift;
    Some(Log { entries: state.live, used: state.used, last, shift: state.shift })
}

/// The log without what is left of a charge made at `earliest` or later; None where nothing is left.
///
/// Units are taken off the oldest entries since then: the charge's own entry is not older than these, so the units
/// would not have stayed longer. Where the caller's slow clock has missed that entry, the newest before it are taken.
pub fn give_back<E: LogEntries>(limit: &Limit, log: Log<E>, now: i64, cost: i64, earliest: i64) -> Option<Remainder> {
    let (last, stored) = (log.last, log.entries.clone().count());
    let border = now.max(last) - limit.period;
    let untouched = Remainder { retained: stored, moved: Vec::new() };
    if last <= border || earliest <= border {
        return Some(untouched); // it may have left already
    }
    let retained = stored.saturating_sub(MOST_SINCE);
    let mut before: Vec<Entry> = log.entries.clone().skip(retained).collect();
    if retained > 0 && before[0].0 >= earliest {
        return Some(untouched);
    }
    let since = before.split_off(before.partition_point(|(time, _)| *time < earliest));
    let (since, missed) = without(since, cost);
    before.reverse();
    let (mut moved, _) = without(before, missed);
    moved.reverse();
    moved.extend(since);
    (retained > 0 || !moved.is_empty()).then_some(Remainder { retained, moved })
}

/// What a hold remembers right after its charge: the time of its entry.
#[inline(always)]
pub fn mark<E: LogEntries>(_limit: &Limit, state: &State<E>, now: i64) -> Marked {
    [state.last.map_or(now, |last| last.max(now)), 0]
}

/// What becomes of a hold's own entry when its charge has changed; None where it no longer counts.
pub fn settle<E: LogEntries>(
    limit: &Limit,
    state: &State<E>,
    now: i64,
    marked: Marked,
    change: i64,
    _refunded: i64,
) -> Option<Settled> {
    let moment = marked[0];
    if moment <= state.last.map_or(now, |last| last.max(now)) - limit.period {
        return None;
    }
    let before_it = |entry: &Entry| entry.0 + state.shift < moment;
    let (mut older, mut before) = (0, 0);
    for entry in state.live.clone() {
        if !before_it(&entry) {
            before = if entry.0 + state.shift == moment { entry.1 } else { 0 };
            break;
        }
        older += 1;
    }
    Some(Settled { older: state.expired + older, time: moment, before, after: (before + change).max(0) })
}

/// Whether exact arithmetic holds this state, after a debt was charged.
pub fn fits<E>(_limit: &Limit, state: &State<E>) -> bool {
    state.used <= LARGEST
}

/// How long until the oldest entries that hold `needed` units have left.
#[inline(always)]
fn freed<E: LogEntries>(limit: &Limit, state: &State<E>, now: i64, needed: i64) -> i64 {
    let mut needed = needed;
    for (time, cost) in state.live.clone() {
        needed -= cost;
        if needed <= 0 {
            return time + state.shift + limit.period - now;
        }
    }
    state.last.unwrap_or(now) + limit.period - now
}

/// The entries without their first `needed` units, and how many units were missing.
fn without(mut entries: Vec<Entry>, mut needed: i64) -> (Vec<Entry>, i64) {
    let mut emptied = 0;
    for (_, cost) in &mut entries {
        if *cost > needed {
            *cost -= needed;
            needed = 0;
            break;
        }
        needed -= *cost;
        emptied += 1;
    }
    entries.drain(..emptied);
    (entries, needed)
}
