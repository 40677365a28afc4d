//! The body of a response of the door: complete, or as it arrives from the Python service.
//!
//! A client of HTTP/2 may leave a stream unread and still read from the connection. So each stream sends one piece at a
//! time, the last one included, and the connection records since when.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use crate::connection::{Answering, Held};

/// The largest piece that is on its way to a client of HTTP/2.
const MOST_AT_ONCE: usize = 64 << 10;

/// A body up to this size takes about as much as its stream, and is not counted.
const SMALL: usize = 4 << 10;

/// The body of a response of the Python service.
pub enum ServiceBody {
    /// It has arrived, and takes no turn.
    Complete(Bytes),
    /// It arrives no faster than the client reads it, and takes a turn meanwhile.
    Streaming(Incoming, OwnedSemaphorePermit),
}

enum Source {
    Complete(Bytes),
    Passed {
        body: Incoming,
        /// What has arrived of it and was not handed over.
        rest: Bytes,
        _turn: OwnedSemaphorePermit,
    },
}

/// The client that it is sent to, with the request that it answers.
enum Client {
    Http1 { _answering: Answering },
    Http2(Arc<Stream>),
}

/// A body, and the request that it answers.
pub struct Outgoing {
    source: Source,
    client: Client,
}

impl Outgoing {
    /// A complete body.
    pub fn complete(body: Bytes, answering: Answering, is_http1: bool) -> Self {
        let client = Client::of(answering, is_http1, body.len());
        Self { source: Source::Complete(body), client }
    }

    /// A body of the Python service.
    pub fn passed(body: ServiceBody, answering: Answering, is_http1: bool) -> Self {
        let (body, turn) = match body {
            ServiceBody::Complete(body) => return Self::complete(body, answering, is_http1),
            ServiceBody::Streaming(body, turn) => (body, turn),
        };
        let source = Source::Passed { body, rest: Bytes::new(), _turn: turn };
        Self { source, client: Client::of(answering, is_http1, 0) }
    }
}

impl Client {
    /// A client for which this many bytes are buffered. In HTTP/1 `Intake` counts what the socket does not take.
    fn of(answering: Answering, is_http1: bool, bytes: usize) -> Self {
        if is_http1 {
            Self::Http1 { _answering: answering }
        } else {
            Self::Http2(Arc::new(Stream::of(answering, bytes)))
        }
    }
}

impl Body for Outgoing {
    type Data = Piece;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, hyper::Error>>> {
        let this = self.get_mut();
        if let Client::Http2(stream) = &this.client
            && stream.is_unread(cx)
        {
            return Poll::Pending;
        }
        let ready = match &mut this.source {
            Source::Complete(body) => body,
            Source::Passed { body, rest, .. } => {
                while rest.is_empty() {
                    match Pin::new(&mut *body).poll_frame(cx) {
                        Poll::Ready(Some(Ok(frame))) => *rest = frame.into_data().unwrap_or_default(), // no trailers
                        Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                        Poll::Ready(None) => return Poll::Ready(None),
                        Poll::Pending => return Poll::Pending,
                    }
                }
                rest
            }
        };
        if ready.is_empty() {
            return Poll::Ready(None);
        }
        let piece = match &this.client {
            Client::Http1 { .. } => Piece { bytes: std::mem::take(ready), _unread: None },
            Client::Http2(stream) => {
                let bytes = ready.split_to(MOST_AT_ONCE.min(ready.len()));
                Piece { bytes, _unread: Some(Stream::send(stream)) }
            }
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Complete(body) => body.is_empty(),
            Source::Passed { body, rest, .. } => rest.is_empty() && body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Complete(body) => SizeHint::with_exact(body.len() as u64),
            Source::Passed { body, .. } => body.size_hint(), // hyper calls this before the first piece
        }
    }
}

/// A stream of HTTP/2 to its client.
struct Stream {
    answering: Answering,
    state: Mutex<Sent>,
    /// The bytes that are buffered until all of them are read.
    _held: Option<Held>,
}

#[derive(Default)]
struct Sent {
    is_unread: bool,
    /// Woken when it is read.
    waker: Option<Waker>,
}

impl Stream {
    fn of(answering: Answering, bytes: usize) -> Self {
        let held = (bytes > SMALL).then(|| {
            let mut held = Held::of(Arc::clone(&answering.0));
            held.set(bytes);
            held
        });
        Self { answering, state: Mutex::default(), _held: held }
    }

    fn is_unread(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_unread {
            state.waker = Some(cx.waker().clone());
        }
        state.is_unread
    }

    fn send(this: &Arc<Self>) -> Unread {
        this.state.lock().unwrap_or_else(PoisonError::into_inner).is_unread = true;
        Unread { number: this.answering.0.waiting.await_reading(), stream: Arc::clone(this) }
    }
}

/// A piece that is on its way; dropped when the socket has taken it, or the stream has ended.
struct Unread {
    stream: Arc<Stream>,
    number: u64,
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.stream.answering.0.waiting.await_reading_no_longer(self.number);
        let mut state = self.stream.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_unread = false;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// A piece of a body.
pub struct Piece {
    bytes: Bytes,
    _unread: Option<Unread>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
