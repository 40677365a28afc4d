//! Swapping the decider and shutting down under load: no request is lost.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use headgate_server::bounds::Bounds;
use support::frames::{GOAWAY, HEADERS, SETTINGS, complete_request, hello};
use support::{Counting, check, connect, start_with, wait_until};

#[test]
fn swapping_the_decider_under_load_loses_no_request_and_no_count() {
    let decider = Counting::new(1_000_000, "first");
    let others = ["second", "third"].map(|name| decider.renamed(name));
    let running = start_with(decider, Bounds::default());
    let done = AtomicBool::new(false);
    let counts: Vec<(u64, u64)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (mut connection, done) = (running.connect(), &done);
                scope.spawn(move || {
                    let (mut sent, mut not_first) = (0, 0);
                    while !done.load(Ordering::SeqCst) || not_first == 0 {
                        let response = connection.request(check("everyone"));
                        assert_eq!(response.status, 200);
                        sent += 1;
                        not_first += u64::from(response.field("x-decider") != Some("first"));
                    }
                    (sent, not_first)
                })
            })
            .collect();
        for other in others {
            let so_far = running.count("check", 200);
            wait_until("checks", || running.count("check", 200) > so_far + 500);
            running.door.swap(Box::new(other));
        }
        done.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().expect("a client")).collect()
    });
    let sum: u64 = counts.iter().map(|(sent, _)| sent).sum();
    assert_eq!(running.count("check", 200), sum);
    let last = running.connect().request(check("everyone"));
    assert_eq!(last.field("x-remaining"), Some((1_000_000 - sum - 1).to_string().as_str()));
    assert_eq!(last.field("x-decider"), Some("third"));
}

#[test]
fn a_drain_under_load_answers_every_request_that_was_sent() {
    let mut running = start_with(Counting::new(1_000_000, "first"), Bounds::default());
    let address = running.address;
    let sent: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let mut connection = connect(address);
                assert_eq!(connection.request("GET /healthz HTTP/1.1\r\n\r\n").status, 200);
                scope.spawn(move || {
                    let mut sent = 0;
                    loop {
                        let response = connection.request(check("everyone"));
                        assert_eq!(response.status, 200);
                        sent += 1;
                        if response.field("connection") == Some("close") {
                            assert!(connection.has_ended());
                            return sent;
                        }
                    }
                })
            })
            .collect();
        wait_until("checks", || running.count("check", 200) > 500);
        running.door.drain(Duration::from_secs(10)).expect("threads that end");
        threads.into_iter().map(|thread| thread.join().expect("a client")).sum()
    });
    assert_eq!(running.count("check", 200), sent);
    assert_eq!(running.door.figures().open, 0);
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_drain_finishes_what_has_begun_closes_what_is_idle_and_cuts_off_the_rest() {
    let mut running = start_with(Counting::new(10, "first"), Bounds::default());
    let (mut idle, mut begun, mut waiting) = (running.connect(), running.connect(), running.connect());
    assert_eq!(idle.request("GET /healthz HTTP/1.1\r\n\r\n").status, 200);
    begun.send("POST /v1/check HTTP/1.1\r\ncontent-length: 13\r\n\r\n{\"req");
    waiting.send("GET /wait HTTP/1.1\r\n\r\n");
    wait_until("a request behind", || running.behind.waiting() == 1);
    running.wait_for_open(3);
    let began = Instant::now();
    thread::scope(|scope| {
        let door = &mut running.door;
        let drained = scope.spawn(|| door.drain(Duration::from_secs(1)));
        assert!(idle.has_ended());
        let response = begun.request("uest\":{}");
        assert_eq!((response.status, response.field("connection")), (200, Some("close")));
        assert!(waiting.has_ended());
        drained.join().expect("a thread").expect("threads that end");
    });
    assert!((1..10).contains(&began.elapsed().as_secs()));
    wait_until("no request behind", || running.behind.waiting() == 0);
}

#[test]
fn an_end_that_is_called_again_takes_its_time_from_then_on() {
    let running = start_with(Counting::new(10, "first"), Bounds::default());
    let mut waiting = running.connect();
    waiting.send("GET /wait HTTP/1.1\r\n\r\n");
    wait_until("a request behind", || running.behind.waiting() == 1);
    running.door.end(Duration::from_secs(3600));
    wait_until("a closed port", || std::net::TcpStream::connect(running.address).is_err());
    assert!(!running.door.has_ended());
    running.door.end(Duration::ZERO);
    assert!(waiting.has_ended());
    wait_until("the end of all threads", || running.door.has_ended());
}

#[test]
fn a_drain_answers_a_request_whose_head_has_begun_to_arrive() {
    let mut running = start_with(Counting::new(10, "first"), Bounds::default());
    let (mut first, mut second) = (running.connect(), running.connect());
    assert_eq!(second.request("GET /healthz HTTP/1.1\r\n\r\n").status, 200);
    for client in [&mut first, &mut second] {
        client.send("GET /check/default HTTP/1.1\r\nho");
    }
    let mut idle = running.connect();
    running.wait_for_open(3);
    thread::scope(|scope| {
        let door = &mut running.door;
        let drained = scope.spawn(|| door.drain(Duration::from_secs(10)));
        assert!(idle.has_ended()); // so idle connections were closed
        thread::sleep(Duration::from_millis(200));
        for client in [&mut first, &mut second] {
            let response = client.request("st: a\r\n\r\n");
            assert_eq!((response.status, response.field("connection")), (200, Some("close")));
            assert!(client.has_ended());
        }
        drained.join().expect("a thread").expect("threads that end");
    });
}

#[test]
fn http2_clients_get_goaway_from_a_drain_and_with_a_response_when_the_end_is_announced() {
    let mut running = start_with(Counting::new(10, "first"), Bounds::default());
    let mut active = running.connect();
    active.send(hello(b""));
    running.door.announce_end();
    let [head, _] = active.send(complete_request(1, "GET", "/check/default")).frames_of([HEADERS, GOAWAY]);
    assert_eq!(head.status(), 200);
    let (mut silent, mut waits) = (running.connect(), running.connect());
    silent.send(hello(b"")).frame_of(SETTINGS);
    waits.send(hello(b"")).send(complete_request(1, "GET", "/later?500"));
    wait_until("a request behind", || running.behind.requests() == 1);
    thread::scope(|scope| {
        let door = &mut running.door;
        let drained = scope.spawn(|| door.drain(Duration::from_secs(10)));
        silent.frame_of(GOAWAY);
        let [head, _] = waits.frames_of([HEADERS, GOAWAY]);
        assert_eq!(head.status(), 200);
        drop((active, silent, waits));
        drained.join().expect("a thread").expect("threads that end");
    });
}
