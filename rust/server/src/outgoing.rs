//! The body of a response of the door: whole, or as it comes from the Python service.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::connection::{Answering, Wish};

/// Why a body ended too early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

enum Source {
    Whole(Option<Bytes>),
    Passed {
        body: Incoming,
        _permit: OwnedSemaphorePermit,
    },
    /// Of a client of HTTP/2, which may leave a stream unread without leaving the connection unread.
    Watched {
        frames: mpsc::Receiver<Result<Frame<Bytes>, BodyError>>,
        size: SizeHint,
    },
}

/// A body, and the request that it answers.
pub struct Outgoing {
    source: Source,
    _answering: Answering,
}

impl Outgoing {
    /// A body that is there.
    pub fn whole(body: Bytes, answering: Answering) -> Self {
        Self { source: Source::Whole((!body.is_empty()).then_some(body)), _answering: answering }
    }

    /// A body as the Python service sends it, no faster than the client reads it.
    pub fn passed(body: Incoming, permit: OwnedSemaphorePermit, answering: Answering) -> Self {
        Self { source: Source::Passed { body, _permit: permit }, _answering: answering }
    }

    /// `passed`, of a client that is cut off where it takes no more of it for so long.
    pub fn watched(mut body: Incoming, permit: OwnedSemaphorePermit, take: Duration, answering: Answering) -> Self {
        let connection = Arc::clone(&answering.0);
        let (to, frames) = mpsc::channel(1);
        let size = body.size_hint();
        tokio::spawn(async move {
            let _permit = permit;
            while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                match tokio::time::timeout(take, to.send(frame.map_err(Into::into))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return,                          // the stream has ended
                    Err(_) => return connection.want(Wish::Abort), // hyper asks for no more, so it would not see an end
                }
            }
            let _ = to.send(Ok(Frame::data(Bytes::new()))).await; // the end is whole
        });
        Self { source: Source::Watched { frames, size }, _answering: answering }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().source {
            Source::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Source::Passed { body, .. } => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Source::Watched { frames, .. } => Poll::Ready(match ready!(frames.poll_recv(cx)) {
                Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => None,
                Some(frame) => Some(frame),
                None => Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(body) => body.is_none(),
            Source::Passed { body, .. } => body.is_end_stream(),
            Source::Watched { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Source::Passed { body, .. } => body.size_hint(),
            Source::Watched { size, .. } => *size,
        }
    }
}
