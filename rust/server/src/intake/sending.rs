//! What hyper sends on a connection, how long its client may take to read it, and how the connection is closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::Write;
use tokio::io::AsyncWrite;

use crate::connection::Signal;
use crate::intake::{Intake, Next};
use crate::transport::{Taken, Transport, send_tls};
use crate::waiting::{LINGER, Waits};

impl Intake {
    /// Record what hyper buffers of `count` bytes that it writes: all of them until the last one is taken.
    fn note_unsent(&mut self, count: usize, poll: &Poll<io::Result<usize>>) {
        match poll {
            Poll::Ready(Ok(taken)) if *taken < count => self.unsent.set_at_least(count),
            Poll::Ready(_) => self.unsent.set(0),
            Poll::Pending => self.unsent.set_at_least(count),
        }
    }

    /// Record how much the socket has taken of `count` bytes.
    fn took(&mut self, count: usize, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.note(match &poll {
            Poll::Ready(Ok(taken)) if *taken >= count => Taken::All,
            Poll::Ready(Ok(_)) => Taken::Part,
            Poll::Ready(Err(_)) => Taken::Lost,
            Poll::Pending => Taken::Nothing,
        });
        poll
    }

    /// Record how much the socket has taken of the data to be sent.
    fn note(&mut self, taken: Taken) {
        let had_unsent = std::mem::replace(&mut self.has_unsent, taken != Taken::All);
        match taken {
            Taken::All => self.connection.waiting.took(true),
            Taken::Part => self.connection.waiting.took(false),
            Taken::Nothing => self.connection.waiting.took_nothing(),
            Taken::Lost => {}
        }
        if had_unsent && !self.has_unsent && (self.connection.has_left() || matches!(self.next, Next::WideHead)) {
            self.connection.woken.notify_one(); // now hyper may get the end of the stream
        }
    }
}

impl Write for Intake {
    // In HTTP/1 hyper writes all that it has at once; in HTTP/2 it has a frame or two, and streams count their own
    // bytes.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = match &mut this.stream {
            Transport::Plain(stream) => {
                let poll = Pin::new(stream).poll_write(cx, bytes);
                this.took(bytes.len(), poll)
            }
            Transport::Tls(stream) => {
                let (poll, taken) = send_tls(stream, |stream| stream.poll_write(cx, bytes));
                this.note(taken);
                poll
            }
        };
        this.note_unsent(bytes.len(), &poll);
        poll
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match &mut this.stream {
            Transport::Plain(stream) => {
                let poll = Pin::new(stream).poll_write_vectored(cx, parts);
                this.took(parts.iter().map(|part| part.len()).sum(), poll)
            }
            Transport::Tls(stream) => {
                let (poll, taken) = send_tls(stream, |stream| stream.poll_write_vectored(cx, parts));
                this.note(taken);
                poll
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.stream {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => {
                let (poll, taken) = send_tls(stream, |stream| stream.poll_flush(cx));
                this.note(taken);
                poll
            }
        }
    }

    /// Shut down the sending side, and discard what still arrives.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_replaced {
            return Poll::Ready(Ok(()));
        }
        match &mut this.stream {
            Transport::Plain(stream) => ready!(Pin::new(stream).poll_shutdown(cx))?,
            Transport::Tls(stream) => {
                let (poll, taken) = send_tls(stream, |stream| stream.poll_shutdown(cx));
                this.note(taken);
                ready!(poll)?;
            }
        }
        let is_between = matches!(this.next, Next::Head(_) | Next::Frames(_)) && !this.connection.has_announced_end();
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
                Poll::Pending if !this.connection.has(Signal::GiveWay) => return Poll::Pending,
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}
