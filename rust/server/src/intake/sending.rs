//! What hyper sends on a connection, how long its client may take to read it, and how the connection is closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Write;
use tokio::io::AsyncWrite;

use crate::connection::Wish;
use crate::intake::{Intake, Next};
use crate::waiting::Waits;

/// How long what a client still sends is thrown away, so that it reads the response before the connection is reset.
const LINGER: Duration = Duration::from_secs(2);

impl Intake {
    /// Note how much the socket has taken of `count` bytes.
    fn took(&mut self, count: usize, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let had_unsent =
            std::mem::replace(&mut self.has_unsent, !matches!(&poll, Poll::Ready(Ok(taken)) if *taken >= count));
        match &poll {
            Poll::Ready(Ok(taken)) => self.connection.waiting.took(*taken >= count),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.waiting.took_nothing(),
        }
        if had_unsent && !self.has_unsent && self.connection.has_left() {
            self.connection.woken.notify_one(); // now hyper may learn that the client has left
        }
        poll
    }
}

impl Write for Intake {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.took(bytes.len(), poll)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        this.took(parts.iter().map(|part| part.len()).sum(), poll)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    /// Say that no more comes, and throw away what still does.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        let is_between = matches!(this.next, Next::Head(_) | Next::Frames(_)) && !this.connection.was_told();
        if is_between || this.connection.has_left() {
            return Poll::Ready(Ok(()));
        }
        if !this.lingers {
            this.lingers = true;
            this.connection.waiting.expect(Waits::Leaving, Some(LINGER));
            this.held.set(0);
        }
        loop {
            this.buffer.clear();
            match this.poll_more(cx) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Pending if !this.connection.has(Wish::GiveWay) => return Poll::Pending,
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}
