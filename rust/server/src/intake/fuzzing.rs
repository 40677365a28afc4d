//! Properties that must hold for any bytes that a client sends.
//!
//! The fuzzers of `rust/fuzz` call these functions, which panic where a property does not hold; so does a bounded run
//! below.

#![allow(clippy::expect_used, clippy::panic)] // a failed property panics

#[cfg(test)]
#[path = "../../../fuzz/src/bounded.rs"]
mod bounded;

use std::cell::{LazyCell, RefCell};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::bounds::Bounds;
use crate::connection::Connection;
use crate::intake::Intake;
use crate::intake::chunks::Chunks;
use crate::intake::frames::{Frames, PREFACE};
use crate::intake::head::{Framing, Head, Seen, read_head};
use crate::intake::read_by_hyper::read_by_hyper;
use crate::room::Room;
use crate::transport::Transport;

/// Bounds that short inputs reach.
fn tight() -> Bounds {
    Bounds { head_bytes: 300, target_bytes: 40, fields: 12, ..Bounds::default() }
}

/// Sizes of the pieces in which an input arrives: at once, byte by byte, and as its first byte says.
fn sizes(sent: &[u8]) -> [usize; 3] {
    [sent.len().max(1), 1, 2 + usize::from(sent.first().copied().unwrap_or_default()) % 29]
}

/// A head is the same however it is cut, and all of it is one head.
pub fn head(sent: &[u8]) {
    for bounds in [tight(), Bounds::default()] {
        let at_once = read_head(sent, &mut Seen::default(), &bounds);
        for size in sizes(sent) {
            let mut seen = Seen::default();
            let ends = (1..=sent.len().div_ceil(size)).map(|count| sent.len().min(count * size));
            let mut read = ends.map(|end| read_head(&sent[..end], &mut seen, &bounds));
            match (&at_once, read.find(|read| !matches!(read, Ok(None))).unwrap_or(Ok(None))) {
                (Ok(at_once), Ok(piecewise)) => assert_eq!(*at_once, piecewise, "in pieces of {size}"),
                (Err(_), Err(_)) => {}
                (_, piecewise) => panic!("{:?} in pieces of {size}, {:?} at once", piecewise.is_ok(), at_once.is_ok()),
            }
        }
        let Ok(Some(head)) = at_once else {
            continue;
        };
        let own = &sent[..head.bytes];
        assert!(own.len() <= bounds.head_bytes && own.ends_with(b"\r\n\r\n"));
        assert_eq!(own.windows(4).position(|end| end == b"\r\n\r\n"), Some(own.len() - 4), "an empty line in a head");
        let breaks = own.iter().zip(&own[1..]).all(|(first, second)| (*first == b'\r') == (*second == b'\n'));
        assert!(breaks && !own.contains(&0), "a line that another server may end elsewhere");
        let alone = read_head(own, &mut Seen::default(), &bounds).ok().flatten();
        assert_eq!(alone, Some(head), "what follows a head is part of it");
    }
}

/// A body in chunks is the same however it is cut; hyper reads the same bytes, and the next request after them.
pub fn chunks(sent: &[u8]) {
    let followed = sizes(sent).map(|size| {
        let mut chunks = Chunks::new();
        let taken = sent.chunks(size).try_fold(0, |sum, piece| chunks.follow(piece).map(|taken| sum + taken));
        taken.map(|taken| (taken, chunks.has_ended()))
    });
    assert!(followed.iter().all(|other| *other == followed[0]), "{followed:?}");
    let Ok((taken, has_ended)) = followed[0] else {
        return;
    };
    assert!(has_ended || taken == sent.len());
    let head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
    let handed = [head, &sent[..taken], b"GET /next HTTP/1.1\r\n\r\n"].concat();
    let handed = if has_ended { handed } else { handed[..head.len() + taken].to_vec() };
    let read = read_by_hyper(&handed, &Bounds::default());
    let (body, has_trailers) = data_of(&sent[..taken]);
    assert_eq!(read[0].path(), "/");
    assert!(body.starts_with(&read[0].body), "another body");
    if has_ended && read[0].ended {
        assert_eq!((&read[0].body, read.len()), (&body, 2));
        assert_eq!(read[1].path(), "/next");
    } else {
        assert!(read.len() == 1 && !read[0].ended, "hyper sees an end where there is none");
        assert!(!has_ended || has_trailers, "hyper does not read what ends");
    }
}

/// The data of chunks that were followed, and whether trailers follow: hyper does not accept all of those.
fn data_of(mut chunks: &[u8]) -> (Vec<u8>, bool) {
    let mut data = Vec::new();
    while let Some(end) = chunks.iter().position(|byte| *byte == b'\n') {
        let digits = chunks.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = usize::from_str_radix(&String::from_utf8_lossy(&chunks[..digits]), 16).expect("a size");
        let rest = &chunks[end + 1..];
        if size == 0 {
            return (data, rest != b"\r\n");
        }
        data.extend_from_slice(&rest[..size.min(rest.len())]);
        chunks = rest.get(size.saturating_add(2)..).unwrap_or_default();
    }
    (data, false)
}

/// Frames end where their heads say, however they are cut.
pub fn frames(sent: &[u8]) {
    let expected = expected_of_frames(sent.get(PREFACE..).unwrap_or_default());
    for size in sizes(sent) {
        let mut frames = Frames::after(PREFACE);
        sent.chunks(size).for_each(|piece| frames.follow(piece));
        assert_eq!((frames.unfinished(), frames.in_fields()), expected, "in pieces of {size}");
    }
}

