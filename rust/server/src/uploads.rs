//! The body of a request: read whole for a check, or passed on as it comes, within its bounds either way.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bounds::Bounds;
use crate::connection::Connection;
use crate::problems::Refusal;

/// A body that comes with at least so many bytes a second is never too slow.
const SLOWEST: u64 = 16 * 1024;

/// An unwanted body is thrown away up to here, so that the connection can be used again.
const MOST_UNWANTED: u64 = 1 << 20;

/// Why a body did not come whole.
pub type UploadError = Box<dyn std::error::Error + Send + Sync>;

/// How long a body may take.
pub struct Pace {
    began: Instant,
    at_most: Duration,
    size: u64,
    sleep: Pin<Box<Sleep>>,
}

impl Pace {
    fn new(at_most: Duration) -> Self {
        let began = Instant::now();
        Self { began, at_most, size: 0, sleep: Box::pin(sleep_until(began + at_most)) }
    }

    /// Whether it takes too long; later the more of it has come.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(cx).is_ready() {
            let due = self.began + self.at_most + Duration::from_secs(self.size / SLOWEST);
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(due);
        }
        Poll::Pending
    }
}

/// A body on its way to the Python service.
pub enum Upload {
    /// It was read, or there is none.
    Whole(Option<Bytes>),
    /// It comes.
    Coming(Incoming, Box<Coming>),
}

/// How a body comes, and why it did not come whole.
pub struct Coming {
    pace: Pace,
    at_most: Duration,
    failed: Arc<OnceLock<Refusal>>,
}

impl Upload {
    /// A body that comes, if there is one; `failed` is told where it does not come whole.
    pub fn of(body: Incoming, bounds: &Bounds, failed: &Arc<OnceLock<Refusal>>) -> Self {
        if body.is_end_stream() {
            return Self::Whole(None);
        }
        Self::Coming(
            body,
            Box::new(Coming { pace: Pace::new(bounds.body), at_most: bounds.body, failed: Arc::clone(failed) }),
        )
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Coming(body, coming) => loop {
                match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        let Some(data) = frame.data_ref() else {
                            continue; // trailers are not passed on: the request is not changed any more
                        };
                        coming.pace.size += data.len() as u64;
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(Some(Err(error))) => {
                        let _ = coming.failed.set(Refusal::malformed());
                        return Poll::Ready(Some(Err(error.into())));
                    }
                    Poll::Pending if coming.pace.poll_over(cx).is_ready() => {
                        let _ = coming.failed.set(Refusal::body_too_slow(coming.at_most.as_secs_f64()));
                        return Poll::Ready(Some(Err("the body comes too slowly".into())));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Coming(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Self::Coming(body, _) => body.size_hint(),
        }
    }
}

/// The whole body; a refusal where it is too large, too slow, or ends too early.
pub async fn read_whole(body: Incoming, bounds: &Bounds, connection: &Arc<Connection>) -> Result<Bytes, Refusal> {
    let most = bounds.body_bytes;
    if body.size_hint().lower() > most as u64 {
        return Err(Refusal::body_too_large(most));
    }
    let mut whole = Whole { body, pace: None, at_most: bounds.body };
    let mut size = 0;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(data) = whole.next().await? {
        size += data.len();
        if size > most {
            return Err(Refusal::body_too_large(most));
        }
        if first.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.extend_from_slice(&first);
        }
        rest.extend_from_slice(&data);
        connection.hold(size);
    }
    connection.hold(0);
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Throw a body away that nobody wants, so that the connection can be used again; if it is large, it cannot.
pub fn throw_away(body: Incoming, bounds: &Bounds) {
    let mut whole = Whole { body, pace: None, at_most: bounds.body };
    tokio::spawn(async move {
        let mut size = 0;
        while let Ok(Some(data)) = whole.next().await {
            size += data.len() as u64;
            if size > MOST_UNWANTED {
                return;
            }
        }
    });
}

struct Whole {
    body: Incoming,
    /// Not there until the body has to be waited for: most come with their head.
    pace: Option<Pace>,
    at_most: Duration,
}

impl Whole {
    /// More of the body; None at its end.
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        poll_fn(|cx| {
            loop {
                match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Ready(None) => return Poll::Ready(Ok(None)),
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Refusal::malformed())),
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            if let Some(pace) = &mut self.pace {
                                pace.size += data.len() as u64;
                            }
                            return Poll::Ready(Ok(Some(data)));
                        }
                    }
                    Poll::Pending => {
                        let pace = self.pace.get_or_insert_with(|| Pace::new(self.at_most));
                        return match pace.poll_over(cx) {
                            Poll::Ready(()) => Poll::Ready(Err(Refusal::body_too_slow(self.at_most.as_secs_f64()))),
                            Poll::Pending => Poll::Pending,
                        };
                    }
                }
            }
        })
        .await
    }
}
