//! Checks, decided natively: the answers of `headgate.service.checks` for a policy on a table, in the same bytes.
//!
//! A check that cannot be answered in exactly the same way is left to the Python service, before anything is charged.
//! There is no Python here and no I/O; the clock is the table's.

#![forbid(unsafe_code)]

mod batch;
mod body_fields;
pub mod bound;
pub mod checks;
mod described;
mod event_loop;
pub mod figures;
mod forwarded;
mod header_text;
mod json;
mod judge;
pub mod late_checks;
mod late_prepared;
mod outcome;
pub mod queue;
mod replies;
mod store_check;
pub mod table;
mod waiting_checks;
