//! The waiting lines of a zone as Python sees them.

use std::sync::Arc;
use std::time::Duration;

use headgate_core::memory::shared::SharedMap;
use headgate_core::zone::lines::{Joined, LineName, Lines, MOST_GROUPS, Seat, Standing};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::any_table::{AnyTable, guarded, unusable};
use crate::clock::monotonic_us;

/// Bytes of a line's name: 16 that identify it, the group of its key, and whether it waits for places.
const NAME_BYTES: usize = 18;

type Place = (usize, u64);

/// The waiting lines of a zone.
#[pyclass(frozen, module = "headgate._native")]
pub struct ZoneLines {
    table: Arc<AnyTable>,
}

impl ZoneLines {
    pub fn new(table: Arc<AnyTable>) -> Self {
        Self { table }
    }

    fn lines(&self) -> PyResult<(&Lines, &SharedMap)> {
        match &*self.table {
            AnyTable::Shared(table) => Ok(table.storage().lines()),
            AnyTable::Private(_) => Err(PyValueError::new_err("a zone has a shared table")),
        }
    }
}

#[pymethods]
impl ZoneLines {
    #[getter]
    fn most_callers(&self) -> PyResult<usize> {
        Ok(self.lines()?.0.room().0)
    }

    #[getter]
    fn most_processes(&self) -> PyResult<usize> {
        Ok(self.lines()?.0.room().1)
    }

    #[classattr]
    fn most_groups() -> usize {
        MOST_GROUPS
    }

    fn listen(&self, py: Python<'_>, started: Py<PyAny>, on_called: Py<PyAny>, interval_us: u64) -> PyResult<()> {
        let notify_started = |seat: Option<Seat>| {
            let seat = seat.map(|seat| (seat.process, seat.serial));
            Python::try_attach(|py| started.call1(py, (seat,)).map(drop)).unwrap_or(Ok(()))
        };
        let notify_called = |called: Option<Vec<u64>>| {
            Python::try_attach(|py| on_called.call1(py, (called,))?.extract(py)).unwrap_or(Ok(false)) // Python ends
        };
        py.detach(|| {
            guarded(|| {
                let (lines, map) = self.lines()?;
                let interval = Duration::from_micros(interval_us);
                lines.listen(map, monotonic_us, interval, notify_started, notify_called).map_err(unusable)?
            })
        })
    }

    fn wake(&self, seat: Place) -> PyResult<()> {
        let (lines, map) = self.lines()?;
        lines.wake(map, seat.0);
        Ok(())
    }

    fn is_waited_for(&self, name: &[u8]) -> PyResult<bool> {
        let name = name_of(name)?;
        guarded(|| {
            let (lines, map) = self.lines()?;
            lines.is_waited_for(map, &name, monotonic_us()).map_err(unusable)
        })
    }

    fn join<'py>(
        &self,
        py: Python<'py>,
        seat: Place,
        number: u64,
        name: &[u8],
        costs: Vec<i64>,
        known: (u64, u64),
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        if costs.len() > MOST_GROUPS {
            return Err(PyValueError::new_err(format!("a ticket has up to {MOST_GROUPS} costs, not {}", costs.len())));
        }
        let standing = standing(seat, number, name, (0, 0))?;
        let joined = guarded(|| {
            let (lines, map) = self.lines()?;
            let join = lines.with(map, monotonic_us(), |tickets| tickets.join(&standing, &costs, known.0, known.1));
            join.map_err(unusable)
        })?;
        let Some(Joined { ticket, order, generation, is_first, ahead }) = joined else {
            return Ok(None);
        };
        let ahead: Vec<_> = ahead.iter().map(|costs| PyTuple::new(py, costs)).collect::<PyResult<_>>()?;
        (ticket, order, generation, is_first, ahead).into_pyobject(py).map(Some)
    }

    fn is_first(&self, seat: Place, number: u64, name: &[u8], ticket: (u32, u64)) -> PyResult<Option<bool>> {
        let standing = standing(seat, number, name, ticket)?;
        guarded(|| {
            let (lines, map) = self.lines()?;
            lines.with(map, monotonic_us(), |tickets| tickets.is_first(&standing)).map_err(unusable)
        })
    }

    #[pyo3(signature = (seat, number, name, ticket, *, as_planned, planned))]
    fn leave(
        &self,
        seat: Place,
        number: u64,
        name: &[u8],
        ticket: (u32, u64),
        as_planned: bool,
        planned: bool,
    ) -> PyResult<Option<u64>> {
        let standing = standing(seat, number, name, ticket)?;
        guarded(|| {
            let (lines, map) = self.lines()?;
            lines.with(map, monotonic_us(), |tickets| tickets.leave(&standing, as_planned, planned)).map_err(unusable)
        })
    }

    fn waiting(&self, name: &[u8]) -> PyResult<usize> {
        let name = name_of(name)?;
        guarded(|| {
            let (lines, map) = self.lines()?;
            lines.with(map, monotonic_us(), |tickets| tickets.length(&name)).map_err(unusable)
        })
    }
}

fn standing((process, serial): Place, number: u64, name: &[u8], (ticket, order): (u32, u64)) -> PyResult<Standing> {
    Ok(Standing { seat: Seat { process, serial }, number, name: name_of(name)?, ticket, order })
}

fn name_of(name: &[u8]) -> PyResult<LineName> {
    if name.len() != NAME_BYTES {
        return Err(PyValueError::new_err(format!("a line's name has {NAME_BYTES} bytes, not {}", name.len())));
    }
    let word = |at: usize| name[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok(LineName { words: [word(0), word(8)], group: name[16].into(), for_places: name[17] != 0 })
}
