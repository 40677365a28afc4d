//! The interface between the door and its decider: checks and their answers.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::task::yield_now;

/// How long a check that is decided in pieces has its thread to itself.
const PIECE: Duration = Duration::from_micros(500);

/// Decides checks. It is called on the threads of the door, and must not block.
pub trait Decide: Send + Sync {
    /// The answer to a check.
    fn decide(&self, check: &Check<'_>) -> Answer;
}

impl<D: Decide + ?Sized> Decide for Arc<D> {
    fn decide(&self, check: &Check<'_>) -> Answer {
        (**self).decide(check)
    }
}

/// A request to the door for a decision.
pub struct Check<'a> {
    /// What the check is about.
    pub question: Question<'a>,
    /// The method of the request to the door.
    pub method: &'a Method,
    /// Its header fields; `host` is among them if the client named one in any way.
    pub headers: &'a HeaderMap,
    /// The address of the client of the door, as text.
    pub peer: &'a str,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    /// `/check/{ruleset}` and `/check-403/{ruleset}`: whether the request that the header fields describe may pass.
    Forwarded {
        /// The ruleset, as the path has it.
        ruleset: &'a str,
        /// What follows the ruleset in the path, with its slash; `/` where nothing does.
        path: &'a str,
        /// Whether a refusal is 403 without a body, with the problem in a field, as nginx needs it.
        bare: bool,
    },
    /// `POST /v1/check`: whether the requests of a body may pass.
    Described {
        /// The body.
        body: &'a Bytes,
    },
}

/// The answer to a check.
#[derive(Debug)]
pub enum Answer {
    /// The reply to the client.
    Reply(Reply),
    /// The Python service must answer: nothing was decided, and nothing charged.
    Pass,
    /// A reply that is not known yet; nothing but its own request waits for it.
    Later(Later),
    /// A long decision in pieces: the thread serves others between them, and decides one such check at a time.
    InPieces(InPieces),
}

impl Answer {
    /// The answer without pieces, decided without serving others meanwhile: for owners of a decider without a door.
    pub fn at_once(mut self) -> Self {
        while let Self::InPieces(pieces) = self {
            self = at_once(pieces.answer());
        }
        self
    }
}

/// The output of a future that only ever waits to let others run, or for other threads; this polls it in a loop.
pub fn at_once<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// Yields the thread to others once a piece has taken `PIECE`.
pub struct Pieces {
    began: Instant,
}

impl Pieces {
    /// Begin the first piece now.
    pub fn begin() -> Self {
        Self { began: Instant::now() }
    }

    /// Go on, or first let all others run that are ready or have something to read.
    pub async fn next(&mut self) {
        if self.began.elapsed() >= PIECE {
            yield_now().await;
            self.began = Instant::now();
        }
    }
}

/// An answer that is decided in pieces on the calling thread. Where it is dropped, the rest of it is not decided.
pub struct InPieces(Pin<Box<dyn Future<Output = Answer> + Send>>);

impl InPieces {
    /// The answer of a future that awaits `Pieces`, and perhaps its turn before it begins.
    pub fn new(answer: impl Future<Output = Answer> + Send + 'static) -> Self {
        Self(Box::pin(answer))
    }

    /// The answer.
    pub fn answer(self) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        self.0
    }
}

impl fmt::Debug for InPieces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("InPieces")
    }
}

/// A reply that is awaited on the calling thread. Where it is dropped, it is discarded.
pub struct Later(Pin<Box<dyn Future<Output = Reply> + Send>>);

impl Later {
    /// The reply of a future.
    pub fn new(reply: impl Future<Output = Reply> + Send + 'static) -> Self {
        Self(Box::pin(reply))
    }

    /// The reply.
    pub fn reply(self) -> Pin<Box<dyn Future<Output = Reply> + Send>> {
        self.0
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Later")
    }
}

/// A complete response.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// The content type of `body`; not sent where the body is empty.
    pub content_type: &'static str,
    /// Header fields in order, without those that every response has.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: Bytes,
}
