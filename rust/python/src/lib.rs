//! `headgate._native`: the native core as a Python module. `_native.pyi` documents it.

mod amounts;
mod answers;
mod any_table;
mod arguments;
mod attributes;
mod bound;
mod bound_function;
mod callables;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod check_batch;
mod check_queue;
mod checks;
mod clock;
mod decision;
mod decisions;
mod descriptor_subject;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod door;
mod environ_subject;
mod fields;
mod freed_places;
mod gate;
mod gate_calls;
mod gate_costs;
mod gate_limits;
mod gate_operations;
mod gate_policy;
mod gate_subject;
mod header_pairs;
mod key_text;
mod keyed_limits;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod late_checks;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod late_limits;
mod limit_reader;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod lines;
mod log_block;
mod log_subject;
mod operation;
mod policy_parts;
mod redis_calls;
mod registration;
mod replay_judge;
mod replay_keys;
mod replay_limits;
mod replay_series;
mod replay_sums;
mod reservation;
mod responses;
mod route_outcome;
mod route_passed;
mod route_places;
mod scope_subject;
mod sender;
mod server_text;
mod settlement;
mod state;
mod table;
mod table_errors;
mod web_gate;
mod web_reading;
mod whole_id;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod zone;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::answers::Answers;
    #[pymodule_export]
    use crate::bound::BoundLimits;
    #[pymodule_export]
    use crate::callables::AsgiCallable;
    #[pymodule_export]
    use crate::callables::MiddlewareCallable;
    #[pymodule_export]
    use crate::callables::WsgiCallable;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[pymodule_export]
    use crate::check_batch::CheckBatch;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[pymodule_export]
    use crate::check_queue::CheckQueue;
    #[pymodule_export]
    use crate::checks::CheckTally;
    #[pymodule_export]
    use crate::checks::Checks;
    #[pymodule_export]
    use crate::clock::now_us;
    #[pymodule_export]
    use crate::decision::Decision;
    #[pymodule_export]
    use crate::decisions::Decisions;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[pymodule_export]
    use crate::door::Door;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[pymodule_export]
    use crate::door::Tls;
    #[pymodule_export]
    use crate::fields::RateLimitFields;
    #[pymodule_export]
    use crate::gate::NativeGate;
    #[pymodule_export]
    use crate::gate_calls::GateCalls;
    #[pymodule_export]
    use crate::keyed_limits::KeyedLimits;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[pymodule_export]
    use crate::late_checks::LateChecks;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[pymodule_export]
    use crate::late_checks::LateReply;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[pymodule_export]
    use crate::lines::ZoneLines;
    #[pymodule_export]
    use crate::log_block::LogBlock;
    #[pymodule_export]
    use crate::log_block::LogMerge;
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::policy_parts::PolicyParts;
    #[pymodule_export]
    use crate::redis_calls::RedisCalls;
    #[pymodule_export]
    use crate::replay_judge::ReplayJudge;
    #[pymodule_export]
    use crate::reservation::Reservation;
    #[pymodule_export]
    use crate::responses::FieldAdder;
    #[pymodule_export]
    use crate::responses::copied_response;
    #[pymodule_export]
    use crate::route_passed::RoutePassed;
    #[pymodule_export]
    use crate::route_places::RoutePlaces;
    #[pymodule_export]
    use crate::sender::FieldStarter;
    #[pymodule_export]
    use crate::sender::send_with_fields;
    #[pymodule_export]
    use crate::settlement::Settlement;
    #[pymodule_export]
    use crate::table::Table;
    #[pymodule_export]
    use crate::web_gate::WebGate;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[pymodule_export]
    use crate::zone::Zone;
}
