//! What passes on requests to the Python service on its private socket, and their responses back, as they come.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Request, Response, Uri, Version, uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use crate::hop_by_hop::remove_hop_by_hop;
use crate::uploads::Upload;

/// The field in which the Python service is told the address of the client. What a client sends in it is dropped.
pub const PEER: HeaderName = HeaderName::from_static("headgate-door-peer");

/// Connects to the private socket, whatever the URI.
#[derive(Clone)]
struct Connector(Arc<PathBuf>);

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<UnixStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = Arc::clone(&self.0);
        Box::pin(async move { UnixStream::connect(&*path).await.map(TokioIo::new) })
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

/// The way to the Python service, of one thread.
pub struct Forward {
    client: Client<Connector, Upload>,
    any: Arc<Semaphore>,
    prompt: Arc<Semaphore>,
}

impl Forward {
    /// Passes on to this socket so many requests of each kind at a time.
    pub fn new(socket: PathBuf, at_once: usize) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(64)
            .set_host(false)
            .build(Connector(Arc::new(socket)));
        Self { client, any: Arc::new(Semaphore::new(at_once)), prompt: Arc::new(Semaphore::new(at_once)) }
    }

    /// Whether a request to this path would have to wait for its turn.
    pub fn has_no_turn(&self, path: &str) -> bool {
        self.turns(path).available_permits() == 0
    }

    fn turns(&self, path: &str) -> &Arc<Semaphore> {
        match Turn::of(path) {
            Turn::Any => &self.any,
            Turn::Prompt => &self.prompt,
        }
    }

    /// The response of the Python service, without what belongs to its connection; None where it gives none.
    ///
    /// The body has come whole: nothing of the client is waited for while a turn is taken. The permit is to be kept
    /// until the response has ended.
    pub async fn pass(
        &self,
        mut request: Request<Upload>,
        peer: IpAddr,
    ) -> Option<(Response<Incoming>, OwnedSemaphorePermit)> {
        let turn = Arc::clone(self.turns(request.uri().path())).acquire_owned().await.ok()?;
        let fields = request.headers_mut();
        remove_hop_by_hop(fields);
        fields.remove(CONTENT_LENGTH); // hyper says how long the body is
        fields.insert(PEER, HeaderValue::try_from(peer.to_string()).ok()?);
        let mut to = uri::Parts::default();
        to.scheme = Some(uri::Scheme::HTTP);
        to.authority = Some(uri::Authority::from_static("headgate"));
        to.path_and_query = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from_parts(to).ok()?;
        *request.version_mut() = Version::HTTP_11;
        let mut response = self.client.request(request).await.ok()?;
        remove_hop_by_hop(response.headers_mut());
        Some((response, turn))
    }
}
