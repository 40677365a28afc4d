//! A connection of HTTP/1.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;

use crate::connection::{Connection, Wish};
use crate::exchange::Exchange;
use crate::intake::Intake;
use crate::worker::Worker;

/// Beyond the largest head, hyper's buffer has room for what it got of the body.
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
        .writev(false); // to copy a short body takes less than to send two pieces
    loop {
        {
            let mut served = pin!(builder.serve_connection(&mut intake, service_fn(answer)));
            loop {
                if connection.has(Wish::Abort) {
                    return;
                }
                tokio::select! {
                    biased;
                    _ = served.as_mut() => break,
                    () = connection.woken.notified() => {} // the intake sees to what is wanted, as it is polled
                }
            }
        }
        let Some(fields) = intake.takes_more_fields() else {
            return;
        };
        builder.max_headers(fields);
    }
}