/// How many bytes are unfinished, and whether fields are, read from whole frames.
fn expected_of_frames(mut sent: &[u8]) -> (usize, bool) {
    let (mut fields, mut in_fields) = (0, false);
    while let Some(([high, middle, low, kind, flags, ..], payload)) = sent.split_at_checked(9) {
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        let is_of_fields = matches!(kind, 1 | 9);
        let Some(rest) = payload.get(length..) else {
            return (fields + sent.len(), in_fields || is_of_fields);
        };
        in_fields = is_of_fields && flags & 4 == 0;
        fields = if in_fields { fields + 9 + length } else { 0 };
        sent = rest;
    }
    (fields + sent.len(), in_fields)
}

/// The requests of a connection are the same however they are cut, and hyper reads exactly those.
pub fn requests(sent: &[u8]) {
    let bounds = Arc::new(tight());
    let [at_once, piecewise @ ..] = sizes(sent).map(|size| hand_over(sent.chunks(size), &bounds));
    for other in piecewise {
        assert_eq!((other.refused, other.broken), (at_once.refused, at_once.broken));
        assert!(other.heads().eq(at_once.heads()), "other heads");
        // Where a body breaks off, more or less of it has been handed over.
        assert!(if at_once.broken { other.bytes.starts_with(&at_once.bytes) } else { other.bytes == at_once.bytes });
    }
    let read = read_by_hyper(&at_once.bytes, &bounds);
    assert!(read.len() <= at_once.heads.len(), "hyper reads a request in another");
    for (index, read) in read.iter().enumerate() {
        let own = &at_once.heads[index];
        assert!(read.is(&at_once.bytes[own.clone()]), "request {index} is another");
        let Ok(Some(Head { body, .. })) = read_head(&at_once.bytes[own.clone()], &mut Seen::default(), &bounds) else {
            panic!("request {index} was handed over without a head");
        };
        let end = at_once.heads.get(index + 1).map_or(at_once.bytes.len(), |next| next.start);
        let framed = &at_once.bytes[own.end..end];
        let ((data, has_trailers), has_ended) = match body {
            Framing::Length(length) => ((framed.to_vec(), false), length == framed.len() as u64),
            Framing::Chunks => {
                let mut chunks = Chunks::new();
                assert_eq!(chunks.follow(framed), Ok(framed.len()));
                (data_of(framed), chunks.has_ended())
            }
        };
        assert!(has_ended || index + 1 == at_once.heads.len(), "a request begins in the body of another");
        if read.ended {
            assert!(has_ended && read.body == data, "request {index} has another body");
        } else {
            assert!(!has_ended || has_trailers, "hyper does not read what ends");
        }
    }
    if read.iter().all(|read| read.ended) {
        assert_eq!(read.len(), at_once.heads.len(), "hyper has not read all");
    }
}

/// What the intake hands over from a connection.
#[derive(Default)]
struct HandedOver {
    bytes: Vec<u8>,
    heads: Vec<Range<usize>>,
    /// The number of the request that was refused.
    refused: Option<u64>,
    /// A body ended without an end.
    broken: bool,
}

impl HandedOver {
    fn heads(&self) -> impl Iterator<Item = &[u8]> {
        self.heads.iter().map(|head| &self.bytes[head.clone()])
    }
}

/// What the intake hands over for these pieces: as `poll_read` does, except for the source of the bytes.
fn hand_over<'a>(pieces: impl Iterator<Item = &'a [u8]>, bounds: &Arc<Bounds>) -> HandedOver {
    let client = IpAddr::from(Ipv4Addr::LOCALHOST);
    let connection = Arc::new(Connection::new(0, client, Arc::new(Room::new()), Duration::from_secs(30)));
    let stream = Transport::Plain(idle_stream());
    let mut intake = Intake::http1(stream, BytesMut::new(), Arc::clone(&connection), Arc::clone(bounds));
    let mut over = HandedOver::default();
    'pieces: for piece in pieces {
        intake.buffer.extend_from_slice(piece);
        loop {
            let number = intake.number;
            if intake.advance().is_err() {
                over.broken = true;
                break 'pieces;
            }
            if intake.ready == 0 {
                break;
            }
            let start = over.bytes.len();
            over.bytes.extend_from_slice(&intake.buffer[..intake.ready]);
            if intake.number > number {
                over.heads.push(start..over.bytes.len());
                over.refused = over.refused.or(connection.refusal_of(number).map(|_| number));
            }
            intake.buffer.advance(intake.ready);
            intake.ready = 0;
        }
    }
    if let Transport::Plain(stream) = intake.stream {
        IDLE.set(Some(stream));
    }
    over
}

thread_local! {
    static LISTENER: LazyCell<(Runtime, TcpListener)> = LazyCell::new(|| {
        let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
        (runtime, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener"))
    });
    /// A connection that nothing is read from, for one intake after the other.
    static IDLE: RefCell<Option<TcpStream>> = const { RefCell::new(None) };
}

fn idle_stream() -> TcpStream {
    IDLE.take().unwrap_or_else(|| {
        LISTENER.with(|listening| {
            let (runtime, listener) = &**listening;
            let _entered = runtime.enter();
            let address = listener.local_addr().expect("an address");
            let stream = std::net::TcpStream::connect(address).expect("a connection");
            stream.set_nonblocking(true).expect("a non-blocking socket");
            TcpStream::from_std(stream).expect("a connection")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_head_is_the_same_however_it_is_cut() {
        bounded::each("head", 20_000, head);
    }

    #[test]
    fn hyper_reads_any_chunks_that_are_followed() {
        bounded::each("chunks", 20_000, chunks);
    }

    #[test]
    fn any_frames_end_where_their_heads_say() {
        bounded::each("frames", 20_000, frames);
    }

    #[test]
    fn hyper_reads_any_requests_that_are_handed_over() {
        bounded::each("requests", 20_000, requests);
    }
}
