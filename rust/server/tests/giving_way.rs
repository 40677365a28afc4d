//! Too many connections, or too many bytes of unfinished requests: which connection ends, and how.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use headgate_server::bounds::Bounds;
use support::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, WINDOW_UPDATE, complete_request, frame, hello, request,
};
use support::{Client, Running, start, wait_until};

const HEALTH: &str = "GET /healthz HTTP/1.1\r\n\r\n";
const WAITED_LONGEST: &str = "too many connections are open, and this one has waited longest for its client";

/// Wait some ticks, so that one connection has waited longer than later ones.
fn some_ticks() {
    std::thread::sleep(Duration::from_millis(300));
}

fn connections(running: &Running, count: usize) -> Vec<Client> {
    (0..count).map(|_| running.connect()).collect()
}

/// Connections that stay open, each answered once.
fn answered(running: &Running, count: usize) -> Vec<Client> {
    let mut clients = connections(running, count);
    for client in &mut clients {
        assert_eq!(client.request(HEALTH).status, 200);
    }
    clients
}

#[test]
fn the_connection_that_has_waited_longest_gives_way() {
    let running = start(100, Bounds { connections: 10, ..Bounds::default() });
    let mut half = running.connect();
    half.send("GET /check/default HTTP/1.1\r\n");
    running.wait_for_open(1);
    some_ticks();
    let mut others = connections(&running, 9);
    for client in &mut others {
        assert_eq!(client.request("GET /healthz HTTP/1.1\r\n\r\n").status, 200);
    }
    let mut newest = running.connect();
    assert_eq!(newest.request("GET /healthz HTTP/1.1\r\n\r\n").status, 200);
    let refused = half.response();
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("this one has waited longest for its client"), "{}", refused.text());
    assert!(half.has_ended());
    assert_eq!(running.door.figures().gave_way, 1);
}

#[test]
fn where_all_are_being_answered_the_newest_is_refused() {
    let running = start(100, Bounds { connections: 10, ..Bounds::default() });
    let mut busy = connections(&running, 10);
    for client in &mut busy {
        client.send("GET /wait HTTP/1.1\r\n\r\n");
    }
    wait_until("requests behind", || running.behind.waiting() == 10);
    let refused = running.connect().response();
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("too many connections are being answered; ask again"), "{}", refused.text());
}

#[test]
fn one_client_may_have_only_so_many_connections() {
    let running = start(100, Bounds { connections_of_client: 3, ..Bounds::default() });
    let mut clients = connections(&running, 3);
    for client in &mut clients {
        client.send("GET /wait HTTP/1.1\r\n\r\n");
    }
    wait_until("requests behind", || running.behind.waiting() == 3);
    assert_eq!(running.connect().response().status, 503);
}

#[test]
fn the_memory_of_unfinished_requests_is_bounded() {
    let running = start(100, Bounds { held_bytes: 1 << 20, ..Bounds::default() });
    let half = format!("GET /check/default HTTP/1.1\r\nx: {}", "a".repeat(60 << 10));
    let mut clients = connections(&running, 40);
    for client in &mut clients {
        client.send(&half);
    }
    // 40 times 60 KiB arrive, and only 1 MiB may stay.
    wait_until("refusals", || running.count("none", 503) >= 23 && running.door.figures().held <= 1 << 20);
    running.others_are_answered();
}

#[test]
fn a_connection_that_gives_way_in_the_middle_of_a_body_gets_a_refusal() {
    let running = start(100, Bounds { connections: 2, ..Bounds::default() });
    for path in ["/v1/check", "/seen"] {
        let mut half = running.connect();
        half.send(format!("POST {path} HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc"));
        wait_until("a body", || running.door.figures().held > 0);
        some_ticks();
        let others = answered(&running, 2);
        let refused = half.response();
        assert_eq!((refused.status, refused.field("connection")), (503, Some("close")));
        assert!(refused.text().contains(WAITED_LONGEST), "{}", refused.text());
        assert!(half.has_ended());
        drop(others);
        running.wait_for_the_end();
    }
}

