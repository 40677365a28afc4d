//! Parsing the replies of scripts: `headgate.stores.redis.script_replies` and `codec`.

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
/// The bytes of a limit's numbers in a reply where all limits admit, and where one does not.
const ADMITTED: usize = 24;
const REFUSED: usize = 40;

impl Calls {
    /// The answer in a reply to an operation with these costs; None for an unusual reply, which Python reads.
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
                decided(reply, REFUSED * at)?
            } else {
                return None;
            };
        }
        if let [only] = readings[..] {
            return Some(Answer::of_one(self.members[0].shadow, only));
        }
        let allowed = readings.iter().zip(&self.members).all(|(reading, member)| reading.allowed() || member.shadow);
        let limits = self.members.iter().map(|member| (member.shadow, costs[member.group]));
        let binding = binding_among(limits, &readings, allowed);
        Some(Answer { allowed, full: None, binding, readings: Readings::Many(readings.into_vec().into()) })
    }
}

/// The reading of a bucket from its state after a charge at this very moment; times are in microseconds.
fn charged(limit: &Limit, reply: &[u8], at: usize) -> Option<Reading> {
    let (remaining, reset_after_us, next_after_us) = token_bucket::measure(limit, (units(limit, reply, at)?, 0), 0);
    Some(Reading { remaining, reset_after_us, next_after_us, ..Reading::default() })
}

/// The reading of a bucket from its units at this very moment, where they are too few for a cost.
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

/// The reading of a limit that admits.
fn admitted(reply: &[u8], at: usize) -> Option<Reading> {
    Some(Reading {
        remaining: number(reply, at, -LARGEST)?,
        reset_after_us: number(reply, at + 8, 0)?,
        next_after_us: number(reply, at + 16, 0)?,
        ..Reading::default()
    })
}

/// The reading of a limit in a reply where one of the limits refuses.
fn decided(reply: &[u8], at: usize) -> Option<Reading> {
    let reading = admitted(reply, at)?;
    let retry_after_us = number(reply, at + 24, -1)?;
    let delay_us = number(reply, at + 32, 0)?;
    Some(Reading { retry_after_us: if retry_after_us < 0 { NEVER } else { retry_after_us }, delay_us, ..reading })
}

/// A double that is an integer from `least` to `LARGEST`.
fn number(reply: &[u8], at: usize, least: i64) -> Option<i64> {
    let bytes = reply.get(at..at + 8)?;
    let number = f64::from_le_bytes(bytes.try_into().ok()?);
    let is_integer = number >= least as f64 && number <= LARGEST as f64 && number.trunc() == number;
    is_integer.then_some(number as i64)
}
