//! The bytes of one connection on their way to hyper, which gets only complete and unambiguous heads.
//!
//! A request that is refused is replaced by an empty one, which the exchange answers with the refusal: so hyper answers
//! everything before it first, in order. Bytes of HTTP/2 pass unchanged. The time that a client may take to send a head
//! is enforced here too, after a signal of the registry's tick.

mod chunks;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod head;
pub mod methods;
#[cfg(any(test, fuzzing))]
mod read_by_hyper;
mod sending;
mod target;
mod waits;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use hyper::rt::{Read, ReadBufCursor};
use tokio_util::io::poll_read_buf;

use crate::bounds::Bounds;
use crate::connection::{Connection, Held, Signal};
use crate::intake::chunks::{Chunks, MOST_EXTENSIONS, MOST_TRAILERS, Unfollowed};
use crate::intake::frames::{Frames, PREFACE};
use crate::intake::head::{Framing, Seen, read_head};
use crate::intake::target::quote_target;
use crate::problems::Refusal;
use crate::transport::Transport;
use crate::waiting::Waits;

/// What hyper gets in place of a refused request.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";

const AT_ONCE: usize = 16 << 10;

/// The fields of a head that hyper has room for by default; more cost it two allocations a request.
const FIELDS: usize = 100;

/// What the next bytes belong to.
enum Next {
    Head(Seen),
    Body {
        left: u64,
    },
    Chunks(Chunks),
    /// A head with more fields than hyper takes.
    WideHead,
    /// Nothing: the last request was read.
    Nothing,
    /// Frames of HTTP/2.
    Frames(Frames),
}

/// The checked byte stream of a connection.
pub struct Intake {
    stream: Transport,
    connection: Arc<Connection>,
    bounds: Arc<Bounds>,
    buffer: BytesMut,
    /// The number of bytes at the front of the buffer that may be handed over.
    ready: usize,
    next: Next,
    /// The bytes of empty lines received before the next head.
    empty: usize,
    /// The number of heads that were handed over, which is the number of the next one.
    number: u64,
    /// What it waits for, and for which request.
    waits_for: Option<(Waits, u64)>,
    /// The received part of a head.
    held: Held,
    /// Whether something that hyper has written did not get into the socket: for lack of room there, or because it was
    /// another connection's turn.
    has_unsent: bool,
    /// What hyper still buffers of what it has written.
    unsent: Held,
    /// Whether the sending side was shut down, and what the client still sends is discarded.
    lingers: bool,
    /// How many fields of a head hyper takes.
    fields: usize,
    /// Whether hyper got the end of the stream, so that an instance that takes more fields can replace it.
    is_replaced: bool,
}

impl Intake {
    /// The stream of a connection of HTTP/1; `buffer` has been received already.
    pub fn http1(stream: Transport, buffer: BytesMut, connection: Arc<Connection>, bounds: Arc<Bounds>) -> Self {
        let next = Next::Head(Seen::default());
        let (held, unsent) = (Held::of(Arc::clone(&connection)), Held::of(Arc::clone(&connection)));
        Self {
            stream,
            connection,
            bounds,
            buffer,
            ready: 0,
            next,
            empty: 0,
            number: 0,
            waits_for: None,
            held,
            has_unsent: false,
            unsent,
            lingers: false,
            fields: FIELDS,
            is_replaced: false,
        }
    }

    /// The stream of a connection of HTTP/2; `buffer` has been received already.
    pub fn http2(stream: Transport, buffer: BytesMut, connection: Arc<Connection>, bounds: Arc<Bounds>) -> Self {
        let next = Next::Frames(Frames::after(PREFACE));
        Self { next, ..Self::http1(stream, buffer, connection, bounds) }
    }

    /// The number of fields to take from now on, where hyper has ended for a head with more fields than it takes.
    pub fn takes_more_fields(&mut self) -> Option<usize> {
        let is_replaced = std::mem::take(&mut self.is_replaced);
        is_replaced.then(|| {
            self.fields = self.bounds.fields;
            self.next = Next::Head(Seen::default());
            self.fields
        })
    }

    /// Refuse the next request, or the received part of it.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.connection.refuse(self.number, refusal);
        self.hand_over(REFUSED.len());
        self.buffer.clear();
        self.buffer.extend_from_slice(REFUSED);
        self.next = Next::Nothing;
    }

    fn hand_over(&mut self, bytes: usize) {
        self.ready = bytes;
        self.empty = 0;
        self.number += 1;
        self.connection.clear_signal(Signal::Expire);
        self.connection.waiting.begin();
        self.held.set(0);
    }

    /// Determine which received bytes may be handed over.
    fn advance(&mut self) -> io::Result<()> {
        match &mut self.next {
            Next::Head(seen) => {
                while self.buffer.starts_with(b"\r\n") {
                    self.buffer.advance(2); // empty lines in front of a request (RFC 9112, 2.2)
                    self.empty += 2;
                    *seen = Seen::default();
                }
                if self.empty > self.bounds.head_bytes {
                    self.refuse(Refusal::head_too_large(self.bounds.head_bytes, self.bounds.fields));
                    return Ok(());
                }
                let mut read = read_head(&self.buffer, seen, &self.bounds);
                if read.is_err() && quote_target(&mut self.buffer) {
                    *seen = Seen::default();
                    read = read_head(&self.buffer, seen, &self.bounds);
                }
                match read {
                    Ok(Some(head)) if head.fields > self.fields => self.next = Next::WideHead,
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
                self.ready = chunks.follow(&self.buffer).map_err(|unfollowed| {
                    self.connection.refuse_body(match unfollowed {
                        Unfollowed::NoChunks => Refusal::malformed(),
                        Unfollowed::TooLong => Refusal::chunks_too_long(MOST_EXTENSIONS, MOST_TRAILERS),
                    });
                    io::Error::new(io::ErrorKind::InvalidData, "no chunks that can be read")
                })?;
                if chunks.has_ended() {
                    self.expect_head();
                }
            }
            Next::WideHead => {}
            Next::Nothing => self.buffer.clear(),
            Next::Frames(frames) => {
                frames.follow(&self.buffer);
                self.ready = self.buffer.len();
            }
        }
        Ok(())
    }

    fn expect_head(&mut self) {
        let is_last = self.connection.ends_after(self.number.saturating_sub(1));
        self.next = if is_last { Next::Nothing } else { Next::Head(Seen::default()) };
    }

    /// Read the available bytes; 0 at the end.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(AT_ONCE / 4);
        // A read that leaves room has read all available bytes: the socket is not read again before more arrives.
        poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.buffer)
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
                return Poll::Ready(Ok(()));
            }
            // hyper drops what it has to send where a client leaves before it is answered.
            let is_answering = this.connection.waiting.answering() > 0 || this.has_unsent;
            if matches!(this.next, Next::WideHead) {
                this.is_replaced = !is_answering;
                this.connection.hold_back(is_answering);
                return if is_answering { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
            if this.connection.has_left() {
                return if is_answering { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
            match this.poll_more(cx) {
                Poll::Ready(Ok(0)) => {
                    this.connection.leave();
                    let in_body = matches!(this.next, Next::Body { .. } | Next::Chunks(_) | Next::Frames(_));
                    return if is_answering && !in_body { Poll::Pending } else { Poll::Ready(Ok(())) };
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    this.note_wait();
                    if this.handle_signals()? {
                        return Poll::Ready(Ok(()));
                    }
                    if this.ready == 0 {
                        match &this.next {
                            Next::Head(_) => this.held.set(this.buffer.len()),
                            Next::Frames(frames) => this.held.set(frames.unfinished()),
                            _ => {}
                        }
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}