#[test]
fn a_body_that_trickles_has_waited_since_it_was_first_waited_for() {
    let running = start(100, Bounds { connections: 3, ..Bounds::default() });
    let (mut trickling, ended) = (running.connect(), AtomicBool::new(false));
    trickling.send("POST /v1/check HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n");
    std::thread::scope(|scope| {
        let mut writer = trickling.stream.try_clone().expect("a copy");
        let ended = &ended;
        scope.spawn(move || {
            while !ended.load(SeqCst) && writer.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        some_ticks();
        let mut others = answered(&running, 2);
        some_ticks();
        others.extend(answered(&running, 1));
        let refused = trickling.response();
        ended.store(true, SeqCst);
        assert_eq!(refused.status, 503);
        for other in &mut others {
            assert_eq!(other.request(HEALTH).status, 200);
        }
    });
}

#[test]
fn refused_clients_give_way_at_once() {
    let running = start(1000, Bounds { connections: 100, ..Bounds::default() });
    let mut refused = connections(&running, 100);
    for client in &mut refused {
        assert_eq!(client.request("BAD\r\n\r\n").status, 400);
    }
    // More than get a refusal for lack of room: a lingering client would take the place of some of these.
    let mut others = answered(&running, 100);
    for client in &mut others {
        assert_eq!(client.request(HEALTH).status, 200);
    }
    for client in &mut refused {
        assert!(client.has_ended());
    }
}

#[test]
fn clients_that_do_not_read_give_way_at_once() {
    let running = start(1000, Bounds { connections: 20, ..Bounds::default() });
    let mut deaf = connections(&running, 20);
    for client in &mut deaf {
        client.send(format!("GET /large?{} HTTP/1.1\r\n\r\n", 1_u64 << 30));
    }
    let sent = || running.behind.counts.sent.load(SeqCst);
    let mut before = 0;
    while before == 0 || before != sent() {
        before = sent();
        some_ticks();
    }
    let mut others = answered(&running, 20);
    for client in &mut others {
        assert_eq!(client.request(HEALTH).status, 200);
    }
    running.wait_for_open(20);
}

#[test]
fn responses_that_the_socket_does_not_take_are_held() {
    let running = start(100, Bounds { held_bytes: 1 << 20, ..Bounds::default() });
    let mut deaf = connections(&running, 10);
    for client in &mut deaf {
        client.send("GET /large?1000000 HTTP/1.1\r\n\r\n".repeat(20)); // more than sockets have room for
    }
    wait_until("some give way", || running.door.figures().gave_way > 0 && running.door.figures().held <= 1 << 20);
    running.others_are_answered();
    drop(deaf);
    wait_until("nothing held", || running.door.figures().held == 0);
}

#[test]
fn heads_and_the_first_pieces_of_bodies_are_held() {
    let running = start(100, Bounds { held_bytes: 1 << 20, ..Bounds::default() });
    let head = format!("POST /v1/check HTTP/1.1\r\ncontent-length: 100000\r\nx: {}\r\n\r\n", "a".repeat(30 << 10));
    let mut clients = connections(&running, 40);
    for client in &mut clients {
        client.send(&head).send("a".repeat(10 << 10));
    }
    // 40 times 40 KiB arrive, and only 1 MiB may stay.
    wait_until("refusals", || running.count("v1/check", 503) >= 14 && running.door.figures().held <= 1 << 20);
    assert!(running.door.figures().open >= 20); // no more gave way than had to
    running.others_are_answered();
    drop(clients);
    running.wait_for_the_end();
}

#[test]
fn the_memory_of_streams_of_one_connection_is_counted_and_released() {
    let running = start(100, Bounds { held_bytes: 1 << 20, ..Bounds::default() });
    let mut client = running.connect();
    client.send(hello(b"")).frame_of(WINDOW_UPDATE); // now there is room for all of it
    client.send(frame(WINDOW_UPDATE, 0, 0, &[0, 16, 0, 0])); // and for all responses
    for number in 0..16 {
        client.send(frame(HEADERS, END_HEADERS, 2 * number + 1, &request("POST", "/v1/check")));
        client.send(frame(DATA, 0, 2 * number + 1, &[b'a'; 16 << 10]));
    }
    wait_until("bodies", || running.door.figures().held > 16 * (16 << 10));
    for number in 0..8 {
        client.send(frame(RST_STREAM, 0, 2 * number + 1, &[0, 0, 0, 8]));
    }
    wait_until("half of them", || running.door.figures().held < 9 * (16 << 10));
    for number in 8..16 {
        client.send(frame(DATA, END_STREAM, 2 * number + 1, b"a"));
    }
    wait_until("nothing held", || running.door.figures().held == 0);
    running.others_are_answered();
}

#[test]
fn a_connection_with_many_bodies_gives_way_whatever_other_requests_it_has() {
    let running = start(100, Bounds { held_bytes: 1 << 19, ..Bounds::default() });
    let mut client = running.connect();
    client.send(hello(b"")).send(complete_request(1, "GET", "/wait"));
    wait_until("a request behind", || running.behind.waiting() == 1);
    for number in 1..20 {
        client.send(frame(HEADERS, END_HEADERS, 2 * number + 1, &request("POST", "/seen")));
        for _ in 0..3 {
            client.send(frame(DATA, 0, 2 * number + 1, &[b'a'; 16 << 10]));
        }
    }
    assert_eq!(client.frame_of(GOAWAY).payload[4..8], [0; 4]); // not an error
    running.others_are_answered();
    running.wait_for_the_end(); // though the client's answers were not read, and a request waits
    wait_until("no request behind", || running.behind.waiting() == 0);
}
