//! Passing requests on to the Python service on its private socket, and the responses back as they arrive.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bytes::BytesMut;
use http::{HeaderName, HeaderValue, Request, Response, Uri, Version, uri};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::rt::TokioExecutor;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection::Held;
use crate::hop_by_hop::{remove_framing, remove_hop_by_hop};
use crate::outgoing::ServiceBody;
use crate::passed_on::PassedOn;
use crate::private::Connector;
use crate::uploads::Upload;

/// The field in which the Python service gets the address of the client. What a client sends in it is dropped.
pub const PEER: HeaderName = HeaderName::from_static("headgate-door-peer");

/// The largest response that is buffered completely.
const MOST_BUFFERED: u64 = 1 << 20;

/// The kind of turn that a request takes at the Python service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// For requests that may wait there for a place, or in line.
    Any,
    /// For requests that wait for no other request: settling a hold, health, and metrics. They never wait for the
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

/// The turns of all threads, shared so that requests waiting on one thread leave no other thread without turns.
#[derive(Clone)]
pub struct Turns {
    any: Arc<Semaphore>,
    prompt: Arc<Semaphore>,
}

impl Turns {
    /// Turns for this many requests of each kind at a time.
    pub fn new(at_once: usize) -> Self {
        Self { any: Arc::new(Semaphore::new(at_once)), prompt: Arc::new(Semaphore::new(at_once)) }
    }
}

/// The client of one thread for the Python service.
pub struct Forward {
    client: Client<Connector, Upload>,
    turns: Turns,
}

impl Forward {
    /// A client for this socket, with these turns.
    pub fn new(socket: PathBuf, turns: Turns) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(64)
            .set_host(false)
            .build(Connector::new(socket));
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
    /// The body is complete: while it takes a turn, a request waits for its client only where that must read a response
    /// which is too large to be buffered. When the client `leaves`, the Python service is notified. `held` counts the
    /// request until it is answered.
    pub async fn pass(
        &self,
        mut request: Request<Upload>,
        peer: IpAddr,
        held: Held,
        leaves: impl Future<Output = ()>,
    ) -> Option<Response<ServiceBody>> {
        let turn = Arc::clone(self.turns(request.uri().path())).acquire_owned().await.ok()?;
        let fields = request.headers_mut();
        remove_framing(fields); // hyper adds the length of the body
        fields.insert(PEER, HeaderValue::try_from(peer.to_string()).ok()?);
        let mut to = uri::Parts::default();
        to.scheme = Some(uri::Scheme::HTTP);
        to.authority = Some(uri::Authority::from_static("headgate"));
        to.path_and_query = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from_parts(to).ok()?;
        *request.version_mut() = Version::HTTP_11;
        let connected = capture_connection(&mut request);
        let passed_on = PassedOn::new(self.client.request(request), connected, turn, held);
        let (mut response, turn) = passed_on.response(leaves).await?;
        remove_hop_by_hop(response.headers_mut());
        let (head, body) = response.into_parts();
        Some(Response::from_parts(head, read_ahead(body, turn).await?))
    }
}

/// Buffer the whole body, unless it is too large or of unknown size; None where it breaks off.
async fn read_ahead(mut body: Incoming, turn: OwnedSemaphorePermit) -> Option<ServiceBody> {
    if body.size_hint().upper().is_none_or(|size| size > MOST_BUFFERED) {
        return Some(ServiceBody::Streaming(body, turn));
    }
    let mut complete = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame.ok()?.into_data() {
            complete.extend_from_slice(&data);
        }
    }
    Some(ServiceBody::Complete(complete.freeze()))
}
