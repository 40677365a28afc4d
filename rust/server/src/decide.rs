//! What the door asks about a check, and what it is answered.

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

/// Decides checks. It is asked on the threads of the door, and must not block.
pub trait Decide: Send + Sync {
    /// The answer to a check.
    fn decide(&self, check: &Check<'_>) -> Answer;
}

impl<D: Decide + ?Sized> Decide for Arc<D> {
    fn decide(&self, check: &Check<'_>) -> Answer {
        (**self).decide(check)
    }
}

/// A request to the door that asks for a decision.
pub struct Check<'a> {
    /// What is asked.
    pub question: Question<'a>,
    /// The method of the request to the door.
    pub method: &'a Method,
    /// Its header fields; `host` is there if the client named one in any way.
    pub headers: &'a HeaderMap,
    /// The address of the client of the door, as text.
    pub peer: &'a str,
}

/// What a check asks.
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
    /// What the client gets.
    Reply(Reply),
    /// The Python service is to answer: nothing was decided, and nothing charged.
    Pass,
    /// What the client gets when it is known; until then nothing waits for it but its own request.
    Later(Later),
    /// What takes long to decide, in pieces: the thread serves others between them, and one such check at a time.
    InPieces(InPieces),
}

impl Answer {
    /// The same as a whole, without serving others meanwhile: for owners of a decider that have no door.
    pub fn at_once(mut self) -> Self {
        while let Self::InPieces(pieces) = self {
            self = at_once(pieces.answer());
        }
        self
    }
}

/// What a future gives that only ever waits to let others in between, or for what other threads do.
pub fn at_once<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// Lets others have the thread once a piece has taken its time.
pub struct Pieces {
    began: Instant,
}

impl Pieces {
    /// The first one begins now.
    pub fn begin() -> Self {
        Self { began: Instant::now() }
    }

    /// Go on, or let all others go first that are ready or have something to read.
    pub async fn next(&mut self) {
        if self.began.elapsed() >= PIECE {
            yield_now().await;
            self.began = Instant::now();
        }
    }
}

/// An answer that is decided in pieces on the thread that asked for it. Dropped, what is left of it is not decided.
pub struct InPieces(Pin<Box<dyn Future<Output = Answer> + Send>>);

impl InPieces {
    /// What a future gives that awaits `Pieces`, and perhaps its turn before it begins.
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

/// A reply that is awaited on the thread that asked for it. Dropped, it goes nowhere.
pub struct Later(Pin<Box<dyn Future<Output = Reply> + Send>>);

impl Later {
    /// What a future gives.
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

/// A response that is there as a whole.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// What `body` is; not sent where that is empty.
    pub content_type: &'static str,
    /// Header fields, in their order; all but those that any response has.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: Bytes,
}
