//! The RateLimit field of draft-ietf-httpapi-ratelimit-headers-11; the twin of `headgate.http.fields.ratelimit`.

use headgate_core::algorithms::transition::{NEVER, Reading};

use crate::text::push_whole;
use crate::{Limits, US, Verdict};

/// The largest Integer of a structured field (RFC 9651, 3.3.1).
const LARGEST_INTEGER: i128 = 999_999_999_999_999;

/// The fields that are the same in every answer of a limit; `Form` of the twin.
#[derive(Clone, Debug)]
pub struct Form {
    /// How its member of RateLimit begins: `"login";r=`.
    pub start: Box<str>,
    /// Its window, in microseconds.
    pub window_us: i64,
    /// The greatest cost that can ever pass at one instant.
    pub quota: i64,
    /// Whether it counts what is in flight.
    pub in_flight: bool,
    /// Whether its windows begin on the clock.
    pub on_the_clock: bool,
    /// Whether it only watches.
    pub shadow: bool,
}

impl Limits {
    /// The value of RateLimit; empty where there is nothing to report. A refusal reports only the limits that refuse.
    pub fn ratelimit(&self, verdict: Verdict<'_>) -> String {
        let mut items = String::with_capacity(64);
        self.push_ratelimit(verdict, &mut items);
        items
    }

    /// The same into an empty text.
    pub fn push_ratelimit(&self, verdict: Verdict<'_>, items: &mut String) {
        push_ratelimit(self.all.iter().map(|limit| &limit.form), verdict.allowed(), verdict.readings(), items);
    }
}

/// The value of RateLimit for limits and their readings.
pub fn write_ratelimit<'a>(forms: impl Iterator<Item = &'a Form>, allowed: bool, readings: &[Reading]) -> String {
    let mut items = String::with_capacity(64);
    push_ratelimit(forms, allowed, readings, &mut items);
    items
}

fn push_ratelimit<'a>(forms: impl Iterator<Item = &'a Form>, allowed: bool, readings: &[Reading], items: &mut String) {
    for (form, reading) in forms.zip(readings) {
        if form.shadow || (!allowed && reading.allowed()) {
            continue;
        }
        if !items.is_empty() {
            items.push_str(", ");
        }
        form.write(reading, items);
    }
}

impl Form {
    /// Its member of RateLimit.
    fn write(&self, reading: &Reading, items: &mut String) {
        items.push_str(&self.start);
        push(items, i128::from(reading.remaining.max(0)));
        if self.in_flight || (reading.remaining <= 0 && reading.retry_after_us == NEVER) {
            return; // no time helps, or none is known
        }
        items.push_str(";t=");
        push(items, self.effective_seconds(reading));
    }

    fn effective_seconds(&self, reading: &Reading) -> i128 {
        let mut effective_us = i128::from(reading.reset_after_us);
        if !self.on_the_clock || effective_us == 0 {
            effective_us =
                i128::from(reading.next_after_us).max(share_us(reading.remaining.max(0), self.window_us, self.quota));
        }
        if reading.allowed() {
            return seconds(effective_us);
        }
        if reading.retry_after_us != NEVER {
            effective_us = effective_us.min(i128::from(reading.retry_after_us));
        }
        seconds(effective_us).max(1)
    }
}

/// The part of a window in which these units of the quota pass, in microseconds, rounded up. Most products fit in 64
/// bits, where division is fast.
fn share_us(units: i64, window_us: i64, quota: i64) -> i128 {
    let quota = quota.max(1);
    match units.checked_mul(window_us).and_then(|scaled| scaled.checked_add(quota - 1)) {
        Some(scaled) => i128::from(scaled / quota),
        None => (i128::from(units) * i128::from(window_us) + i128::from(quota) - 1) / i128::from(quota),
    }
}

/// Whole seconds, rounded up.
fn seconds(duration_us: i128) -> i128 {
    match i64::try_from(duration_us + i128::from(US) - 1) {
        Ok(last) => i128::from(last / US),
        Err(_) => (duration_us + i128::from(US) - 1) / i128::from(US),
    }
}

fn push(items: &mut String, number: i128) {
    push_whole(items, number.min(LARGEST_INTEGER) as i64);
}
