//! The body of a request, within its bounds: read completely, and counted while it is in memory, or discarded.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bounds::Bounds;
use crate::connection::{AwaitedBody, Connection, Held};
use crate::problems::Refusal;

/// A body that arrives with at least this many bytes a second is never too slow.
const SLOWEST: u64 = 16 * 1024;

/// The time that a body may take, from the first wait for it.
struct Pace {
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

    /// Ready when the body takes too long; the more of it has arrived, the later.
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

/// A body for the Python service; it was read completely, or is empty.
pub struct Upload(pub Bytes);

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = std::mem::take(&mut self.0);
        Poll::Ready((!body.is_empty()).then_some(Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// The whole body; a refusal where it is too large, too slow, ends too early, or has to give way.
///
/// `held` counts what has arrived of the request while this waits for the rest.
pub async fn read_body(
    parts: &Parts,
    body: Incoming,
    bounds: &Bounds,
    connection: &Arc<Connection>,
    held: &mut Held<&Connection>,
) -> Result<Bytes, Refusal> {
    let most = bounds.body_bytes;
    if body.size_hint().lower() > most as u64 {
        return Err(Refusal::body_too_large(most));
    }
    let mut arriving = Arriving { body, connection, at_most: bounds.body, is_wanted: true, wait: None };
    let (mut size, mut first, mut rest) = (0, Bytes::new(), BytesMut::new());
    loop {
        let next = poll_fn(|cx| {
            let next = arriving.poll_next(cx);
            if next.is_pending() {
                held.set(head_bytes(parts) + size);
            }
            next
        });
        let Some(data) = next.await? else { break };
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
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// About how many bytes the head of a request takes.
pub fn head_bytes(parts: &Parts) -> usize {
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    target + parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>()
}

/// Discard an unwanted body, as long as it arrives steadily, so that the connection can be used again.
///
/// It holds no memory, and its connection may give way: it costs as much as small requests of the same size.
pub fn discard_body(body: Incoming, bounds: &Bounds, connection: &Arc<Connection>) {
    let (connection, at_most) = (Arc::clone(connection), bounds.body);
    tokio::spawn(async move {
        let mut arriving = Arriving { body, connection: &connection, at_most, is_wanted: false, wait: None };
        while let Ok(Some(_)) = poll_fn(|cx| arriving.poll_next(cx)).await {}
    });
}

/// A body as it arrives.
struct Arriving<'a> {
    body: Incoming,
    connection: &'a Arc<Connection>,
    at_most: Duration,
    /// Whether it is read for a request that is being answered.
    is_wanted: bool,
    /// None until the body has to be waited for: most arrive with their head.
    wait: Option<Wait>,
}

struct Wait {
    pace: Pace,
    gives_way: Pin<Box<dyn Future<Output = ()> + Send>>,
    _awaited: Option<AwaitedBody>,
}

impl Wait {
    fn of(connection: &Arc<Connection>, at_most: Duration, is_wanted: bool) -> Self {
        let this = Arc::clone(connection);
        let gives_way = Box::pin(async move { this.gives_way().await });
        Self { pace: Pace::new(at_most), gives_way, _awaited: is_wanted.then(|| AwaitedBody::of(connection)) }
    }
}

impl Arriving<'_> {
    /// More of the body; None at its end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Refusal>> {
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(self.connection.refusal_of_body())),
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else {
                        continue; // trailers are not passed on: they must not change the request
                    };
                    if let Some(wait) = &mut self.wait {
                        wait.pace.size += data.len() as u64;
                    }
                    return Poll::Ready(Ok(Some(data)));
                }
                Poll::Pending => {
                    let wait = self.wait.get_or_insert_with(|| Wait::of(self.connection, self.at_most, self.is_wanted));
                    if wait.gives_way.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Err(Refusal::gave_way()));
                    }
                    return wait.pace.poll_over(cx).map(|()| Err(Refusal::body_too_slow(self.at_most.as_secs_f64())));
                }
            }
        }
    }
}
