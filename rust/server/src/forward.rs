//! What passes on requests to the Python service on its private socket, and their responses back, as they come.

use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderName, HeaderValue, Request, Response, Uri, Version, uri};
use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tower_service::Service;

use crate::hop_by_hop::{remove_framing, remove_hop_by_hop};
use crate::outgoing::Behind;
use crate::uploads::Upload;

/// The field in which the Python service is told the address of the client. What a client sends in it is dropped.
pub const PEER: HeaderName = HeaderName::from_static("headgate-door-peer");

/// How long a request has to get to the Python service before that learns that its client sends no more; what does not
/// wait in line is answered by then.
const BEFORE_TELLING: Duration = Duration::from_millis(100);

/// The largest response that is read whole.
const MOST_WHOLE: u64 = 1 << 20;

/// A connection to the Python service, on which it can be told that the client sends no more.
struct Private {
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
struct Connector(Arc<PathBuf>);

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
            let stream = TokioIo::new(UnixStream::connect(&*path).await?);
            Ok(Private { stream, leaving: Arc::default() })
        })
    }
}

/// Which turn a request takes at the Python service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Of those that may wait there for a place, or in line.
    Any,
    /// Of those that wait for no other request: what settles a hold, health, and metrics. They never wait for the
    /// former, which may wait for just them.
    Prompt,
}

impl Turn {
    pub fn of(path: &str) -> Self {
        match path {
            "/v1/commit" | "/v1/cancel" | "/v1/extend" | "/healthz" | "/readyz" | "/metrics" => Self::Prompt,
            _ => Self::Any,
        }
    }
}

/// The turns of all threads: so that what waits behind one of them leaves none of them without.
#[derive(Clone)]
pub struct Turns {
    any: Arc<Semaphore>,
    prompt: Arc<Semaphore>,
}

impl Turns {
    /// So many requests of each kind at a time.
    pub fn new(at_once: usize) -> Self {
        Self { any: Arc::new(Semaphore::new(at_once)), prompt: Arc::new(Semaphore::new(at_once)) }
    }
}

/// The way to the Python service, of one thread.
pub struct Forward {
    client: Client<Connector, Upload>,
    turns: Turns,
}

impl Forward {
    /// Passes on to this socket, in turns.
    pub fn new(socket: PathBuf, turns: Turns) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(64)
            .set_host(false)
            .build(Connector(Arc::new(socket)));
        Self { client, turns }
    }

    /// Whether a request to this path would have to wait for its turn.
    pub fn has_no_turn(&self, path: &str) -> bool {
        self.turns(path).available_permits() == 0
    }

    fn turns(&self, path: &str) -> &Arc<Semaphore> {
        match Turn::of(path) {
            Turn::Any => &self.turns.any,
            Turn::Prompt => &self.turns.prompt,
        }
    }

    /// The response of the Python service, without what belongs to its connection; None where it gives none.
    ///
    /// The body has come whole: nothing of the client is waited for while a turn is taken, but that it reads a response
    /// which is too large to be kept. When the client `leaves`, the Python service learns of it.
    pub async fn pass(
        &self,
        mut request: Request<Upload>,
        peer: IpAddr,
        leaves: impl Future<Output = ()>,
    ) -> Option<Response<Behind>> {
        let turn = Arc::clone(self.turns(request.uri().path())).acquire_owned().await.ok()?;
        let fields = request.headers_mut();
        remove_framing(fields); // hyper says how long the body is
        fields.insert(PEER, HeaderValue::try_from(peer.to_string()).ok()?);
        let mut to = uri::Parts::default();
        to.scheme = Some(uri::Scheme::HTTP);
        to.authority = Some(uri::Authority::from_static("headgate"));
        to.path_and_query = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from_parts(to).ok()?;
        *request.version_mut() = Version::HTTP_11;
        let connected = capture_connection(&mut request);
        let mut response = pin!(self.client.request(request));
        let told = async {
            leaves.await;
            sleep(BEFORE_TELLING).await;
            tell_that_it_leaves(connected).await;
        };
        let mut response = tokio::select! {
            biased;
            response = response.as_mut() => response,
            () = told => response.await,
        }
        .ok()?;
        remove_hop_by_hop(response.headers_mut());
        let (head, body) = response.into_parts();
        Some(Response::from_parts(head, read_ahead(body, turn).await?))
    }
}

/// The whole body, unless it is too large or of unknown size; None where it breaks off.
async fn read_ahead(mut body: Incoming, turn: OwnedSemaphorePermit) -> Option<Behind> {
    if body.size_hint().upper().is_none_or(|size| size > MOST_WHOLE) {
        return Some(Behind::Coming(body, turn));
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame.ok()?.into_data() {
            whole.extend_from_slice(&data);
        }
    }
    Some(Behind::Whole(whole.freeze()))
}

/// Tell the Python service that the client of a request sends no more. Its connection is not used again.
async fn tell_that_it_leaves(mut connected: CaptureConnection) {
    let connection = connected.wait_for_connection_metadata().await;
    if let Some(connection) = &*connection {
        connection.poison();
        let mut extras = http::Extensions::new();
        connection.get_extras(&mut extras);
        if let Some(Handle(leaving)) = extras.get() {
            leaving.tell();
        }
    }
}
