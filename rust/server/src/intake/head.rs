//! Reading the head of a request: whether it is unambiguous, and how its body is framed.
//!
//! hyper reads the head again. What hyper accepts and another server might read as another request is refused before:
//! a length beside chunks, two lengths, folded fields, lines that end in LF alone, methods that are none.

use std::mem::MaybeUninit;

use http::StatusCode;
use memchr::memchr;

use crate::bounds::Bounds;
use crate::intake::methods::is_known;
use crate::intake::target::{is_accepted, names_a_path};
use crate::problems::Refusal;

/// What is beside the target in the longest first line: `UNSUBSCRIBE  HTTP/1.1` and CR.
const BESIDE_A_TARGET: usize = 22;

/// How much of a connection a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The bytes of the head, with the empty line.
    pub bytes: usize,
    /// How many fields it has.
    pub fields: usize,
    pub body: Framing,
    /// Whether no further request is read: the client closes, or what follows may be of another protocol.
    pub is_last: bool,
}

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunks,
}

/// How far the received bytes were scanned: a head that arrives byte by byte is not scanned anew each time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    line: usize,
    bytes: usize,
}

/// The head at the front of the received bytes; None where it is incomplete.
pub fn read_head(sent: &[u8], seen: &mut Seen, bounds: &Bounds) -> Result<Option<Head>, Refusal> {
    let Some(bytes) = whole_lines(sent, seen, bounds)? else {
        let is_too_large = sent.len() > bounds.head_bytes;
        return if is_too_large { Err(Refusal::head_too_large(bounds.head_bytes, bounds.fields)) } else { Ok(None) };
    };
    let (mut few, mut many) = ([const { MaybeUninit::uninit() }; 32], vec![]);
    let mut request = httparse::Request::new(&mut []);
    let mut parsed = request.parse_with_uninit_headers(&sent[..bytes], &mut few);
    if parsed == Err(httparse::Error::TooManyHeaders) {
        many.resize(bounds.fields + 1, httparse::EMPTY_HEADER);
        request = httparse::Request::new(&mut many);
        parsed = request.parse(&sent[..bytes]);
    }
    match parsed {
        Ok(httparse::Status::Complete(count)) if count == bytes => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::head_too_large(bounds.head_bytes, bounds.fields)),
        _ => return Err(Refusal::malformed()),
    }
    let target = request.path.unwrap_or_default();
    if target.len() > bounds.target_bytes {
        return Err(Refusal::target_too_long(bounds.target_bytes));
    }
    if bytes > bounds.head_bytes || request.headers.len() > bounds.fields {
        return Err(Refusal::head_too_large(bounds.head_bytes, bounds.fields));
    }
    let method = request.method.unwrap_or_default();
    if !is_known(method) {
        return Err(Refusal::unknown_method(method));
    }
    if !is_accepted(target) {
        return Err(Refusal::malformed());
    }
    let (body, is_last) = framing(request.headers, request.version == Some(1))?;
    if !names_a_path(target) {
        return Err(Refusal::not_a_path());
    }
    Ok(Some(Head { bytes, fields: request.headers.len(), body, is_last }))
}

/// The bytes up to the empty line; None where that has not arrived. Every line must end in CR LF.
fn whole_lines(sent: &[u8], seen: &mut Seen, bounds: &Bounds) -> Result<Option<usize>, Refusal> {
    let longest_line = bounds.target_bytes + BESIDE_A_TARGET;
    while let Some(length) = memchr(b'\n', &sent[seen.bytes..]) {
        let end = seen.bytes + length;
        if end == seen.line || sent[end - 1] != b'\r' {
            return Err(Refusal::malformed());
        }
        if end == seen.line + 1 {
            return Ok(Some(end + 1));
        }
        if seen.line == 0 && end > longest_line {
            break;
        }
        seen.line = end + 1;
        seen.bytes = end + 1;
    }
    seen.bytes = sent.len();
    let is_too_long = seen.line == 0 && sent.len() > longest_line;
    if is_too_long { Err(Refusal::target_too_long(bounds.target_bytes)) } else { Ok(None) }
}

/// How the body is framed, and whether the request is the last one.
fn framing(fields: &[httparse::Header<'_>], is_http_11: bool) -> Result<(Framing, bool), Refusal> {
    let bad = |detail: &str| Err(Refusal::new(StatusCode::BAD_REQUEST, detail));
    let (mut length, mut is_chunked, mut hosts) = (None, false, 0);
    let (mut closes, mut stays, mut upgrades, mut to_what) = (false, is_http_11, false, false);
    for field in fields {
        if field.name.eq_ignore_ascii_case("content-length") {
            if length.is_some() {
                return Err(Refusal::malformed());
            }
            length = Some(digits(field.value).ok_or_else(Refusal::malformed)?);
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            if is_chunked || !field.value.eq_ignore_ascii_case(b"chunked") {
                return bad("a Transfer-Encoding is understood where it is chunked, and once");
            }
            is_chunked = true;
        } else if field.name.eq_ignore_ascii_case("host") {
            hosts += 1;
        } else if field.name.eq_ignore_ascii_case("upgrade") {
            to_what |= !field.value.is_empty();
        } else if field.name.eq_ignore_ascii_case("connection") {
            for option in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                closes |= option.eq_ignore_ascii_case(b"close");
                stays |= option.eq_ignore_ascii_case(b"keep-alive");
                upgrades |= option.eq_ignore_ascii_case(b"upgrade");
            }
        }
    }
    if is_chunked && length.is_some() {
        return Err(Refusal::malformed());
    }
    if is_chunked && !is_http_11 {
        return bad("HTTP/1.0 has no Transfer-Encoding; use HTTP/1.1");
    }
    if hosts > 1 {
        return bad("the field Host is given twice");
    }
    let body = if is_chunked { Framing::Chunks } else { Framing::Length(length.unwrap_or(0)) };
    Ok((body, closes || !stays || (upgrades && to_what)))
}

