//! The Python errors of tables.

use headgate_core::shard::DamagedState;
use headgate_core::shard::registered::TooMany;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use headgate_core::zone::{backoff::LONGEST_WAIT, shards::Unusable};
use pyo3::prelude::*;

/// The error of a limit that a table has no room for.
#[cold]
pub fn full(too_many: TooMany) -> PyErr {
    let message = match too_many {
        TooMany::Limits(most) => format!("this store holds states of {most} limits, which is all that it can know"),
        TooMany::Bytes(most) => {
            format!("the names of the limits that this store holds states of fill the {most} bytes it has for them")
        }
    };
    headgate_error("StoreUnavailable", message + "; a larger one knows more")
}

/// The error of an impossible state.
#[cold]
pub fn damaged(_: DamagedState) -> PyErr {
    let message = "what the store holds of this key is damaged, so nothing is decided by it: reset the key \
                   (`headgate zone reset KEY PATH` for a shared zone)";
    headgate_error("StoreKeyError", message.into())
}

/// The error of a table whose code failed.
#[cold]
pub fn failed() -> PyErr {
    let message = "the native core panicked over the states of the store (see standard error): is the store damaged?";
    headgate_error("StoreUnavailable", message.into())
}

/// The error of a shard that cannot be used.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[cold]
pub fn unusable(unusable: Unusable) -> PyErr {
    let thread = match unusable {
        Unusable::Damaged(fault) => {
            let message = format!(
                "the shared zone is damaged, it has {fault}: stop all processes that use it, delete its file, and start again"
            );
            return headgate_error("StoreUnavailable", message);
        }
        Unusable::DamagedState => return damaged(DamagedState),
        Unusable::Full(too_many) => return full(too_many),
        Unusable::Stuck(thread) => thread,
    };
    let who = if thread == 0 { String::new() } else { format!(" by thread {thread}") };
    let message = format!(
        "a part of the shared zone is held{who} for more than {} ms: is that process stopped, or starved of CPU?",
        LONGEST_WAIT.as_millis()
    );
    headgate_error("StoreTimeout", message)
}

/// An error of `headgate.errors`, by its name.
#[cold]
pub fn headgate_error(name: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let error = py.import("headgate.errors").and_then(|errors| errors.getattr(name)?.call1((message,)));
        error.map_or_else(|error| error, PyErr::from_value)
    })
}
