//! Requests that another server might read differently: refused, or the connection ends; nothing behind them is read.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use headgate_server::bounds::Bounds;
use support::{check, start};

#[test]
fn requests_that_can_be_read_in_two_ways_are_refused_and_the_connection_is_closed() {
    let running = start(100, Bounds::default());
    for request in [
        "POST /check/default HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /check/default HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\ncontent-length: 4\r\ncontent-length: 4\r\n\r\nabcd",
        "POST /seen HTTP/1.1\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
        "GET /seen HTTP/1.1\r\nx: a\r\n folded\r\n\r\n",
        "GET /seen HTTP/1.1\nhost: a\n\n",
        "GET /seen HTTP/1.1\r\nhost: a\n\r\n",
        "GET /seen HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "GET /seen HTTP/1.1\r\nx: a\rb\r\n\r\n",
        "GET /seen HTTP/1.1\r\nx: a\0b\r\n\r\n",
        "get /seen HTTP/1.1\r\n\r\n",
        "FOO /seen HTTP/1.1\r\n\r\n",
        "CONNECT a:80 HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\n\r\n",
        "POST /seen HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        "\0\0\0\0\r\n\r\n",
    ] {
        let mut connection = running.connect();
        connection.send(request).send(check("smuggled"));
        let response = connection.response();
        assert_eq!(response.status, 400, "{request:?}");
        assert_eq!(response.field("content-type"), Some("application/problem+json"), "{request:?}");
        assert!(response.text().starts_with(r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":""#));
        assert!(connection.has_ended(), "{request:?}");
    }
    assert_eq!(running.behind.requests(), 0);
    assert_eq!(running.connect().request(check("smuggled")).field("x-remaining"), Some("99"));
}

/// Malformed bodies in chunks, each followed by a part of a request that must never be answered.
const NO_CHUNKS: [&str; 22] = [
    "0x3\r\nabc\r\n0\r\n\r\n",
    "+3\r\nabc\r\n0\r\n\r\n",
    "-1\r\nabc\r\n0\r\n\r\n",
    " 3\r\nabc\r\n0\r\n\r\n",
    "3 \r\nabc\r\n0\r\n\r\n",
    "3\t\r\nabc\r\n0\r\n\r\n",
    "g\r\nabc\r\n0\r\n\r\n",
    "3,3\r\nabc\r\n0\r\n\r\n",
    "\r\nabc\r\n0\r\n\r\n",
    ";a\r\nabc\r\n0\r\n\r\n",
    "0000000000000003\r\nabc\r\n0\r\n\r\n",
    "ffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "10000000000000003\r\nabc\r\n0\r\n\r\n",
    "3\nabc\r\n0\r\n\r\n",
    "3\r\r\nabc\r\n0\r\n\r\n",
    "3;a\nb\r\nabc\r\n0\r\n\r\n",
    "3\r\nabc\n0\r\n\r\n",
    "3\r\nabcd\r\n0\r\n\r\n",
    "3\r\nabc0\r\n\r\n",
    "3\r\nabc\r\n0\n\n",
    "3\r\nabc\r\n0\r\n\n",
    "3\r\nabc\r\n0\r\na: b\r\n folded\r\n\r\n",
];

#[test]
fn a_body_of_bad_chunks_is_refused_and_nothing_behind_it_is_read() {
    let running = start(1000, Bounds::default());
    for chunks in NO_CHUNKS {
        for path in ["/v1/check", "/v1/commit", "/seen"] {
            let mut connection = running.connect();
            connection.send(format!("POST {path} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"));
            connection.send(check("smuggled"));
            let refused = connection.response();
            assert_eq!((refused.status, refused.field("connection")), (400, Some("close")), "{chunks:?}");
            assert!(connection.has_ended(), "{chunks:?}");
        }
        // Where the body is not wanted, the request may be answered before; then the connection ends.
        let mut connection = running.connect();
        connection.send(format!("GET /check/default HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"));
        connection.send(check("smuggled"));
        while let Some(response) = connection.try_response() {
            assert!(response.status == 400 || response.field("x-remaining").is_some(), "{chunks:?}");
        }
    }
    assert_eq!(running.behind.requests(), 0);
    assert_eq!(running.connect().request(check("smuggled")).field("x-remaining"), Some("999"));
}

#[test]
fn chunks_with_long_extensions_or_trailers_are_refused() {
    let running = start(1000, Bounds::default());
    let long = "x".repeat(100_000);
    for chunks in [format!("1;{long}"), format!("1\r\na\r\n0\r\na: {long}")] {
        for path in ["/v1/check", "/seen"] {
            let mut connection = running.connect();
            connection.send(format!("POST {path} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"));
            let refused = connection.response();
            assert_eq!((refused.status, refused.field("connection")), (431, Some("close")));
            let detail = "a body in chunks has at most 4096 bytes of extensions, and 8192 of trailers";
            assert!(refused.text().contains(detail), "{}", refused.text());
            assert!(connection.has_ended());
        }
    }
}

#[test]
fn a_request_in_the_body_of_another_is_never_one_of_its_own() {
    let running = start(1000, Bounds::default());
    let hidden = check("hidden");
    for body in [
        format!("content-length: {}\r\n\r\n{hidden}", hidden.len()),
        format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len()),
        format!("transfer-encoding: chunked\r\n\r\n1;{}\r\na\r\n0\r\n\r\n", "x".repeat(4000)),
        "transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 5\r\nhost: b\r\n\r\n".to_owned(),
    ] {
        for line in ["POST /v1/check", "POST /seen", "GET /check/default", "PUT /seen", "GET /healthz"] {
            let mut connection = running.connect();
            connection.send(format!("{line} HTTP/1.1\r\n{body}")).send("GET /healthz HTTP/1.1\r\n\r\n");
            assert_eq!(connection.response().status, 200, "{line}");
            assert_eq!(connection.response().text(), "ok\n", "{line}");
        }
    }
    assert_eq!(running.connect().request(check("hidden")).field("x-remaining"), Some("999"));
}
