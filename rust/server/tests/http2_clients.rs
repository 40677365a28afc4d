//! Clients of HTTP/2 that do not read, do not leave, or send what only HTTP/1 may: each has a hard end, or is refused.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::io::Write;
use std::time::{Duration, Instant};

use headgate_server::bounds::Bounds;
use support::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, NO_WINDOW, PING, complete_request, frame, hello, request,
};
use support::{Client, WAIT, start, wait_until};

/// Bounds with a short time to read.
fn short_take() -> Bounds {
    Bounds { take: Duration::from_millis(500), ..Bounds::default() }
}

/// Open stream after stream until the connection is cut off, whatever the door sends.
fn goes_on_until_cut_off(client: &mut Client, first: u32, path: &str) {
    let began = Instant::now();
    for number in first.. {
        let sent = client.stream.write_all(&complete_request(2 * number + 1, "HEAD", path));
        if sent.is_err() || client.stream.write_all(&frame(PING, 0, 0, b"12345678")).is_err() {
            return;
        }
        assert!(began.elapsed() < WAIT, "the connection keeps its place");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_body_that_is_left_unread_has_a_hard_end_while_other_streams_go_on() {
    for path in ["/healthz", "/seen", "/large?1", "/large?100000", "/check/default"] {
        let running = start(0, short_take());
        let mut client = running.connect();
        client.send(hello(NO_WINDOW)).send(complete_request(1, "GET", path));
        goes_on_until_cut_off(&mut client, 1, "/check-403/default");
        running.wait_for_the_end();
    }
}

#[test]
fn a_client_that_reads_nothing_and_opens_streams_is_cut_off() {
    let running = start(9, short_take());
    let mut client = running.connect();
    client.send(hello(b""));
    let mut number = 0;
    let many =
        |number: u32| (0..100).flat_map(move |count| complete_request(2 * (number + count) + 1, "HEAD", "/healthz"));
    while client.stream.write_all(&many(number).collect::<Vec<u8>>()).is_ok() {
        number += 100;
        assert!(number < 10_000_000, "a client that does not read is not bounded");
    }
    running.wait_for_the_end();
    running.others_are_answered();
}

#[test]
fn a_connection_that_gives_way_and_opens_further_streams_has_a_hard_end() {
    let running = start(9, Bounds { connections: 1, ..Bounds::default() });
    let mut client = running.connect();
    client.send(hello(b"")).send(complete_request(1, "GET", "/healthz")).frame_of(HEADERS);
    std::thread::sleep(Duration::from_millis(300)); // some ticks
    running.others_are_answered();
    client.frame_of(GOAWAY);
    goes_on_until_cut_off(&mut client, 1, "/healthz");
    running.wait_for_the_end();
}

#[test]
fn a_connection_whose_time_is_over_and_that_does_not_leave_has_a_hard_end() {
    let running = start(9, Bounds { idle: Duration::from_millis(300), ..Bounds::default() });
    let mut client = running.connect();
    client.send(hello(b"")).frame_of(GOAWAY);
    goes_on_until_cut_off(&mut client, 0, "/healthz");
    running.wait_for_the_end();
}

#[test]
fn streams_that_are_left_unread_give_way_at_once() {
    let running = start(0, Bounds { connections: 3, ..Bounds::default() });
    let mut deaf = running.connect();
    deaf.send(hello(NO_WINDOW)).send(complete_request(1, "GET", "/healthz")).send(complete_request(3, "GET", "/seen"));
    wait_until("answers", || running.count("healthz", 200) + running.count("other", 200) == 2);
    std::thread::sleep(Duration::from_millis(300)); // some ticks
    let mut others: Vec<Client> = (0..3).map(|_| running.connect()).collect();
    for other in &mut others {
        assert_eq!(other.request("GET /healthz HTTP/1.1\r\n\r\n").status, 200);
    }
    while deaf.try_frame().is_some() {}
    running.wait_for_open(3);
}

#[test]
fn responses_that_are_left_unread_take_no_turn() {
    let running = start(0, Bounds { forwarded: 1, ..Bounds::default() });
    let mut deaf = running.connect();
    deaf.send(hello(NO_WINDOW));
    for (number, path) in [(0, "/seen"), (1, "/large?100000"), (2, "/metrics"), (3, "/metrics")] {
        deaf.send(complete_request(2 * number + 1, "GET", path));
    }
    wait_until("answers", || running.count("other", 200) == 4);
    for path in ["/seen", "/metrics"] {
        assert_eq!(running.connect().request(format!("GET {path} HTTP/1.1\r\n\r\n")).status, 200);
    }
}

#[test]
fn the_memory_of_unread_responses_is_bounded() {
    let running = start(1, Bounds { held_bytes: 1 << 20, ..Bounds::default() });
    let mut deaf: Vec<Client> = (0..5).map(|_| running.connect()).collect();
    for client in &mut deaf {
        client.send(hello(NO_WINDOW)).send(complete_request(1, "GET", "/large?500000"));
    }
    // 5 times 500 kB arrive, and only 1 MiB may stay.
    wait_until("answers", || running.count("other", 200) == 5);
    running.wait_for_open(2);
    assert_eq!(running.door.figures().held, 2 * 500_000);
    let mut reads = running.connect();
    reads.send(hello(b"")).send(complete_request(1, "GET", "/large?50000"));
    while reads.frame_of(DATA).flags & END_STREAM == 0 {}
    running.others_are_answered();
    drop(deaf);
    wait_until("nothing held", || running.door.figures().held == 0);
}

#[test]
fn head_has_no_data_and_says_how_long_it_would_be() {
    let running = start(0, Bounds::default());
    let mut client = running.connect();
    client.send(hello(b""));
    for (number, path) in [(0, "/healthz"), (1, "/seen"), (2, "/check/default")] {
        client.send(complete_request(2 * number + 1, "HEAD", path));
        let head = client.frame_of(HEADERS);
        assert_eq!(head.flags & END_STREAM, END_STREAM, "{path}");
    }
    client.send(complete_request(7, "GET", "/healthz"));
    let data = client.frame_of(DATA);
    assert_eq!((data.stream, &data.payload[..]), (7, &b"ok\n"[..]));
}

#[test]
fn values_that_begin_or_end_with_a_blank_are_refused() {
    let running = start(9, Bounds::default());
    let mut client = running.connect();
    client.send(hello(b""));
    for (number, (value, status)) in
        [("a", 200), ("", 200), ("a b", 200), (" a", 400), ("a ", 400), ("\ta", 400), ("a\t", 400), (" ", 400)]
            .into_iter()
            .enumerate()
    {
        let length = u8::try_from(value.len()).expect("short");
        let fields = [&request("GET", "/check/default")[..], &[0, 1, b'x', length], value.as_bytes()].concat();
        let stream = u32::try_from(2 * number + 1).expect("few");
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields));
        assert_eq!(client.frame_of(HEADERS).status(), status, "{value:?}");
    }
}

#[test]
fn a_head_that_does_not_come_whole_has_its_time() {
    let running = start(9, Bounds { head: Duration::from_millis(500), ..Bounds::default() });
    let mut client = running.connect();
    client.send(hello(b"")).send(frame(HEADERS, END_STREAM, 1, &request("GET", "/healthz")));
    client.frame_of(GOAWAY);
    while client.try_frame().is_some() {} // no more than an answer to a ping
    running.wait_for_the_end();
}

#[test]
fn heads_that_have_not_come_whole_are_held() {
    let running = start(9, Bounds { held_bytes: 1 << 20, ..Bounds::default() });
    let fields = [&request("GET", "/healthz")[..], &[0x40, 1, b'x', 1, b'y'].repeat(3200)].concat();
    let clients: Vec<Client> = (0..100)
        .map(|_| {
            let mut client = running.connect();
            client.send(hello(b"")).send(frame(HEADERS, END_STREAM, 1, &fields));
            client
        })
        .collect();
    wait_until("bytes that are held", || {
        running.door.figures().gave_way > 30 && running.door.figures().held <= 1 << 20
    });
    running.others_are_answered();
    drop(clients);
    running.wait_for_the_end();
}
