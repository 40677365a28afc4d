//! Later replies: in the order of a pipeline, beside other connections, and when the door ends.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use headgate_server::decide::{Answer, Check, Decide, Later, Reply};
use http::StatusCode;
use support::{Running, WAIT, check, wait_until};
use tokio::sync::oneshot;

/// Hands the test a sender for the status of each reply; a reply whose sender is dropped is 500.
struct Deferred(Sender<oneshot::Sender<u16>>);

impl Decide for Deferred {
    fn decide(&self, _: &Check<'_>) -> Answer {
        let (sender, status_of_reply) = oneshot::channel();
        self.0.send(sender).expect("a test that takes it");
        Answer::Later(Later::new(async move {
            let status = StatusCode::from_u16(status_of_reply.await.unwrap_or(500)).expect("a status");
            Reply { status, content_type: "text/plain", fields: vec![], body: Bytes::new() }
        }))
    }
}

fn start() -> (Running, Receiver<oneshot::Sender<u16>>) {
    let (sender, checks) = channel();
    (support::start_alone(Deferred(sender)), checks)
}

fn next(checks: &Receiver<oneshot::Sender<u16>>) -> oneshot::Sender<u16> {
    checks.recv_timeout(WAIT).expect("a check")
}

#[test]
fn a_pipeline_is_answered_in_its_order() {
    let (running, checks) = start();
    let mut client = running.connect();
    client.send(check("a").repeat(3));
    for status in [200, 429, 200] {
        next(&checks).send(status).expect("an exchange that waits");
        assert_eq!(client.response().status, status);
    }
    assert_eq!(running.count("check", 200), 2);
}

#[test]
fn a_connection_that_waits_holds_up_no_other() {
    let (running, checks) = start();
    let (mut first, mut second) = (running.connect(), running.connect());
    first.send(check("a"));
    let slow = next(&checks);
    second.send(check("b"));
    next(&checks).send(429).expect("an exchange that waits");
    assert_eq!(second.response().status, 429);
    slow.send(200).expect("an exchange that waits");
    assert_eq!(first.response().status, 200);
}

#[test]
fn a_client_that_leaves_is_answered_and_holds_nothing_afterwards() {
    let (running, checks) = start();
    let mut client = running.connect();
    client.send(check("a"));
    let sender = next(&checks);
    drop(client);
    sender.send(200).expect("an exchange that waits");
    running.wait_for_the_end();
    assert_eq!(running.count("check", 200), 1);
}

#[test]
fn a_reply_to_a_cut_off_connection_is_dropped() {
    let (running, checks) = start();
    let mut client = running.connect();
    client.send(check("a"));
    let sender = next(&checks);
    running.door.end(Duration::ZERO);
    wait_until("the exchange ended", || sender.is_closed());
}

#[test]
fn requests_that_wait_when_the_door_ends_are_answered() {
    let (running, checks) = start();
    let mut client = running.connect();
    client.send(check("a"));
    let sender = next(&checks);
    running.door.end(WAIT);
    std::thread::sleep(Duration::from_millis(100)); // the door is ending
    assert!(!running.door.has_ended());
    sender.send(200).expect("an exchange that waits");
    let response = client.response();
    assert_eq!((response.status, response.field("connection")), (200, Some("close")));
    wait_until("the door ended", || running.door.has_ended());
}
