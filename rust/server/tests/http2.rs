//! HTTP/2 without TLS, by prior knowledge: the same answers, and floods of frames that are bounded.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use headgate_server::bounds::Bounds;
use http::{Request, StatusCode};
use support::frames::{CONTINUATION, HEADERS, PING, RST_STREAM, SETTINGS, complete_request, frame, hello, request};
use support::{Client, check, start};

fn in_http2<T>(address: SocketAddr, scenario: impl AsyncFnOnce(SendRequest<Bytes>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        tokio::time::timeout(support::WAIT, scenario(client)).await.expect("an answer in time")
    })
}

async fn answer(client: &mut SendRequest<Bytes>, request: Request<()>, body: &'static [u8]) -> (StatusCode, String) {
    let (response, mut stream) = client.send_request(request, body.is_empty()).expect("a stream");
    if !body.is_empty() {
        stream.send_data(Bytes::from_static(body), true).expect("a body");
    }
    let response = response.await.expect("a response");
    let status = response.status();
    let mut body = response.into_body();
    let mut text = vec![];
    while let Some(data) = body.data().await {
        let data = data.expect("data");
        body.flow_control().release_capacity(data.len()).expect("capacity");
        text.extend_from_slice(&data);
    }
    (status, String::from_utf8(text).expect("text"))
}

#[test]
fn checks_and_what_is_passed_on_are_answered_on_one_connection() {
    let running = start(1, Bounds::default());
    in_http2(running.address, async |mut client| {
        let check =
            || Request::get("http://a/check/default").header("x-forwarded-for", "a").body(()).expect("a request");
        assert_eq!(answer(&mut client, check(), b"").await.0, 200);
        assert_eq!(answer(&mut client, check(), b"").await, (StatusCode::TOO_MANY_REQUESTS, "{\"status\":429}".into()));
        let described = Request::post("http://a/v1/check").body(()).expect("a request");
        assert_eq!(answer(&mut client, described, b"{\"request\":{}").await.0, 200);
        let passed = Request::post("http://a:1/seen?b=c").header("cookie", "d=e").header("cookie", "f=g");
        let (_, text) = answer(&mut client, passed.body(()).expect("a request"), b"hello").await;
        assert!(text.starts_with("POST /seen?b=c\n") && text.ends_with("\nhello"), "{text}");
        assert!(text.contains("\nhost: a:1\n") && text.contains("\ncookie: d=e; f=g\n"), "{text}");
        let tunnel = Request::connect("a:80").body(()).expect("a request");
        assert_eq!(answer(&mut client, tunnel, b"").await.0, 400);
        let large = Request::get("http://a/large?5000000").body(()).expect("a request");
        assert_eq!(answer(&mut client, large, b"").await.1.len(), 5_000_000);
        let long = format!("http://a/{}", "a".repeat(17 << 10));
        assert_eq!(answer(&mut client, Request::get(long).body(()).expect("a request"), b"").await.0, 414);
    });
    assert_eq!(running.count("none", 400), 1);
}

#[test]
fn a_client_that_leaves_a_stream_unread_is_cut_off() {
    let running = start(9, Bounds { take: Duration::from_millis(500), ..Bounds::default() });
    in_http2(running.address, async |mut client| {
        let large = Request::get("http://a/large?50000000").body(()).expect("a request");
        let (response, _) = client.send_request(large, true).expect("a stream");
        let mut body = response.await.expect("a response").into_body();
        let end = loop {
            match body.data().await {
                Some(Ok(_)) => {} // its capacity is not released: the window stays closed
                end => break end,
            }
        };
        assert!(end.is_some_and(|end| end.is_err()));
    });
    running.wait_for_open(0);
    assert_eq!(running.connect().request(check("a")).status, 200);
}

/// Send frames until the door ends the connection; then it still answers others.
fn flood(first: &[u8], mut frames: impl FnMut(u32) -> Vec<u8>) {
    let running = start(9, Bounds::default());
    let mut client = running.connect();
    client.send(hello(b"")).send(first);
    let mut count = 0;
    while client.stream.write_all(&frames(count)).is_ok() {
        count += 1;
        assert!(count < 100_000, "a flood of frames is not bounded");
    }
    running.wait_for_open(0);
    assert_eq!(running.connect().request(check("a")).status, 200);
}

#[test]
fn a_flood_of_resets_ends_the_connection() {
    flood(b"", |count| {
        let stream = 2 * count + 1;
        [complete_request(stream, "GET", "/"), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    });
}

#[test]
fn a_flood_of_continuations_ends_the_connection() {
    flood(&frame(HEADERS, 0, 1, &request("GET", "/")), |_| {
        frame(CONTINUATION, 0, 1, &[0x40, 1, b'x', 1, b'y'].repeat(100))
    });
}

/// Send many frames that are answered, and never read the answers: they must not pile up.
fn flood_unread(frame: &[u8]) -> (Client, support::Running) {
    let running = start(9, Bounds { take: Duration::from_millis(500), ..Bounds::default() });
    let mut client = running.connect();
    client.send(hello(b""));
    let many = frame.repeat(1000);
    let mut count = 0;
    // Once the answers fill the buffers, no more is read; once that has lasted, the connection is cut off.
    while client.stream.write_all(&many).is_ok() {
        count += 1;
        assert!(count < 100_000, "a flood of frames is not bounded");
    }
    running.wait_for_open(0);
    assert_eq!(running.connect().request(check("a")).status, 200);
    (client, running)
}

#[test]
fn a_flood_of_pings_whose_answers_are_not_read_ends_the_connection() {
    flood_unread(&frame(PING, 0, 0, b"12345678"));
}

#[test]
fn a_flood_of_settings_whose_answers_are_not_read_ends_the_connection() {
    flood_unread(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]));
}

#[test]
fn no_more_streams_than_the_bound_are_open() {
    let running = start(9, Bounds { streams: 5, ..Bounds::default() });
    in_http2(running.address, async |client| {
        let mut waiting = vec![];
        for _ in 0..20 {
            let mut client = client.clone();
            waiting.push(tokio::spawn(async move {
                let request = Request::get("http://a/wait").body(()).expect("a request");
                client = client.ready().await.expect("a turn");
                let (response, _) = client.send_request(request, true).expect("a stream");
                let _ = response.await;
            }));
        }
        while running.behind.waiting() < 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(running.behind.waiting(), 5);
        for task in waiting {
            task.abort();
        }
    });
    support::wait_until("no requests behind", || running.behind.waiting() == 0);
}

#[test]
fn idle_connections_of_http2_are_closed() {
    let running =
        start(9, Bounds { idle: Duration::from_millis(500), head: Duration::from_millis(500), ..Bounds::default() });
    let mut silent = running.connect();
    silent.send(hello(b""));
    let mut half = running.connect();
    half.send(&hello(b"")[..10]);
    running.wait_for_open(2);
    running.wait_for_open(0);
}
