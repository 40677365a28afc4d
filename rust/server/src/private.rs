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

/// How long to wait before connecting again, where the socket of the Python service has no room for another connection
/// that it is to accept: the system may allow less than there are turns.
const ACCEPTING: Duration = Duration::from_millis(20);

/// How long a request has to get to the Python service before that learns that its client sends no more; what does not
/// wait in line is answered by then.
const BEFORE_TELLING: Duration = Duration::from_millis(100);

/// A connection to the Python service, on which it can be told that the client sends no more.
pub struct Private {
    stream: TokioIo<UnixStream>,
    leaving: Arc<Leaving>,
}

/// Whether the client whose request is on a connection sends no more: then the Python service has it wait no longer.
#[derive(Default)]
struct Leaving(Mutex<Left>);

#[derive(Default)]
struct Left {
    is_to_be_told: bool,
    /// Woken to tell it.
    waker: Option<Waker>,
}

/// What is known of a connection by those whose request is on it.
#[derive(Clone)]
struct Handle(Arc<Leaving>);

impl Leaving {
    fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        let mut left = self.lock();
        left.is_to_be_told = true;
        if let Some(waker) = left.waker.take() {
            waker.wake();
        }
    }

    /// Whether it is to be told now; the task that asks is woken when it is.
    fn is_to_be_told(&self, cx: &Context<'_>) -> bool {
        let mut left = self.lock();
        let is_to_be_told = std::mem::take(&mut left.is_to_be_told);
        left.waker = Some(cx.waker().clone());
        is_to_be_told
    }
}

impl Connection for Private {
    fn connected(&self) -> Connected {
        Connected::new().extra(Handle(Arc::clone(&self.leaving)))
    }
}

impl Read for Private {
    /// What comes; hyper asks as long as a response is waited for.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.leaving.is_to_be_told(cx) {
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
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(ACCEPTING).await,
                    connected => break TokioIo::new(connected?),
                }
            };
            Ok(Private { stream, leaving: Arc::default() })
        })
    }
}

/// Tell the Python service that the client of a request sends no more, once the request is there. Its connection is not
/// used again.
pub async fn tell_that_it_leaves(mut connected: CaptureConnection) {
    drop(connected.wait_for_connection_metadata().await);
    sleep(BEFORE_TELLING).await; // else the connection ends before the request is sent, and waits to be accepted
    if let Some(connection) = &*connected.connection_metadata() {
        connection.poison();
        let mut extras = http::Extensions::new();
        connection.get_extras(&mut extras);
        if let Some(Handle(leaving)) = extras.get() {
            leaving.tell();
        }
    }
}
