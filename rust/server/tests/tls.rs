//! TLS: what holds for bare connections holds here, and renewing a certificate ends no connection.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use headgate_server::bounds::Bounds;
use support::certified::*;
use support::frames::{GOAWAY, HEADERS, SETTINGS, complete_request, hello};
use support::{check, connect, wait_until};

#[test]
fn http1_is_spoken_over_each_version_of_tls_with_keys_of_each_kind() {
    for pair in [SERVER, RSA] {
        let running = start_tls(tls_of(pair, None), Bounds::default());
        for options in [HTTP1, ClientOptions { old_tls: true, ..HTTP1 }, ClientOptions { protocol: None, ..HTTP1 }] {
            let mut client = running.connect_tls(options);
            assert_eq!(client.shown(), der_of(pair));
            assert_eq!(client.session.as_ref().expect("TLS").alpn_protocol(), options.protocol);
            answered(&mut client);
            let passed = client.request("GET /seen HTTP/1.1\r\nhost: a\r\n\r\n");
            assert!(passed.text().contains("headgate-door-peer: 127.0.0.1"), "{}", passed.text());
            let large = client.request("GET /large?3000000 HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(large.body.len(), 3_000_000);
            let body = "x".repeat(100_000);
            let echoed = client.request(format!("POST /echo HTTP/1.1\r\ncontent-length: 100000\r\n\r\n{body}"));
            assert_eq!(echoed.text(), body);
        }
        running.wait_for_the_end();
        assert_eq!(running.door.figures().no_handshake, 0);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let mut client = running.connect_tls(HTTP1);
    client.send(check("same").repeat(500));
    for number in 1..=500 {
        let left = (1_000_000 - number).to_string();
        assert_eq!(client.response().field("x-remaining"), Some(left.as_str()));
    }
}

#[test]
fn a_client_that_offers_http2_gets_it() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let mut client = running.connect_tls(HTTP2);
    client.send(hello(b""));
    client.frame_of(SETTINGS);
    for stream in [1, 3, 5] {
        client.send(complete_request(stream, "GET", "/healthz"));
        let response = client.frame_of(HEADERS);
        assert_eq!((response.stream, response.status()), (stream, 200));
    }
    assert_eq!(client.session.as_ref().expect("TLS").alpn_protocol(), Some(&b"h2"[..]));
    let mut neither = running.connect_tls(ClientOptions { protocol: Some(b"gopher"), ..HTTP1 });
    let refused = neither.perform_handshake().expect_err("no protocol");
    assert!(refused.contains("NoApplicationProtocol"), "{refused}");
}

#[test]
fn new_connections_get_a_swapped_certificate_and_open_ones_stay() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let done = AtomicBool::new(false);
    let mut before = running.connect_tls(HTTP1);
    assert_eq!(before.shown(), der_of(SERVER));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (mut client, done) = (running.connect_tls(HTTP1), &done);
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        answered(&mut client);
                    }
                })
            })
            .collect();
        for pair in [RENEWED, RSA, SERVER, RENEWED] {
            running.door.swap_tls(tls_of(pair, None));
            let so_far = running.count("check", 200);
            wait_until("checks", || running.count("check", 200) > so_far + 50);
            assert_eq!(running.connect_tls(HTTP1).shown(), der_of(pair));
        }
        done.store(true, Ordering::SeqCst);
        for thread in clients {
            thread.join().expect("every check was answered");
        }
    });
    answered(&mut before);
    running.door.swap_tls(tls_of(RENEWED, Some(CA)));
    let mut stranger = running.connect_tls(HTTP1);
    assert!(stranger.perform_handshake().is_err() || stranger.read(&mut [0; 1]).is_err());
    answered(&mut before);
}

#[test]
fn a_drain_answers_what_has_begun_and_ends_the_rest_with_a_notice() {
    let mut running = start_tls(tls_of(SERVER, None), Bounds::default());
    let address = running.address;
    let mut idle = running.connect_tls(HTTP1);
    answered(&mut idle);
    let mut second = running.connect_tls(HTTP2);
    second.send(hello(b""));
    second.frame_of(SETTINGS);
    let mut busy = running.connect_tls(HTTP1);
    busy.send("GET /later?1500 HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut begun = running.connect_tls(HTTP1);
    let mut first = vec![];
    begun.session.as_mut().expect("TLS").write_tls(&mut first).expect("a hello");
    begun.stream.write_all(&first).expect("it is taken");
    wait_until("all are open", || running.door.figures().open == 4);
    wait_until("one is busy", || running.behind.requests() == 1);
    let client = thread::spawn(move || {
        let mut client = connect(address);
        client.session = Some(Box::new(session_of(&config_of(HTTP1))));
        let mut sent = 0;
        loop {
            let response = client.request(check("everyone"));
            assert_eq!(response.status, 200);
            sent += 1;
            if response.field("connection") == Some("close") {
                return sent;
            }
        }
    });
    wait_until("checks", || running.count("check", 200) > 50);
    running.door.end(Duration::from_secs(20));
    answered(&mut begun);
    assert_eq!(busy.response().status, 200);
    second.frame_of(GOAWAY);
    assert_eq!(idle.read(&mut [0; 1]).expect("an end with close_notify"), 0);
    assert!(client.join().expect("every check was answered") > 0);
    drop((idle, second, busy, begun));
    running.door.drain(Duration::from_secs(20)).expect("threads that end");
    assert_eq!(running.door.figures().open, 0);
}

#[test]
fn a_client_that_sends_no_more_is_answered() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    for has_close_notify in [true, false] {
        let mut client = running.connect_tls(HTTP1);
        let session = client.session.as_mut().expect("TLS");
        while session.is_handshaking() {
            session.complete_io(&mut client.stream).expect("a handshake");
        }
        session.set_buffer_limit(None);
        session.writer().write_all(check("leaves").repeat(500).as_bytes()).expect("room");
        if has_close_notify {
            session.send_close_notify();
        }
        while session.wants_write() {
            session.write_tls(&mut client.stream).expect("it is taken");
        }
        client.stream.shutdown(Shutdown::Write).expect("half a connection");
        for _ in 0..500 {
            assert_eq!(client.response().status, 200);
        }
    }
    running.wait_for_the_end();
}
