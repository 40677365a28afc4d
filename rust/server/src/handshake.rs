//! The TLS handshake, bounded like the head of a request in time and size, without effect on other clients.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::bounds::Bounds;
use crate::connection::{Connection, Signal};
use crate::transport::{Counted, Transport};
use crate::waiting::{LINGER, Waits};

/// The most bytes that TLS buffers before the socket takes them.
const MOST_UNSENT: usize = 64 << 10;

/// How a handshake has ended.
pub enum Handshake {
    Done(Transport),
    /// The client has sent something else, or is not admitted; it got an alert.
    Failed,
    /// The client has left, took too long or had to give way.
    Ended,
}

/// Perform the TLS handshake with a client that has just connected.
pub async fn perform_handshake(
    config: Arc<ServerConfig>,
    stream: TcpStream,
    connection: &Arc<Connection>,
    bounds: &Bounds,
) -> Handshake {
    connection.waiting.expect(Waits::Request, Some(bounds.head));
    let socket = Counted::new(stream, connection);
    let mut accepting = TlsAcceptor::from(config)
        .accept_with(socket, |session| session.set_buffer_limit(Some(MOST_UNSENT)))
        .into_fallible();
    loop {
        let woken = pin!(connection.woken.notified());
        let done = either(Pin::new(&mut accepting), woken).await;
        match done {
            Some(Ok(mut stream)) => {
                stream.get_mut().0.is_read();
                // While the door closes, a request may already follow the handshake: the signal is cleared here, and
                // `accepting::finish` sends it again.
                connection.clear_signal(Signal::Close);
                return Handshake::Done(Transport::Tls(Box::new(stream)));
            }
            Some(Err((_, socket))) if !socket.has_unread() => return Handshake::Ended,
            Some(Err((_, socket))) => {
                linger(socket, connection).await;
                return Handshake::Failed;
            }
            None if ends(connection) => return Handshake::Ended,
            None => {}
        }
    }
}

/// Whether to give up a handshake; one that has begun is finished before the door closes.
fn ends(connection: &Connection) -> bool {
    let is_over = connection.has(Signal::Expire) || connection.has(Signal::GiveWay) || connection.has(Signal::Abort);
    is_over || (connection.has(Signal::Close) && connection.held() == 0)
}

/// Shut down the sending side, and discard what still arrives, so that the client reads the alert.
async fn linger(mut socket: Counted, connection: &Connection) {
    connection.waiting.expect(Waits::Leaving, Some(LINGER));
    let mut discarded = [0; 1024];
    let mut leaving = pin!(poll_fn(|cx| {
        if ready!(Pin::new(&mut socket).poll_shutdown(cx)).is_err() {
            return Poll::Ready(());
        }
        loop {
            let mut buffer = ReadBuf::new(&mut discarded);
            let read = ready!(Pin::new(&mut socket).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
            socket.is_read();
        }
    }));
    while !connection.has(Signal::Abort) && !connection.has(Signal::GiveWay) {
        if either(leaving.as_mut(), pin!(connection.woken.notified())).await.is_some() {
            return;
        }
    }
}

/// The output of the first future, or None where the second is ready before it.
async fn either<T>(mut one: Pin<&mut impl Future<Output = T>>, mut other: Pin<&mut impl Future>) -> Option<T> {
    poll_fn(|cx: &mut Context<'_>| match one.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => other.as_mut().poll(cx).map(|_| None),
    })
    .await
}
