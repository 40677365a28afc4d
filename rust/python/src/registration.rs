//! Registers limits with the table that they are bound to.

use std::sync::Arc;

use headgate_core::limit::calendar::Calendar;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::shard::registered::{Definition, Registered};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::any_table::{AnyTable, full, headgate_error};
use crate::table::Table;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use crate::zone::Zone;

/// The table behind a `Table` or a `Zone`.
pub fn table_of(object: &Bound<'_, PyAny>) -> PyResult<Arc<AnyTable>> {
    if let Ok(table) = object.cast::<Table>() {
        return Ok(Arc::clone(&table.get().inner));
    }
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    if let Ok(zone) = object.cast::<Zone>() {
        return Ok(Arc::clone(&zone.get().inner));
    }
    Err(PyTypeError::new_err("limits are bound to a Table or a Zone"))
}

/// Read a `headgate.units.CompiledLimit`.
pub fn read_limit(compiled: &Bound<'_, PyAny>) -> PyResult<Limit> {
    let name: String = compiled.getattr("algorithm")?.extract()?;
    let algorithm = Algorithm::named(&name).ok_or_else(|| PyValueError::new_err(format!("no algorithm {name}")))?;
    let number = |field: &str| compiled.getattr(field)?.extract::<i64>();
    let limit = Limit::new(algorithm, number("unit_us")?, number("quota")?, number("period")?, number("refill")?)
        .map_err(PyValueError::new_err)?;
    if algorithm != Algorithm::CalendarWindow {
        return Ok(limit);
    }
    Ok(limit.on(Calendar::numbered(limit.period, || compiled.getattr("calendar")?.getattr("runs")?.extract())?))
}

/// Register the limit of a `headgate.decision.NamedLimit` with a table.
pub fn register(table: &AnyTable, definition: &Bound<'_, PyAny>, now_us: i64) -> PyResult<Arc<Registered>> {
    let scope = definition.getattr("scope")?;
    let Ok(scope) = scope.extract::<String>() else {
        let message = format!("the scope of a limit is text without lone surrogates, not {}", scope.repr()?);
        return Err(headgate_error("ConfigError", message));
    };
    let limit = read_limit(&definition.getattr("limit")?.getattr("compiled")?)?;
    let text = definition.getattr("limit")?.str()?.extract::<String>()?;
    table.register(Definition { scope: &scope, text: &text, limit }, now_us)?.map_err(full)
}
