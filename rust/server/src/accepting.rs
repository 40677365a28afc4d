//! The course of one thread: it accepts connections, serves them, and ends when all are served.

use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::connection::{Connection, Signal};
use crate::handshake::{Handshake, perform_handshake};
use crate::intake::Intake;
use crate::problems::Refusal;
use crate::protocol::{Protocol, protocol_of};
use crate::registry::Admission;
use crate::transport::Transport;
use crate::worker::Worker;
use crate::{http1, http2};

/// How often the clock is updated, and clients that have taken too long are found.
const TICK: Duration = Duration::from_millis(100);

/// How long connections on which nothing has begun outlive the port: a request may be on its way.
const QUIET: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The pause in accepting where there are too many connections, so that those that give way can end.
const OVERFLOW_PAUSE: Duration = Duration::from_millis(1);

/// The pause in accepting where there are no descriptors left.
const NO_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(50);

/// Serve the connections of a listening socket until `ending` gets the time within which to end; returns when all
/// ended.
pub async fn run(
    worker: Arc<Worker>,
    listener: StdListener,
    mut ending: watch::Receiver<Option<Duration>>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    if worker.number == 0 {
        tokio::spawn(tick(Arc::clone(&worker)));
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    begin(&worker, stream, address.ip());
                    if worker.shared.registry.overflows() {
                        sleep(OVERFLOW_PAUSE).await;
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(_) => sleep(NO_DESCRIPTORS_PAUSE).await,
            },
            _ = ending.wait_for(Option::is_some) => break,
        }
    }
    finish(&worker, listener, ending).await
}

/// Close the port, answer what is on its way and what has begun, and close the connections.
async fn finish(
    worker: &Arc<Worker>,
    listener: TcpListener,
    mut ending: watch::Receiver<Option<Duration>>,
) -> io::Result<()> {
    let mut within = ending.borrow_and_update().unwrap_or_default();
    let mut deadline = Instant::now() + within;
    let listener = listener.into_std()?;
    while let Ok((stream, address)) = listener.accept() {
        // Connections in the backlog are established: they are answered, too.
        stream.set_nonblocking(true)?;
        begin(worker, TcpStream::from_std(stream)?, address.ip());
    }
    drop(listener);
    let quiet_until = Instant::now() + QUIET.min(within);
    while worker.open.load(Relaxed) > 0 && Instant::now() < quiet_until && !ending.has_changed().unwrap_or(false) {
        sleep(POLL_INTERVAL).await;
    }
    while worker.open.load(Relaxed) > 0 {
        if ending.has_changed().unwrap_or(false) {
            within = ending.borrow_and_update().unwrap_or_default();
            deadline = Instant::now() + within;
        }
        worker.shared.registry.tick(); // the thread that ticks may have ended
        let is_over = Instant::now() >= deadline;
        worker.shared.registry.signal_all(if is_over { Signal::Abort } else { Signal::Close });
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn tick(worker: Arc<Worker>) {
    loop {
        let ticked = worker.shared.registry.tick();
        worker.stats().expired.fetch_add(ticked.expired, Relaxed);
        worker.stats().idle.fetch_add(ticked.idle, Relaxed);
        worker.stats().gave_way.fetch_add(ticked.gave_way, Relaxed);
        sleep(TICK).await;
    }
}

/// Serve a new connection, if there is room.
fn begin(worker: &Arc<Worker>, stream: TcpStream, peer: IpAddr) {
    let (admission, gave_way) = worker.shared.registry.admit(peer);
    worker.stats().accepted.fetch_add(1, Relaxed);
    worker.stats().gave_way.fetch_add(u64::from(gave_way), Relaxed);
    let (connection, has_room) = match admission {
        Admission::Admitted(connection) => (connection, true),
        Admission::Refused(connection) => (connection, false),
        Admission::Dropped => return,
    };
    worker.open.fetch_add(1, Relaxed);
    let open = Open { worker: Arc::clone(worker), connection: Arc::clone(&connection) };
    tokio::spawn(async move {
        let _ = serve(&open.worker, stream, connection, has_room).await;
        drop(open);
    });
}

/// Serve a connection to its end.
async fn serve(worker: &Arc<Worker>, stream: TcpStream, connection: Arc<Connection>, has_room: bool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let bounds = Arc::clone(&worker.shared.bounds);
    let mut stream = match &worker.shared.tls {
        None => Transport::Plain(stream),
        // In a box, so that bare connections take no more memory for it.
        Some(tls) => match Box::pin(perform_handshake(tls.load_full(), stream, &connection, &bounds)).await {
            Handshake::Done(transport) => transport,
            Handshake::Ended => return Ok(()),
            Handshake::Failed => {
                worker.stats().no_handshake.fetch_add(1, Relaxed);
                return Ok(());
            }
        },
    };
    let mut buffer = BytesMut::new();
    if !has_room {
        let mut intake = Intake::http1(stream, buffer, Arc::clone(&connection), bounds);
        intake.refuse(Refusal::all_busy());
        http1::serve(worker, &connection, intake).await;
        return Ok(());
    }
    match protocol_of(&mut stream, &mut buffer, &connection, &bounds).await? {
        Some(Protocol::Http1) => {
            let intake = Intake::http1(stream, buffer, Arc::clone(&connection), bounds);
            http1::serve(worker, &connection, intake).await;
        }
        Some(Protocol::Http2) => {
            let intake = Intake::http2(stream, buffer, Arc::clone(&connection), bounds);
            http2::serve(worker, &connection, intake).await;
        }
        None => {}
    }
    Ok(())
}

/// An open connection; dropping it removes it from the registry.
struct Open {
    worker: Arc<Worker>,
    connection: Arc<Connection>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.worker.shared.registry.remove(&self.connection);
        self.worker.open.fetch_sub(1, Relaxed);
    }
}

/// Whether an error of `accept` concerns only the connection to be accepted, which is gone.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
