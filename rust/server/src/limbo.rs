//! A connection of which it is not known yet whether it speaks HTTP/1 or HTTP/2 (by prior knowledge; RFC 9113, 3.3).

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::net::TcpStream;

use crate::bounds::Bounds;
use crate::connection::{Connection, Wish};
use crate::waiting::Waits;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection speaks.
pub enum Protocol {
    Http1,
    Http2,
}

/// Read the first bytes of a connection, until they say what it speaks; None where it ended before.
pub async fn protocol_of(
    stream: &TcpStream,
    buffer: &mut BytesMut,
    connection: &Arc<Connection>,
    bounds: &Bounds,
) -> io::Result<Option<Protocol>> {
    connection.waiting.expect(Waits::Request, Some(bounds.head));
    loop {
        match stream.try_read_buf(buffer) {
            Ok(0) => return Ok(None),
            Ok(_) => {
                let count = buffer.len().min(PREFACE.len());
                if buffer[..count] != PREFACE[..count] {
                    return Ok(Some(Protocol::Http1));
                }
                if count == PREFACE.len() {
                    return Ok(Some(Protocol::Http2));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let is_over = connection.has(Wish::Expire) || connection.has(Wish::GiveWay);
                if is_over && !buffer.is_empty() {
                    return Ok(Some(Protocol::Http1)); // which says why
                }
                if is_over || connection.has(Wish::Abort) || (connection.has(Wish::Close) && buffer.is_empty()) {
                    return Ok(None);
                }
                tokio::select! {
                    ready = stream.readable() => ready?,
                    () = connection.woken.notified() => {}
                }
            }
            Err(error) => return Err(error),
        }
    }
}
