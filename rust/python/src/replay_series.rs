//! Counts over time, in steps that grow with it; the native twin of `headgate.replay.series`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rustc_hash::FxHashMap;

/// The lengths of steps that a series may have, each a divisor of the next, and how many steps it has at the most.
pub struct Steps {
    pub lengths_us: Box<[i64]>,
    pub most: usize,
}

/// Counts over time; `headgate.replay.series.Series`.
#[derive(Default)]
pub struct Series {
    /// The index of the length of its steps.
    pub level: usize,
    /// (passed, refused) of each step in which something happened.
    counts: FxHashMap<i64, (u64, u64)>,
}

impl Series {
    /// Count requests of a moment.
    pub fn add(&mut self, steps: &Steps, time_us: i64, passed: u64, refused: u64) {
        let counts = self.counts.entry(time_us.div_euclid(steps.lengths_us[self.level])).or_default();
        *counts = (counts.0 + passed, counts.1 + refused);
        while self.counts.len() > steps.most && self.level + 1 < steps.lengths_us.len() {
            let ratio = steps.lengths_us[self.level + 1] / steps.lengths_us[self.level];
            self.level += 1;
            for (index, (passed, refused)) in std::mem::take(&mut self.counts) {
                let counts = self.counts.entry(index.div_euclid(ratio)).or_default();
                *counts = (counts.0 + passed, counts.1 + refused);
            }
        }
    }

    /// (its level, (passed, refused) by step).
    pub fn export<'py>(&self, py: Python<'py>) -> PyResult<(usize, Bound<'py, PyDict>)> {
        let counts = PyDict::new(py);
        for (index, (passed, refused)) in &self.counts {
            counts.set_item(index, PyList::new(py, [passed, refused])?)?;
        }
        Ok((self.level, counts))
    }
}
