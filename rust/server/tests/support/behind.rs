//! A service behind the door, of HTTP/1.1 on a Unix socket, that returns what it received.

use std::convert::Infallible;
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

/// A service that runs until it is dropped.
pub struct Backend {
    pub socket: PathBuf,
    pub counts: Arc<Counts>,
    listener: StdListener,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
pub struct Counts {
    /// Connections that were accepted.
    pub accepted: AtomicU64,
    /// Requests that have arrived, and those that wait for ever.
    pub requests: AtomicU64,
    pub waiting: AtomicU64,
    /// Bytes of large responses that were given to be sent.
    pub sent: AtomicU64,
}

impl Backend {
    pub fn start() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("headgate-door-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let socket = std::env::temp_dir().join(name);
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = oneshot::channel();
        let (path, shared) = (socket.clone(), Arc::clone(&counts));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = StdListener::bind(&path).expect("a socket");
        listener.set_nonblocking(true).expect("a socket that is not waited for");
        let accepting = {
            let _in = runtime.enter();
            UnixListener::from_std(listener.try_clone().expect("a descriptor")).expect("a socket")
        };
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { () = accept(accepting, shared) => {}, _ = stopped => {} }
            });
        });
        Self { socket, counts, listener, stop: Some(stop), thread: Some(thread) }
    }

    /// Set the backlog: how many connections may wait to be accepted.
    pub fn listen(&self, backlog: i32) {
        rustix::net::listen(&self.listener, backlog).expect("a listening socket");
    }

    pub fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::SeqCst)
    }

    pub fn waiting(&self) -> u64 {
        self.counts.waiting.load(Ordering::SeqCst)
    }

    pub fn stop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the service ends");
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn accept(listener: UnixListener, counts: Arc<Counts>) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        counts.accepted.fetch_add(1, Ordering::SeqCst);
        let counts = Arc::clone(&counts);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&counts)));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Sent = BoxBody<Bytes, hyper::Error>;

async fn answer(mut request: Request<Incoming>, counts: Arc<Counts>) -> Result<Response<Sent>, Infallible> {
    counts.requests.fetch_add(1, Ordering::SeqCst);
    let target = request.uri().to_string();
    if target == "/echo" {
        return Ok(Response::new(request.into_body().boxed()));
    }
    if let Some(bytes) = target.strip_prefix("/large?") {
        let left = bytes.parse().expect("a size");
        return Ok(Response::new(Large { left, counts }.map_err(|never| match never {}).boxed()));
    }
    if let Some(millis) = target.strip_prefix("/later?") {
        tokio::time::sleep(std::time::Duration::from_millis(millis.parse().expect("a time"))).await;
    }
    if let Some(millis) = target.strip_prefix("/stall?") {
        thread::sleep(std::time::Duration::from_millis(millis.parse().expect("a time"))); // nothing is accepted meanwhile
    }
    if target == "/wait" {
        let _waiting = Waiting::new(&counts);
        let _ = request.body_mut().collect().await; // as the Python service does; else its end is not seen
        std::future::pending::<()>().await;
    }
    let mut seen = format!("{} {target}\n", request.method());
    for (name, value) in request.headers() {
        seen += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    }
    if let Ok(body) = request.into_body().collect().await {
        seen += &format!("\n{}", String::from_utf8_lossy(&body.to_bytes()));
    }
    let body = Full::new(Bytes::from(seen)).map_err(|never| match never {}).boxed();
    Ok(Response::builder().header("x-behind", "1").header("keep-alive", "timeout=5").body(body).expect("a response"))
}

struct Waiting<'a>(&'a Counts);

impl<'a> Waiting<'a> {
    fn new(counts: &'a Counts) -> Self {
        counts.waiting.fetch_add(1, Ordering::SeqCst);
        Self(counts)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body of this many bytes, made on demand.
struct Large {
    left: u64,
    counts: Arc<Counts>,
}

const PIECE: u64 = 32 << 10;

impl Body for Large {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let size = this.left.min(PIECE);
        if size == 0 {
            return std::task::Poll::Ready(None);
        }
        this.left -= size;
        this.counts.sent.fetch_add(size, Ordering::SeqCst);
        std::task::Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b'x'; size as usize])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
