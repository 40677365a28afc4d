//! One connection's bytes on their way to hyper: only whole heads that can be read in one way get there.
//!
//! A request that is refused is replaced by an empty one, which the exchange answers with the refusal: so everything
//! before it is answered first, in order, by hyper. Bytes of HTTP/2 pass as they are. How long a client may take to send
//! a head is seen here too: the registry's tick says when it is over.

mod chunks;
pub mod head;
mod sending;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use hyper::rt::{Read, ReadBufCursor};
use tokio::net::TcpStream;

use crate::bounds::Bounds;
use crate::connection::{Connection, Waits, Wish};
use crate::intake::chunks::Chunks;
use crate::intake::head::{Framing, Seen, read_head};
use crate::problems::Refusal;

/// What hyper gets in place of a request that is refused.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";

const AT_ONCE: usize = 16 << 10;

/// What comes next.
enum Next {
    Head(Seen),
    Body {
        left: u64,
    },
    Chunks(Chunks),
    /// Nothing: the last request was read.
    Nothing,
    /// Bytes of HTTP/2.
    Anything,
}

/// A connection whose bytes are looked at.
pub struct Intake {
    stream: TcpStream,
    connection: Arc<Connection>,
    bounds: Arc<Bounds>,
    buffer: BytesMut,
    /// So many bytes at the front of the buffer may be handed over.
    ready: usize,
    next: Next,
    /// Heads that were handed over, and so the number of the next one.
    number: u64,
    /// In which state of which request it waits.
    waits_for: Option<(Waits, u64)>,
}

impl Intake {
    /// The bytes of HTTP/1; `buffer` has come already.
    pub fn http1(stream: TcpStream, buffer: BytesMut, connection: Arc<Connection>, bounds: Arc<Bounds>) -> Self {
        let next = Next::Head(Seen::default());
        Self { stream, connection, bounds, buffer, ready: 0, next, number: 0, waits_for: None }
    }

    /// The bytes of HTTP/2; `buffer` has come already.
    pub fn http2(stream: TcpStream, buffer: BytesMut, connection: Arc<Connection>, bounds: Arc<Bounds>) -> Self {
        let ready = buffer.len();
        Self { ready, next: Next::Anything, ..Self::http1(stream, buffer, connection, bounds) }
    }

