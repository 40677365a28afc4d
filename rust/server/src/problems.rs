//! The door's own errors as responses: the problem bodies (RFC 9457) of `headgate.service.http.problems`.

use std::fmt::Write;

use bytes::Bytes;
use http::StatusCode;

use crate::decide::Reply;

const LONGEST_SHOWN_METHOD: usize = 40;

/// Why a request is refused: its status, and a detail in ASCII for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub detail: String,
}

impl Refusal {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// The bytes are no request of HTTP/1.1.
    pub fn malformed() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "this is no request of HTTP/1.1 that can be read")
    }

    /// A method of HTTP/1.1 that nothing here answers.
    pub fn unknown_method(method: &str) -> Self {
        let shown = &method[..method.len().min(LONGEST_SHOWN_METHOD)]; // it is ASCII: a token
        let detail = format!("the method {shown} is not answered here; methods are in upper case, such as GET");
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub fn head_too_large(head_bytes: usize, fields: usize) -> Self {
        let detail = format!("the head of a request has at most {head_bytes} bytes in {fields} fields");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    }

    pub fn target_too_long(target_bytes: usize) -> Self {
        Self::new(StatusCode::URI_TOO_LONG, format!("a request target has at most {target_bytes} bytes"))
    }

    pub fn body_too_large(body_bytes: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {body_bytes} bytes"))
    }

    /// The extensions or trailers of chunks are too long.
    pub fn chunks_too_long(extensions: usize, trailers: usize) -> Self {
        let detail =
            format!("a body in chunks has at most {extensions} bytes of extensions, and {trailers} of trailers");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    }

    pub fn body_too_slow(body_s: f64) -> Self {
        let detail = format!("a body has to come within {body_s} s, or steadily");
        Self::new(StatusCode::REQUEST_TIMEOUT, detail)
    }

    pub fn head_too_slow(head_s: f64) -> Self {
        let detail = format!("the head of a request has to come within {head_s} s");
        Self::new(StatusCode::REQUEST_TIMEOUT, detail)
    }

    pub fn not_a_path() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "a request target is a path without #, such as /check/default")
    }

    pub fn all_busy() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections are being answered; ask again")
    }

    pub fn no_room_to_wait() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait for the Python service; ask again")
    }

    pub fn gave_way() -> Self {
        let detail = "too many connections are open, and this one has waited longest for its client";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub fn service_unreachable() -> Self {
        let detail = "the Python service behind the front door does not answer";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Its response.
    pub fn reply(&self) -> Reply {
        let mut body = String::with_capacity(128);
        let (status, title) = (self.status.as_u16(), title(self.status));
        // Writing to a String cannot fail.
        let _ =
            write!(body, r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"{}"}}"#, self.detail);
        Reply { status: self.status, content_type: "application/problem+json", fields: vec![], body: Bytes::from(body) }
    }
}

/// The reason phrase of RFC 9110; the `http` crate has older ones for 413 and 414.
fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => "Content Too Large",
        StatusCode::URI_TOO_LONG => "URI Too Long",
        other => other.canonical_reason().unwrap_or("Error"),
    }
}
