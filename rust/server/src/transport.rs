//! The socket of a connection, with or without TLS, from which HTTP is read and to which it is written.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::connection::{Connection, Held};

/// The transport of HTTP.
pub enum Transport {
    Plain(TcpStream),
    /// In a box, so that a bare connection is no larger for it.
    Tls(Box<TlsStream<Counted>>),
}

/// How much of the data to be sent the socket has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    All,
    /// It has taken a part, and has no room for the rest.
    Part,
    Nothing,
    /// The connection is lost.
    Lost,
}

impl AsyncRead for Transport {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => read_tls(stream, cx, buf),
        }
    }
}

fn read_tls(stream: &mut TlsStream<Counted>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    let before = buf.filled().len();
    match ready!(Pin::new(&mut *stream).poll_read(cx, buf)) {
        // HTTP delimits requests and bodies, not the end of the connection: so the end needs no close_notify.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
        Err(error) => Poll::Ready(Err(error)),
        Ok(()) => {
            if buf.filled().len() > before {
                stream.get_mut().0.is_read();
            }
            Poll::Ready(Ok(()))
        }
    }
}

/// Send through TLS; returns also what the socket has taken, as TLS itself buffers a little more.
pub fn send_tls<T>(
    stream: &mut TlsStream<Counted>,
    send: impl FnOnce(Pin<&mut TlsStream<Counted>>) -> Poll<io::Result<T>>,
) -> (Poll<io::Result<T>>, Taken) {
    let before = stream.get_ref().0.sent;
    let poll = send(Pin::new(&mut *stream));
    let (socket, session) = stream.get_ref();
    let taken = match &poll {
        Poll::Ready(Err(_)) => Taken::Lost,
        Poll::Ready(Ok(_)) if !session.wants_write() => Taken::All,
        _ if socket.sent > before => Taken::Part,
        _ => Taken::Nothing,
    };
    (poll, taken)
}

/// A socket under TLS. The received part of an incomplete record counts as held by the connection.
pub struct Counted {
    stream: TcpStream,
    /// Bytes received since TLS last returned data, or since the connection began.
    unread: usize,
    held: Held,
    /// Bytes that the socket has taken.
    sent: u64,
}

impl Counted {
    pub fn new(stream: TcpStream, connection: &Arc<Connection>) -> Self {
        Self { stream, unread: 0, held: Held::of(Arc::clone(connection)), sent: 0 }
    }

    /// Whether bytes were received that TLS has not processed.
    pub fn has_unread(&self) -> bool {
        self.unread > 0
    }

    /// Record that TLS has processed all received bytes.
    pub fn is_read(&mut self) {
        self.unread = 0;
        self.held.set(0);
    }

    fn took(&mut self, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &poll {
            self.sent += *count as u64;
        }
        poll
    }
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.unread += buf.filled().len() - before;
        this.held.set(this.unread);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
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
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
