//! A connection of HTTP/1.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;

use crate::connection::{Connection, Signal};
use crate::exchange::Exchange;
use crate::intake::Intake;
use crate::worker::Worker;

/// The room in hyper's buffer beyond the largest head, for the part of the body that was read with it.
const BESIDE_A_HEAD: usize = 64 << 10;

/// Serve a connection until it ends.
pub async fn serve(worker: &Arc<Worker>, connection: &Arc<Connection>, mut intake: Intake) {
    let numbers = AtomicU64::new(0);
    let answer = |request| {
        let number = numbers.load(Relaxed);
        numbers.store(number + 1, Relaxed); // nothing else counts them
        Exchange { worker, connection, number }.answer(request)
    };
    let bounds = worker.bounds();
    let mut builder = Builder::new();
    builder
        .header_read_timeout(None) // the intake gives hyper whole heads
        .max_buf_size(bounds.head_bytes + BESIDE_A_HEAD)
        .writev(false); // copying a short body takes less than sending two pieces
    loop {
        {
            let mut served = pin!(builder.serve_connection(&mut intake, service_fn(answer)));
            loop {
                if connection.has(Signal::Abort) {
                    return;
                }
                tokio::select! {
                    biased;
                    _ = served.as_mut() => break,
                    () = connection.woken.notified() => {} // the intake handles the signals when it is polled
                }
            }
        }
        let Some(fields) = intake.takes_more_fields() else {
            return;
        };
        builder.max_headers(fields);
    }
}
