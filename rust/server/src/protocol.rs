//! Detecting the protocol of a new connection: HTTP/1, or HTTP/2 by prior knowledge (RFC 9113, 3.3).

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use tokio_util::io::poll_read_buf;

use crate::bounds::Bounds;
use crate::connection::{Connection, Signal};
use crate::transport::Transport;
use crate::waiting::Waits;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol of a connection.
pub enum Protocol {
    Http1,
    Http2,
}

/// Read the first bytes of a connection, until they determine its protocol; None where it ended before.
pub async fn protocol_of(
    stream: &mut Transport,
    buffer: &mut BytesMut,
    connection: &Arc<Connection>,
    bounds: &Bounds,
) -> io::Result<Option<Protocol>> {
    connection.waiting.expect(Waits::Request, Some(bounds.head));
    loop {
        let mut woken = pin!(connection.woken.notified());
        let read = poll_fn(|cx| match poll_read_buf(Pin::new(&mut *stream), cx, buffer) {
            Poll::Ready(read) => Poll::Ready(Some(read)),
            Poll::Pending if ends(connection, buffer) => Poll::Ready(None),
            Poll::Pending => woken.as_mut().poll(cx).map(|()| None),
        });
        match read.await.transpose()? {
            Some(0) => return Ok(None),
            Some(_) => {
                let count = buffer.len().min(PREFACE.len());
                if buffer[..count] != PREFACE[..count] {
                    return Ok(Some(Protocol::Http1));
                }
                if count == PREFACE.len() {
                    return Ok(Some(Protocol::Http2));
                }
            }
            None if !ends(connection, buffer) => {}
            None if buffer.is_empty() || connection.has(Signal::Abort) => return Ok(None),
            None => return Ok(Some(Protocol::Http1)), // which sends the reason
        }
    }
}

/// Whether to stop waiting for further bytes.
fn ends(connection: &Connection, buffer: &BytesMut) -> bool {
    let is_over = connection.has(Signal::Expire) || connection.has(Signal::GiveWay) || connection.has(Signal::Abort);
    is_over || (connection.has(Signal::Close) && buffer.is_empty())
}
