//! Clients that are slow, many, or have left: each is bounded, and none stops the others.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::io::Write;
use std::time::{Duration, Instant};

use headgate_server::bounds::Bounds;
use support::{Client, Running, WAIT, another_client, check, start, wait_until};

fn short_times() -> Bounds {
    let second = Duration::from_secs(1);
    Bounds { head: second, body: second, take: second, idle: second, ..Bounds::default() }
}

fn connections(running: &Running, count: usize) -> Vec<Client> {
    (0..count).map(|_| running.connect()).collect()
}

/// A connection on which `sent` was sent.
fn connect_and_send(running: &Running, sent: &str) -> Client {
    let mut client = running.connect();
    client.send(sent);
    client
}

#[test]
fn three_hundred_clients_that_do_not_finish_their_heads_get_408() {
    let running = start(1, short_times());
    let begin = "GET /check/default HTTP/1.1\r\nx-forwarded-for: a\r\nx";
    let mut slow: Vec<_> = (0..300).map(|_| connect_and_send(&running, begin)).collect();
    running.others_are_answered();
    for client in &mut slow {
        let response = client.response();
        assert_eq!(response.status, 408);
        assert!(response.text().contains("the head of a request has to come within 1 s"), "{}", response.text());
        assert!(client.has_ended());
    }
    assert_eq!(running.count("none", 408), 300);
    assert_eq!(running.connect().request(check("a")).status, 200); // none of them was charged
}

#[test]
fn three_hundred_clients_that_do_not_finish_their_bodies_get_408() {
    let running = start(1, short_times());
    let begin = |path| format!("POST {path} HTTP/1.1\r\ncontent-length: 10\r\n\r\n{{");
    let paths = ["/v1/check", "/seen"].into_iter().cycle().take(300);
    let mut slow: Vec<_> = paths.map(|path| connect_and_send(&running, &begin(path))).collect();
    running.others_are_answered();
    for client in &mut slow {
        let response = client.response();
        assert_eq!(response.status, 408);
        assert!(response.text().contains("a body has to come within 1 s, or steadily"), "{}", response.text());
        assert!(client.has_ended());
    }
}

#[test]
fn a_head_that_trickles_is_too_slow_all_the_same() {
    let running = start(1, short_times());
    let mut client = running.connect();
    let began = Instant::now();
    let mut sent = 0;
    while client.stream.write_all(b"GET /aaaaaaaa"[sent % 13..=sent % 13].as_ref()).is_ok() {
        sent += 1;
        std::thread::sleep(Duration::from_millis(20));
        assert!(began.elapsed() < WAIT);
    }
    assert_eq!(client.response().status, 408);
}

#[test]
fn empty_lines_before_a_request_are_bounded_in_size_and_time() {
    let running = start(1, short_times());
    let mut connection = running.connect();
    assert_eq!(connection.request(format!("\r\n\r\n{}", check(&another_client()))).status, 200);
    let flood = connection.request("\r\n".repeat(40_000));
    assert_eq!((flood.status, flood.field("connection")), (431, Some("close")));
    assert!(connection.has_ended());
    let mut trickles = running.connect();
    let began = Instant::now();
    while trickles.stream.write_all(b"\r").and_then(|()| trickles.stream.write_all(b"\n")).is_ok() {
        assert!(began.elapsed() < WAIT, "a connection on which nothing but empty lines come stays open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn idle_connections_are_closed() {
    let running = start(1, short_times());
    let mut silent = connections(&running, 100);
    let mut answered = running.connect();
    assert_eq!(answered.request("GET /healthz HTTP/1.1\r\n\r\n").status, 200);
    for client in silent.iter_mut().chain([&mut answered]) {
        assert!(client.has_ended());
    }
    running.wait_for_open(0);
    let figures = running.door.figures();
    assert_eq!((figures.expired, figures.idle), (100, 1));
}

#[test]
fn clients_that_do_not_read_are_cut_off() {
    let running = start(1, short_times());
    let request = format!("GET /large?{} HTTP/1.1\r\n\r\n", 1_u64 << 30);
    let _deaf: Vec<_> = (0..20).map(|_| connect_and_send(&running, &request)).collect();
    running.others_are_answered();
    running.wait_for_open(0);
}

#[test]
fn clients_that_vanish_take_their_requests_with_them() {
    let running = start(1, Bounds::default());
    let mut clients = connections(&running, 50);
    for client in &mut clients {
        client.send("GET /wait HTTP/1.1\r\n\r\n");
    }
    wait_until("requests behind", || running.behind.waiting() == 50);
    let mut more = connections(&running, 50);
    for client in &mut more {
        client.send("POST /seen HTTP/1.1\r\ncontent-length: 1000\r\n\r\nabc");
    }
    wait_until("bodies", || running.door.figures().held > 50 * 3);
    drop((clients, more));
    wait_until("no requests behind", || running.behind.waiting() == 0);
    running.wait_for_the_end();
    running.others_are_answered();
}

#[test]
fn a_thousand_connections_are_all_answered() {
    let running = start(3, Bounds::default());
    let mut clients = connections(&running, 1000);
    for round in 0..2 {
        for client in &mut clients {
            client.send(check("one of many"));
        }
        let passed =
            clients.iter_mut().map(|client| client.response()).filter(|response| response.status == 200).count();
        assert_eq!(passed, if round == 0 { 3 } else { 0 });
    }
    assert_eq!(running.door.figures().open, 1000);
    drop(clients);
    running.wait_for_open(0);
}
