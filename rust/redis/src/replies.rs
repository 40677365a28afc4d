//! What the replies of scripts mean: `headgate.stores.redis.script_replies` and `codec`.

use headgate_core::algorithms::token_bucket;
use headgate_core::algorithms::transition::{NEVER, Reading};
use headgate_core::limit::{Algorithm, LARGEST, Limit};
use headgate_core::table::answer::{Answer, Readings, binding_among};
use smallvec::SmallVec;

use crate::calls::Calls;

/// Bytes of a bucket's state, which a script may reply with.
const BRIEF: usize = 42;
/// Bytes of the units of a bucket that has too few.
const UNITS: usize = 8;
/// Bytes of what is told of a limit where all admit, and where one does not.
const ADMITTED: usize = 24;
const REFUSED: usize = 40;

impl Calls {
    /// What a reply means for an operation with these costs; None for what is unusual, which Python reads.
    pub fn read(&self, reply: &[u8], costs: &[i64]) -> Option<Answer> {
        let count = self.members.len();
        let mut readings: SmallVec<[Reading; 4]> = SmallVec::from_elem(Reading::default(), count);
        let limit = |place: usize| &self.members[place].limit;
        for (at, place) in self.order.iter().enumerate() {
            readings[*place] = if reply.len() == BRIEF * count {
                charged(limit(*place), reply, BRIEF * at)?
            } else if reply.len() == UNITS && count == 1 {
                refused(limit(*place), reply, costs[self.members[*place].group])?
            } else if reply.len() == ADMITTED * count {
                admitted(reply, ADMITTED * at)?
            } else if reply.len() == REFUSED * count {
                told(reply, REFUSED * at)?
            } else {
                return None;
            };
        }
        if let [only] = readings[..] {
            return Some(Answer::of_one(self.members[0].shadow, only));
        }
        let allowed = readings.iter().zip(&self.members).all(|(reading, member)| reading.allowed() || member.shadow);
        let asked = self.members.iter().map(|member| (member.shadow, costs[member.group]));
        let binding = binding_among(asked, &readings, allowed);
        Some(Answer { allowed, full: None, binding, readings: Readings::Many(readings.into_vec().into()) })
    }
}

/// What the state of a bucket that was charged at this very moment, in microseconds, tells of it.
fn charged(limit: &Limit, reply: &[u8], at: usize) -> Option<Reading> {
    let (remaining, reset_after_us, next_after_us) = token_bucket::measure(limit, (units(limit, reply, at)?, 0), 0);
    Some(Reading { remaining, reset_after_us, next_after_us, ..Reading::default() })
}

/// What the units that a bucket has at this very moment tell, where they are too few for a cost.
fn refused(limit: &Limit, reply: &[u8], cost: i64) -> Option<Reading> {
    let state = (units(limit, reply, 0)?, 0);
    let (remaining, reset_after_us, next_after_us) = token_bucket::measure(limit, state, 0);
    let retry_after_us = token_bucket::admit(limit, state, 0, cost).unwrap_or(NEVER);
    let reading = Reading { remaining, reset_after_us, retry_after_us, next_after_us, ..Reading::default() };
    (retry_after_us != 0).then_some(reading)
}

fn units(limit: &Limit, reply: &[u8], at: usize) -> Option<i64> {
    let is_bucket = matches!(limit.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue);
    if is_bucket && limit.unit_us == 1 { number(reply, at, -LARGEST) } else { None }
}

/// What is left of a limit that admits.
fn admitted(reply: &[u8], at: usize) -> Option<Reading> {
    Some(Reading {
        remaining: number(reply, at, -LARGEST)?,
        reset_after_us: number(reply, at + 8, 0)?,
        next_after_us: number(reply, at + 16, 0)?,
        ..Reading::default()
    })
}

/// What is left of a limit, and whether it admits.
fn told(reply: &[u8], at: usize) -> Option<Reading> {
    let reading = admitted(reply, at)?;
    let retry_after_us = number(reply, at + 24, -1)?;
    let delay_us = number(reply, at + 32, 0)?;
    Some(Reading { retry_after_us: if retry_after_us < 0 { NEVER } else { retry_after_us }, delay_us, ..reading })
}

/// A double that is a whole number from `least` to `LARGEST`.
fn number(reply: &[u8], at: usize, least: i64) -> Option<i64> {
    let bytes = reply.get(at..at + 8)?;
    let number = f64::from_le_bytes(bytes.try_into().ok()?);
    let is_consistent = number >= least as f64 && number <= LARGEST as f64 && number.trunc() == number;
    is_consistent.then_some(number as i64)
}
