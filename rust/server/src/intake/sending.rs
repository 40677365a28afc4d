//! What hyper sends on a connection, how long its client may take to read it, and how the connection is closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Write;
use tokio::io::AsyncWrite;

use crate::connection::{Waits, Wish};
use crate::intake::{Intake, Next};

/// How long what a client still sends is thrown away, so that it reads the response before the connection is reset.
const LINGER: Duration = Duration::from_secs(2);

impl Intake {
    fn took(&mut self, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let is_stuck = self.connection.waits_for(Waits::Reading);
        match &poll {
            Poll::Ready(_) if is_stuck => self.connection.is_read(),
            Poll::Pending if is_stuck && self.connection.has(Wish::Expire) => {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
            }
            Poll::Pending if !is_stuck => self.connection.wait(Waits::Reading, Some(self.bounds.take)),
            _ => {}
        }
        poll
    }
}

impl Write for Intake {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.took(poll)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        this.took(poll)
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
        let is_between = matches!(this.next, Next::Head(_) | Next::Anything) && !this.connection.was_told();
        if is_between || this.connection.has_left() {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.connection.waits_for(Waits::Leaving) {
                if this.connection.has(Wish::Expire) {
                    return Poll::Ready(Ok(()));
                }
            } else {
                this.connection.wait(Waits::Leaving, Some(LINGER));
                this.connection.hold(0);
            }
            this.buffer.clear();
            if ready!(this.poll_more(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
