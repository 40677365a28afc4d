//! Connections to the Python service, on its private socket.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::sleep;
use tower_service::Service;

/// How long to wait before connecting again, where the backlog of the Python service's socket is full: the system may
/// allow a shorter one than there are turns.
const RECONNECT_DELAY: Duration = Duration::from_millis(20);

/// How long a request may take to reach the Python service before the service learns that its client sends no more;
/// a request that does not wait in line is answered by then.
const NOTIFY_DELAY: Duration = Duration::from_millis(100);

/// A connection to the Python service, on which the service can be notified that the client sends no more.
pub struct Private {
    stream: TokioIo<UnixStream>,
    departure: Arc<Departure>,
}

/// Whether the client of the request on a connection sends no more: then the Python service stops waiting for it.
#[derive(Default)]
struct Departure(Mutex<DepartureState>);

#[derive(Default)]
struct DepartureState {
    is_pending: bool,
    /// Woken to notify the service.
    waker: Option<Waker>,
}

/// The handle on a connection for the request that is on it.
#[derive(Clone)]
struct Handle(Arc<Departure>);

impl Departure {
    fn lock(&self) -> MutexGuard<'_, DepartureState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        let mut state = self.lock();
        state.is_pending = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Whether the service is to be notified now; otherwise the calling task is woken when it is.
    fn is_pending(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        let is_pending = std::mem::take(&mut state.is_pending);
        state.waker = Some(cx.waker().clone());
        is_pending
    }
}

impl Connection for Private {
    fn connected(&self) -> Connected {
        Connected::new().extra(Handle(Arc::clone(&self.departure)))
    }
}

impl Read for Private {
    /// Read what arrives; hyper polls as long as it waits for a response.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.departure.is_pending(cx) {
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx)?; // a socket is shut down at once
        }
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl Write for Private {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Connects to the private socket, whatever the URI.
#[derive(Clone)]
pub struct Connector(Arc<PathBuf>);

impl Connector {
    pub fn new(socket: PathBuf) -> Self {
        Self(Arc::new(socket))
    }
}

impl Service<Uri> for Connector {
    type Response = Private;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Private>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = Arc::clone(&self.0);
        Box::pin(async move {
            let stream = loop {
                match UnixStream::connect(&*path).await {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RECONNECT_DELAY).await,
                    connected => break TokioIo::new(connected?),
                }
            };
            Ok(Private { stream, departure: Arc::default() })
        })
    }
}

/// Notify the Python service that the client of a request sends no more, once the request has been sent. Its
/// connection is not used again.
pub async fn notify_departure(mut connected: CaptureConnection) {
    drop(connected.wait_for_connection_metadata().await);
    sleep(NOTIFY_DELAY).await; // else the connection ends before the request is sent, and waits to be accepted
    if let Some(connection) = &*connected.connection_metadata() {
        connection.poison();
        let mut extras = http::Extensions::new();
        connection.get_extras(&mut extras);
        if let Some(Handle(departure)) = extras.get() {
            departure.notify();
        }
    }
}