    /// Refuse the next request, or what has come of it.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.connection.refuse(self.number, refusal);
        self.hand_over(REFUSED.len());
        self.buffer.clear();
        self.buffer.extend_from_slice(REFUSED);
        self.next = Next::Nothing;
    }

    fn hand_over(&mut self, bytes: usize) {
        self.ready = bytes;
        self.number += 1;
        self.connection.wait_next(Waits::Request, Some(self.bounds.idle));
        self.connection.begin();
        self.connection.hold(0);
    }

    /// See what may be handed over of what has come.
    fn advance(&mut self) -> io::Result<()> {
        match &mut self.next {
            Next::Head(seen) => {
                while self.buffer.starts_with(b"\r\n") {
                    self.buffer.advance(2); // empty lines in front of a request (RFC 9112, 2.2)
                    *seen = Seen::default();
                }
                match read_head(&self.buffer, seen, &self.bounds) {
                    Ok(Some(head)) => {
                        let is_last = head.is_last;
                        self.hand_over(head.bytes);
                        if is_last {
                            self.connection.end_after(self.number - 1);
                        }
                        self.next = match head.body {
                            Framing::Length(0) if is_last => Next::Nothing,
                            Framing::Length(0) => Next::Head(Seen::default()),
                            Framing::Length(left) => Next::Body { left },
                            Framing::Chunks => Next::Chunks(Chunks::new()),
                        };
                    }
                    Ok(None) => {}
                    Err(refusal) => self.refuse(refusal),
                }
            }
            Next::Body { left } => {
                self.ready = usize::try_from(*left).unwrap_or(usize::MAX).min(self.buffer.len());
                *left -= self.ready as u64;
                if *left == 0 {
                    self.expect_head();
                }
            }
            Next::Chunks(chunks) => {
                let Ok(taken) = chunks.follow(&self.buffer) else {
                    self.connection.end_after(0);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "no chunks"));
                };
                self.ready = taken;
                if chunks.has_ended() {
                    self.expect_head();
                }
            }
            Next::Nothing => self.buffer.clear(),
            Next::Anything => self.ready = self.buffer.len(),
        }
        Ok(())
    }

    fn expect_head(&mut self) {
        let is_last = self.connection.ends_after(self.number.saturating_sub(1));
        self.next = if is_last { Next::Nothing } else { Next::Head(Seen::default()) };
    }

    /// Note what the client is waited for, and since when; whatever else comes of the same does not make it later.
    fn note_wait(&mut self) {
        let is_busy = self.connection.answering() > 0;
        let (waits, at_most, number) = match self.next {
            Next::Head(_) if self.buffer.is_empty() && self.number > 0 => {
                (Waits::Request, self.bounds.idle, self.number)
            }
            Next::Head(_) if self.buffer.is_empty() => (Waits::Request, self.bounds.head, self.number),
            Next::Head(_) => (Waits::Head, self.bounds.head, self.number),
            Next::Anything => (Waits::Request, self.bounds.idle, self.connection.answered()),
            Next::Body { .. } | Next::Chunks(_) => {
                self.connection.wait(Waits::Body, None);
                self.waits_for = None;
                return;
            }
            Next::Nothing => return,
        };
        if is_busy {
            self.connection.wait_next(waits, Some(at_most));
            self.waits_for = None;
        } else if self.waits_for != Some((waits, number)) || self.connection.waits_for(Waits::Not) {
            self.connection.wait(waits, Some(at_most));
            self.waits_for = Some((waits, number));
        }
    }

    /// See to what is wanted of the connection; whether it ends.
    fn see_to_wish(&mut self) -> io::Result<bool> {
        let gives_way = self.connection.has(Wish::GiveWay);
        if !gives_way && !self.connection.has(Wish::Expire) {
            return Ok(false);
        }
        match self.next {
            Next::Head(_) if self.connection.answering() > 0 => Ok(false),
            Next::Head(_) if self.buffer.is_empty() => Ok(true),
            Next::Head(_) => {
                self.refuse(if gives_way {
                    Refusal::gave_way()
                } else {
                    Refusal::head_too_slow(self.bounds.head.as_secs_f64())
                });
                Ok(false)
            }
            Next::Body { .. } | Next::Chunks(_) if gives_way => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "another connection needs the place"))
            }
            _ => Ok(false),
        }
    }

    /// Read what there is; 0 at the end.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            self.buffer.reserve(AT_ONCE / 4);
            match self.stream.try_read_buf(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }
}

impl Read for Intake {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut to: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.ready == 0 {
                this.advance()?;
            }
            if this.ready > 0 {
                let count = this.ready.min(to.remaining());
                to.put_slice(&this.buffer[..count]);
                this.buffer.advance(count);
                this.ready -= count;
                if !matches!(this.next, Next::Anything) {
                    this.connection.wait_no_longer();
                }
                return Poll::Ready(Ok(()));
            }
            let is_answering = this.connection.answering() > 0;
            if this.see_to_wish()? || (this.connection.has_left() && !is_answering) {
                return Poll::Ready(Ok(()));
            }
            if this.ready > 0 {
                continue;
            }
            if this.connection.has_left() {
                return Poll::Pending;
            }
            match this.poll_more(cx) {
                Poll::Ready(Ok(0)) => {
                    this.connection.leave();
                    let in_body = matches!(this.next, Next::Body { .. } | Next::Chunks(_) | Next::Anything);
                    return if is_answering && !in_body { Poll::Pending } else { Poll::Ready(Ok(())) };
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    this.note_wait();
                    if matches!(this.next, Next::Head(_)) {
                        this.connection.hold(this.buffer.len());
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}
