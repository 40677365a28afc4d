//! What passes on requests to the Python service on its private socket, and their responses back, as they come.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderName, HeaderValue, Request, Response, Uri, Version, uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use crate::hop_by_hop::remove_hop_by_hop;
use crate::uploads::Upload;

/// The field in which the Python service is told the address of the client. Whatever a client sends in it is dropped.
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

/// The way to the Python service, of one thread.
pub struct Forward {
    client: Client<Connector, Upload>,
    turns: Arc<Semaphore>,
}

impl Forward {
    /// Passes on to this socket so many requests at a time.
    pub fn new(socket: PathBuf, at_once: usize) -> Self {
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(64).build(Connector(Arc::new(socket)));
        Self { client, turns: Arc::new(Semaphore::new(at_once)) }
    }

    /// The response of the Python service, without what belongs to its connection; None where it gives none.
    ///
    /// The permit is to be kept until its body has ended.
    pub async fn pass(
        &self,
        mut request: Request<Upload>,
        peer: IpAddr,
    ) -> Option<(Response<Incoming>, OwnedSemaphorePermit)> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        let fields = request.headers_mut();
        remove_hop_by_hop(fields);
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
