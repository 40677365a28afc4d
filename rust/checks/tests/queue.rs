//! Checks that wait for a store: taken together, answered each by its own outcome, bounded.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod setup;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use headgate_checks::figures::Tally;
use headgate_checks::queue::{MOST_LISTS, MOST_UNANSWERED, Outcome, Queue};
use headgate_core::algorithms::transition::Reading;
use headgate_core::table::answer::Answer;
use headgate_server::decide::{self, Reply};
use setup::{fields, late};

fn answer(allowed: bool) -> Outcome {
    let reading = Reading { remaining: 2, retry_after_us: if allowed { 0 } else { 5_000_000 }, ..Reading::default() };
    Outcome::Decided(Answer::of_one(false, reading), "")
}

fn reply(answer: decide::Answer) -> Option<Reply> {
    match answer {
        decide::Answer::Reply(reply) => Some(reply),
        decide::Answer::Pass | decide::Answer::InPieces(_) => None,
        decide::Answer::Later(later) => {
            let mut waiting = later.reply(); // a long one is written in pieces
            (0..10_000).find_map(|_| match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(reply) => Some(reply),
                Poll::Pending => None,
            })
        }
    }
}

/// The answer, which must still be pending.
fn still_waits(answer: decide::Answer) -> decide::Answer {
    let decide::Answer::Later(later) = answer else { panic!("an answer that comes later") };
    let mut waiting = later.reply();
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    decide::Answer::Later(decide::Later::new(waiting))
}

fn queue_with_wakes() -> (Arc<Queue<String>>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    (
        Arc::new(Queue::new(move || {
            counter.fetch_add(1, SeqCst);
        })),
        count,
    )
}

#[test]
fn waiting_checks_are_taken_together_and_each_gets_its_own_outcome() {
    let (queue, wakes) = queue_with_wakes();
    let checks = late(&Tally::new(), Arc::clone(&queue));
    let answers: Vec<_> = (0..3).map(|_| checks.forwarded(&fields(&[("x-user", "a|b")]))).collect();
    assert_eq!(wakes.load(SeqCst), 1);
    let mut batch = queue.take(10).expect("a batch");
    assert_eq!((batch.len(), queue.take(10).is_none()), (3, true));
    let check = batch.check(0).expect("a check");
    assert_eq!((&*check.keys[check.key_of[0]], &check.costs[..]), ("127.0.0.1", &[1][..]));
    assert_eq!(check.bound.query, "[0] ");
    for (number, allowed) in [true, false, true].into_iter().enumerate() {
        batch.settle(number, answer(allowed));
    }
    drop(batch);
    let statuses: Vec<_> = answers.into_iter().map(|answer| reply(answer).expect("a reply").status.as_u16()).collect();
    assert_eq!(statuses, [200, 429, 200]);
}

