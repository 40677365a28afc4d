//! A Python service that accepts nothing for a while: requests that are passed on to it wait, in their turns.

#![allow(clippy::expect_used)] // a test says so when it fails

mod support;

use std::sync::atomic::Ordering;

use headgate_server::bounds::Bounds;
use support::frames::{PING, RST_STREAM, complete_request, frame, hello};
use support::{Running, start, wait_until};

/// Make the service behind the door accept nothing for a time.
fn stall(running: &Running, millis: u32) -> support::Client {
    let mut client = running.connect();
    client.send(format!("GET /stall?{millis} HTTP/1.1\r\n\r\n"));
    wait_until("a stall", || running.behind.requests() == 1);
    client
}

#[test]
fn where_the_private_socket_is_full_requests_wait_for_it() {
    let running = start(1, Bounds::default());
    running.behind.listen(3);
    let _stalling = stall(&running, 500);
    let mut clients: Vec<_> = (0..40).map(|_| running.connect()).collect();
    for client in &mut clients {
        client.send("GET /seen HTTP/1.1\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn requests_that_are_reset_keep_their_turns_until_the_service_behind_is_done_with_them() {
    let running = start(1, Bounds { forwarded: 4, ..Bounds::default() });
    let mut stalling = stall(&running, 800);
    let mut client = running.connect();
    client.send(hello(b""));
    for stream in (1..100).step_by(2) {
        client.send(complete_request(stream, "GET", "/seen")).send(frame(PING, 0, 0, b"12345678"));
        client.frame_of(PING);
        client.send(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    let mut other = running.connect();
    assert_eq!(other.request("GET /seen HTTP/1.1\r\n\r\n").status, 200);
    assert_eq!(stalling.response().status, 200);
    let accepted = running.behind.counts.accepted.load(Ordering::SeqCst);
    assert!(accepted <= 4 + 1, "{accepted} connections for 4 turns, and then one more");
    drop((client, other, stalling));
    running.wait_for_the_end();
}
