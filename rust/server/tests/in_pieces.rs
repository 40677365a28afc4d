//! Checks that are decided in pieces: others are served in between, and one of them is decided at a time.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use headgate_server::decide::{Answer, Check, Decide, InPieces, Pieces, Question, Reply};
use http::StatusCode;
use support::{Running, check, wait_until};

/// Decides a body in as many pieces as it takes until another check has arrived, and then leaves "pass" to Python.
#[derive(Clone, Default)]
struct LongDecider {
    has_other: Arc<AtomicBool>,
    begun: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
}

impl Decide for LongDecider {
    fn decide(&self, check: &Check<'_>) -> Answer {
        let reply = || Reply { status: StatusCode::OK, content_type: "text/plain", fields: vec![], body: Bytes::new() };
        let Question::Described { body } = check.question else {
            self.has_other.store(true, SeqCst);
            return Answer::Reply(reply());
        };
        let (own, body) = (self.clone(), body.clone());
        Answer::InPieces(InPieces::new(async move {
            own.begun.fetch_add(1, SeqCst);
            assert_eq!(own.under_way.fetch_add(1, SeqCst), 0);
            let mut pieces = Pieces::begin();
            while !own.has_other.load(SeqCst) {
                pieces.next().await;
            }
            own.under_way.fetch_sub(1, SeqCst);
            if body == "pass" { Answer::Pass } else { Answer::Reply(reply()) }
        }))
    }
}

fn start() -> (Running, LongDecider) {
    let long = LongDecider::default();
    (support::start_alone(long.clone()), long)
}

fn described(body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn a_check_is_answered_between_the_pieces_of_others_which_take_turns() {
    let (running, long) = start();
    let mut clients: Vec<_> = (0..10).map(|_| running.connect()).collect();
    for client in &mut clients {
        client.send(described("long"));
    }
    wait_until("one has begun", || long.begun.load(SeqCst) > 0);
    let mut other = running.connect();
    other.send(check("a"));
    assert_eq!(other.response().status, 200);
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(long.begun.load(SeqCst), 10);
}

#[test]
fn a_check_that_turns_out_to_be_for_python_is_passed_on() {
    let (running, long) = start();
    long.has_other.store(true, SeqCst);
    let mut client = running.connect();
    client.send(described("pass"));
    assert_eq!(client.response().field("x-behind"), Some("1"));
    assert_eq!(running.door.figures().left_to_python, 1);
}
