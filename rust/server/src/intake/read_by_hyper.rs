//! The requests that hyper reads from bytes that were handed over to it.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};

use crate::bounds::Bounds;

/// A request as hyper has read it.
pub struct Read {
    parts: http::request::Parts,
    /// The received part of its body.
    pub body: Vec<u8>,
    /// Whether the body is complete.
    pub ended: bool,
}

impl Read {
    pub fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// Whether it is the one that this head describes.
    pub fn is(&self, head: &[u8]) -> bool {
        let mut fields = [httparse::EMPTY_HEADER; 512];
        let mut request = httparse::Request::new(&mut fields);
        let mut own: Vec<(&str, &[u8])> =
            self.parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        if request.parse(head) != Ok(httparse::Status::Complete(head.len())) {
            return false;
        }
        let names: Vec<String> = request.headers.iter().map(|field| field.name.to_ascii_lowercase()).collect();
        let values = request.headers.iter().map(|field| field.value);
        let mut described: Vec<(&str, &[u8])> = names.iter().map(String::as_str).zip(values).collect();
        own.sort_unstable();
        described.sort_unstable();
        own == described
            && request.method == Some(self.parts.method.as_str())
            && request.path.and_then(|path| path.parse().ok()) == Some(self.parts.uri.clone())
            && request.version == Some(u8::from(self.parts.version == http::Version::HTTP_11))
    }
}

/// The requests that hyper reads, configured as in the door; no more bytes arrive, and the connection stays open.
pub fn read_by_hyper(sent: &[u8], bounds: &Bounds) -> Vec<Read> {
    let read = RefCell::new(Vec::new());
    let service = service_fn(async |request: Request<Incoming>| {
        let (parts, mut body) = request.into_parts();
        let index = read.borrow().len();
        read.borrow_mut().push(Read { parts, body: vec![], ended: false });
        loop {
            match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default(); // trailers have none
                    read.borrow_mut()[index].body.extend_from_slice(&data);
                }
                Some(Err(_)) => break,
                None => {
                    read.borrow_mut()[index].ended = true;
                    break;
                }
            }
        }
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let connection = Builder::new()
        .header_read_timeout(None)
        .max_headers(bounds.fields)
        .max_buf_size(bounds.head_bytes + (64 << 10))
        .serve_connection(Wire { unread: sent }, service);
    poll_while_woken(connection);
    read.into_inner()
}

/// Poll a future until it is done, or waits for what never arrives.
fn poll_while_woken(future: impl Future) {
    let mut future = pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    while woken.0.swap(false, SeqCst) && future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {}
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// A connection whose client has sent all that it sends, and reads everything.
struct Wire<'a> {
    unread: &'a [u8],
}

impl hyper::rt::Read for Wire<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut to: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Poll::Pending;
        }
        let (now, later) = self.unread.split_at(self.unread.len().min(to.remaining()));
        to.put_slice(now);
        self.unread = later;
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Wire<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
