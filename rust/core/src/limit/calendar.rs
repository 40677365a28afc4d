//! Calendars: when the days, weeks, months and years of a time zone begin, as `headgate.calendars` computed it.
//!
//! Nothing here knows time zones. The borders of a calendar are registered once in a process, and stay.

use std::hash::{Hash, Hasher};
use std::sync::{PoisonError, RwLock};

/// (moment, length): from this moment on, until the next run, windows have this length. In microseconds.
pub type Run = (i64, i64);

/// The calendars that this process knows: the number of each, and its windows as runs of equal length.
static KNOWN: RwLock<Vec<(i64, Box<[Run]>)>> = RwLock::new(Vec::new());

/// The windows of a calendar, from one border to the next; there are none where the calendar is unknown here.
///
/// The value is its place among the known calendars, from 1 on. It is no part of a limit's identity, which has the
/// number of its calendar: all values compare equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calendar(u32);

impl Calendar {
    /// The calendar of a number. `runs` is called once, and the result is stored for as long as the process lives:
    /// there are only as many as there are zones and periods.
    pub fn numbered<E>(number: i64, runs: impl FnOnce() -> Result<Vec<Run>, E>) -> Result<Self, E> {
        let place = |known: &[(i64, Box<[Run]>)]| {
            known.iter().position(|(other, _)| *other == number).map(|place| Self(place as u32 + 1))
        };
        if let Some(calendar) = place(&KNOWN.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(calendar);
        }
        let runs = runs()?;
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        Ok(place(&known).unwrap_or_else(|| {
            known.push((number, runs.into()));
            Self(known.len() as u32)
        }))
    }

    /// The calendar of a number, if this process knows it; else one without windows.
    pub fn known(number: i64) -> Self {
        Self::numbered(number, || Err(())).unwrap_or_default()
    }

    /// (start, end) of the window of a moment; an empty one, which counts nothing, where the calendar is unknown.
    pub fn window(self, now: i64) -> (i64, i64) {
        self.of_runs(|runs| window(runs, now)).unwrap_or((now, now))
    }

    /// The start of the latest window that a clock can have fallen behind: two after that of `now`.
    pub fn latest(self, now: i64) -> i64 {
        self.of_runs(|runs| window(runs, window(runs, now).1).1).unwrap_or(i64::MAX)
    }

    fn of_runs<T>(self, read: impl FnOnce(&[Run]) -> T) -> Option<T> {
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        known.get((self.0 as usize).checked_sub(1)?).map(|(_, runs)| read(runs))
    }
}

fn window(runs: &[Run], now: i64) -> (i64, i64) {
    let next = runs.partition_point(|(moment, _)| *moment <= now);
    let Some((first, length)) = runs.get(next.saturating_sub(1)) else {
        return (now, now);
    };
    let start = now - (now - first).rem_euclid((*length).max(1));
    (start, start + length)
}

impl PartialEq for Calendar {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_one_length_follow_each_other_until_the_next_run() {
        let runs = || Ok::<_, ()>(vec![(-5, 10), (15, 7), (22, 10)]);
        let calendar = Calendar::numbered(1, runs).unwrap_or_default();
        let windows = [0, 4, 5, 14, 15, 21, 22, 40].map(|now| calendar.window(now));
        assert_eq!(windows, [(-5, 5), (-5, 5), (5, 15), (5, 15), (15, 22), (15, 22), (22, 32), (32, 42)]);
        assert_eq!([0, 5, 15].map(|now| calendar.latest(now)), [15, 22, 32]);
        assert_eq!(Calendar::numbered(1, || Err(())).map(|known| known.window(0)), Ok((-5, 5)));
    }

    #[test]
    fn a_calendar_that_is_not_known_has_empty_windows() {
        assert_eq!(Calendar::default().window(7), (7, 7));
    }
}