/// A Content-Length: digits, and nothing else.
fn digits(value: &[u8]) -> Option<u64> {
    let is_number = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
#[allow(clippy::expect_used)] // a test says so when it fails
mod tests {
    use super::*;

    fn read(sent: &str) -> Result<Option<Head>, u16> {
        read_head(sent.as_bytes(), &mut Seen::default(), &Bounds::default()).map_err(|refusal| refusal.status.as_u16())
    }

    fn body(sent: &str) -> Result<Option<Framing>, u16> {
        read(sent).map(|head| head.map(|head| head.body))
    }

    #[test]
    fn a_head_says_how_its_body_is_framed() {
        assert_eq!(body("GET / HTTP/1.1\r\n\r\n"), Ok(Some(Framing::Length(0))));
        assert_eq!(body("POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\nhello"), Ok(Some(Framing::Length(12))));
        assert_eq!(body("POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n"), Ok(Some(Framing::Chunks)));
        assert_eq!(read("GET / HTTP/1.1\r\nhost: a\r\n\r"), Ok(None));
    }

    #[test]
    fn a_request_is_the_last_one_where_its_client_says_so() {
        for (version, fields, is_last) in [
            ("1.1", "", false),
            ("1.1", "connection: close\r\n", true),
            ("1.1", "connection: te ,\tClose\r\n", true),
            ("1.1", "upgrade: h2c\r\n", false),
            ("1.1", "upgrade:\r\nconnection: upgrade\r\n", false),
            ("1.1", "upgrade: h2c\r\nconnection: te, Upgrade\r\n", true),
            ("1.1", "connection: keep-alive\r\nconnection: close\r\n", true),
            ("1.0", "", true),
            ("1.0", "connection: Keep-Alive\r\n", false),
        ] {
            let head = read(&format!("GET / HTTP/{version}\r\n{fields}\r\n"));
            assert_eq!(head.map(|head| head.map(|head| head.is_last)), Ok(Some(is_last)), "{version} {fields:?}");
        }
    }

    #[test]
    fn a_head_that_can_be_read_in_two_ways_is_refused() {
        for fields in [
            "content-length: 3\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 3\r\n",
            "content-length: 3\r\ncontent-length: 3\r\n",
            "content-length: 3\r\ncontent-length: 4\r\n",
            "content-length: 3, 3\r\n",
            "content-length: +3\r\n",
            "content-length: 0x3\r\n",
            "content-length:\r\n",
            "content-length: 9999999999999999999\r\n",
            "transfer-encoding: chunked, chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: identity\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: \x0bchunked\r\n",
            "x: a\r\n folded\r\n",
            "x: a\r\n\tfolded\r\n",
            "x: a\nb: c\r\n",
            "x : a\r\n",
            ": a\r\n",
            "x\r\n",
            "x: a\0b\r\n",
            "x: a\rb\r\n",
            "host: a\r\nhost: b\r\n",
        ] {
            assert_eq!(read(&format!("POST / HTTP/1.1\r\n{fields}\r\n")), Err(400), "{fields:?}");
        }
    }

    #[test]
    fn only_requests_of_http_1_that_name_a_path_are_read() {
        for line in [
            "get / HTTP/1.1",
            "FOO / HTTP/1.1",
            "GET / HTTP/2.0",
            "GET / HTTP/1.2",
            "GET /",
            "GET  / HTTP/1.1",
            " GET / HTTP/1.1",
            "CONNECT a:1 HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "GET a HTTP/1.1",
            "GET /\u{7f} HTTP/1.1",
        ] {
            assert_eq!(read(&format!("{line}\r\n\r\n")), Err(400), "{line:?}");
        }
        assert!(matches!(read("M-SEARCH /check/default HTTP/1.1\r\n\r\n"), Ok(Some(_))));
        assert!(matches!(read("GET http://a/check/default HTTP/1.0\r\n\r\n"), Ok(Some(_))));
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_the_same() {
        let target = "a".repeat(Bounds::default().target_bytes - 1); // the longest
        let sent = format!("UNSUBSCRIBE /{target} HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello").into_bytes();
        let mut seen = Seen::default();
        let whole = (1..=sent.len()).find_map(|count| {
            read_head(&sent[..count], &mut seen, &Bounds::default()).expect("a head").map(|head| (count, head))
        });
        let head = Head { bytes: sent.len() - 5, fields: 1, body: Framing::Length(5), is_last: false };
        assert_eq!(whole, Some((sent.len() - 5, head)));
    }

    #[test]
    fn a_head_has_bounds_before_it_has_come_whole() {
        let target = "a".repeat(17 << 10);
        assert_eq!(read(&format!("GET /{target}")), Err(414));
        assert_eq!(read(&format!("GET /{target} HTTP/1.1\r\n\r\n")), Err(414));
        let field = format!("x: {}\r\n", "a".repeat(60 << 10));
        assert_eq!(read(&format!("GET / HTTP/1.1\r\n{field}")), Ok(None));
        assert_eq!(read(&format!("GET / HTTP/1.1\r\n{field}{field}")), Err(431));
        assert!(matches!(read(&format!("GET / HTTP/1.1\r\n{}\r\n", "x: a\r\n".repeat(256))), Ok(Some(_))));
        assert_eq!(read(&format!("GET / HTTP/1.1\r\n{}\r\n", "x: a\r\n".repeat(257))), Err(431));
        assert_eq!(read(&format!("GET / HTTP/1.1\r\n{}\r\n", "x: a\r\n".repeat(3000))), Err(431));
    }
}
