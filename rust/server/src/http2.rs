//! A connection of HTTP/2, and what bounds its streams: h2's own limits on resets, streams, fields and buffers.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::connection::{Connection, Signal};
use crate::exchange::Exchange;
use crate::intake::Intake;
use crate::waiting::Waits;
use crate::worker::Worker;

/// The most streams that a client may reset before they are accepted; more are a flood of resets.
const MOST_RESETS: usize = 20;

/// The most streams that the door resets for their errors, on one connection.
const MOST_ERRORS: usize = 64;
const SEND_BUFFER: usize = 64 << 10;
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_WITHIN: Duration = Duration::from_secs(20);

/// How long a client may take to close a connection after GOAWAY.
const LEAVE: Duration = Duration::from_secs(2);

/// Serve a connection until it ends.
pub async fn serve(worker: &Arc<Worker>, connection: &Arc<Connection>, intake: Intake) {
    let (this, that) = (Arc::clone(worker), Arc::clone(connection));
    let service = service_fn(move |request| {
        let (worker, connection) = (Arc::clone(&this), Arc::clone(&that));
        connection.waiting.begin();
        if worker.ends() {
            connection.signal(Signal::Close); // the response then tells the client to go elsewhere
        }
        async move { Exchange { worker: &worker, connection: &connection, number: 0 }.answer(request).await }
    });
    let bounds = worker.bounds();
    let served = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.streams)
        .max_header_list_size(u32::try_from(bounds.head_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(MOST_RESETS)
        .max_local_error_reset_streams(MOST_ERRORS)
        .max_send_buf_size(SEND_BUFFER)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_WITHIN)
        .serve_connection(intake, service);
    let mut served = pin!(served);
    let (mut sent_goaway, mut leaves) = (false, false);
    while !connection.has(Signal::Abort) {
        let is_over = connection.has(Signal::Expire) || connection.has(Signal::GiveWay);
        let is_idle = connection.waiting.answering() == 0;
        let closes = connection.has(Signal::Close);
        if (is_over || closes) && !sent_goaway {
            sent_goaway = true;
            served.as_mut().graceful_shutdown();
        }
        if (is_over || (closes && is_idle)) && !leaves {
            leaves = true; // nothing that the client does postpones that
            connection.waiting.expect(Waits::Leaving, Some(LEAVE));
        }
        tokio::select! {
            biased;
            _ = served.as_mut() => return,
            () = connection.woken.notified() => {}
        }
    }
}
