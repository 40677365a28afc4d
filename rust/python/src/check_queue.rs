//! The checks of the front door on a store that is waited for, until Python takes them in batches.

use std::io::Write;
use std::os::fd::RawFd;
use std::sync::Arc;

use headgate_checks::queue::Queue;
use headgate_core::memory::shared::same_file;
use pyo3::prelude::*;

use crate::check_batch::CheckBatch;
use crate::late_limits::Choice;

/// The checks that wait for Python, of all threads of a front door.
#[pyclass(frozen, module = "headgate._native")]
pub struct CheckQueue {
    /// The queue that the checks of each policy submit to.
    pub queue: Arc<Queue<Choice>>,
}

#[pymethods]
impl CheckQueue {
    /// `event` is the descriptor of an eventfd, which is written to when something waits and no batch is under way.
    #[new]
    fn new(event: RawFd) -> PyResult<Self> {
        let event = same_file(event)?;
        // It is full where it was not read for long: its reader then finds the checks that wait.
        let wake = move || drop((&event).write(&1u64.to_ne_bytes()));
        Ok(Self { queue: Arc::new(Queue::new(wake)) })
    }

    /// Take about so many checks, having been woken; None where nothing waits, and while a batch is under way.
    fn take(&self, most: usize) -> Option<CheckBatch> {
        self.queue.take(most).map(CheckBatch::new)
    }

    /// The same after a batch; None, too, where waiting for the next wake is better.
    fn take_more(&self, most: usize) -> Option<CheckBatch> {
        self.queue.take_more(most).map(CheckBatch::new)
    }
}