#[test]
fn the_checks_of_a_body_are_taken_together_in_their_order_for_any_bound() {
    let (queue, _) = queue_with_wakes();
    let checks = late(&Tally::new(), Arc::clone(&queue));
    let body =
        br#"{"requests": [{"path": "/", "client_ip": "10.0.0.1"}, {"path": "/api/1"}, {"client_ip": "10.0.0.2"}]}"#;
    let several = checks.described(body);
    let one = checks.described(br#"{"request": {"client_ip": "10.0.0.3"}, "cost": 2}"#);
    let mut batch = queue.take(1).expect("a batch");
    let keys: Vec<_> = (0..batch.len()).map(|number| batch.check(number).expect("a check").keys[0].clone()).collect();
    assert_eq!(keys.iter().map(|key| &**key).collect::<Vec<_>>(), ["10.0.0.1", "10.0.0.2"]);
    batch.settle(0, answer(true));
    drop(batch);
    let text = String::from_utf8(reply(several).expect("a reply").body.to_vec()).expect("text");
    // The second lacks an identity, which its rule insists on; the outcome of the third is lost.
    let starts: Vec<_> = text.match_indices(r#"{"allowed": "#).map(|(at, _)| &text[at + 12..at + 16]).collect();
    assert_eq!(starts, ["true", "fals"]);
    assert!(text.ends_with(r#""unexpected error: see the log"}}]}"#), "{text}");
    assert_eq!(queue.take(1).expect("a batch").check(0).expect("a check").costs[..], [2]);
    assert!(reply(one).is_some());
}

#[test]
fn checks_that_nothing_waits_for_are_not_taken_and_the_waiting_ones_are_bounded() {
    let (queue, _) = queue_with_wakes();
    let checks = late(&Tally::new(), Arc::clone(&queue));
    let submit = || checks.forwarded(&fields(&[]));
    let answers: Vec<_> = (0..MOST_UNANSWERED).map(|_| submit()).collect();
    assert!(matches!(submit(), decide::Answer::Pass));
    drop(answers);
    assert!(queue.take(10).is_none());
    assert!(matches!(submit(), decide::Answer::Later(_)));
}

#[test]
fn a_batch_comes_after_the_responses_of_the_last_one_unless_many_wait() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (queue, wakes) = queue_with_wakes();
        let checks = late(&Tally::new(), Arc::clone(&queue));
        let submit = || checks.forwarded(&fields(&[]));
        let first = submit();
        tokio::task::yield_now().await;
        let batch = queue.take(10).expect("a batch");
        let others: Vec<_> = (0..3).map(|_| submit()).collect();
        assert!(queue.take(10).is_none(), "a batch is under way");
        drop(batch);
        assert!(queue.take_more(10).is_none() && wakes.load(SeqCst) == 1);
        tokio::task::yield_now().await;
        assert!(reply(first).is_some());
        let more = submit();
        tokio::task::yield_now().await;
        assert_eq!(wakes.load(SeqCst), 2);
        let batch = queue.take(10).expect("a batch");
        assert_eq!(batch.len(), 4);
        let many: Vec<_> = (0..64).map(|_| submit()).collect();
        drop(batch);
        assert_eq!(queue.take_more(100).expect("a batch").len(), 64);
        drop((others, more, many));
    });
}

/// A list of `count` requests, to each of which one limit applies.
fn list(count: usize) -> Vec<u8> {
    format!(r#"{{"requests": [{}]}}"#, vec![r#"{"path": "/", "client_ip": "10.0.0.1"}"#; count].join(", ")).into_bytes()
}

#[test]
fn a_long_list_is_taken_in_pieces_after_all_else_and_answered_as_a_whole() {
    let (queue, _) = queue_with_wakes();
    let checks = late(&Tally::new(), Arc::clone(&queue));
    let (mut several, short) = (checks.described(&list(1000)), checks.described(&list(2)));
    let mut batch = queue.take(1000).expect("a batch");
    assert_eq!(batch.len(), 2 + 500);
    (2..502).for_each(|number| batch.settle(number, answer(number % 3 == 0)));
    let one = checks.forwarded(&fields(&[])); // comes while the batch is under way
    drop(batch);
    assert!(reply(short).is_some());
    several = still_waits(several);
    let mut batch = queue.take_more(1000).or_else(|| queue.take(1000)).expect("a batch");
    assert_eq!(batch.len(), 1 + 500);
    (1..501).for_each(|number| batch.settle(number, answer(number > 400)));
    drop(batch);
    assert!(reply(one).is_some() && queue.take(1000).is_none());
    let text = String::from_utf8(reply(several).expect("a reply").body.to_vec()).expect("text");
    let decided: Vec<_> =
        text.match_indices(r#"{"allowed": "#).map(|(at, _)| &text[at + 12..at + 16] == "true").collect();
    let expected = (2..502).map(|number| number % 3 == 0).chain((1..501).map(|number| number > 400));
    assert_eq!(decided, expected.collect::<Vec<_>>());
}

#[test]
fn a_list_that_nothing_waits_for_ends_and_those_beyond_the_bound_wait_unprepared() {
    let (queue, _) = queue_with_wakes();
    let checks = late(&Tally::new(), Arc::clone(&queue));
    let mut lists: Vec<_> = (0..MOST_LISTS).map(|_| checks.described(&list(600))).collect();
    let decide::Answer::InPieces(next) = checks.described_in_pieces(&list(600)) else { panic!("a long list") };
    let mut next = next.answer();
    let mut poll = || next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    let batch = queue.take(1000).expect("a batch");
    let short = checks.described(&list(32));
    assert!(matches!(short, decide::Answer::Later(_)), "a short one waits for no turn");
    drop(lists.remove(0));
    drop(batch);
    assert!(poll().is_pending(), "what the first had waits to be taken");
    let batch = queue.take(1000).expect("a batch");
    assert_eq!(batch.len(), 32 + 500);
    assert!((0..10_000).any(|_| poll().is_ready()), "the first has gone");
    drop(batch);
    assert_eq!(queue.take(1000).expect("a batch").len(), 100, "the rest of the second");
    drop((lists, short));
}

#[test]
fn what_takes_batches_is_woken_where_the_thread_that_was_to_do_so_has_ended() {
    let (queue, wakes) = queue_with_wakes();
    let checks = late(&Tally::new(), Arc::clone(&queue));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let first = runtime.block_on(async { checks.forwarded(&fields(&[])) });
    assert_eq!(wakes.load(SeqCst), 0);
    drop(runtime);
    assert_eq!(wakes.load(SeqCst), 1);
    let batch = queue.take(10).expect("a batch");
    let second = checks.forwarded(&fields(&[]));
    drop(batch);
    assert!(queue.take_more(10).is_none() && wakes.load(SeqCst) == 2);
    drop(queue.take(10).expect("a batch"));
    assert!(reply(first).is_some() && reply(second).is_some());
}
