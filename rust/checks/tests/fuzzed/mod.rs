//! Properties that hold for any gateway's headers and any body; the fuzzers of `rust/fuzz` test them, too.

#![allow(dead_code, clippy::expect_used, clippy::panic)] // each target uses some of it; it says so when it fails

use headgate_checks::figures::Tally;
use headgate_server::decide::Reply;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::setup::{TestChecks, checks_on_table};

/// No rule of the policy admits more than this of one key.
const MOST: usize = 3;

/// Check the same on two tables: both answer alike, and a check that is left to Python was not charged.
fn check_twice(question: impl Fn(&TestChecks) -> Option<Reply>) -> Option<Reply> {
    let [one, other] = [checks_on_table(&Tally::new()), checks_on_table(&Tally::new())];
    let (first, same) = (question(&one), question(&other));
    assert_eq!(reply_text(first.as_ref()), reply_text(same.as_ref()), "two answers to one question");
    if first.is_none() {
        assert_eq!(one.table.queries(), 0, "charged, and left to Python");
    }
    // Repeated, it is answered by the same side, and soon refused where it was charged.
    let mut admitted = usize::from(first.as_ref().is_some_and(is_admitted));
    for _ in 0..MOST + 1 {
        let next = question(&one);
        assert_eq!(next.is_none(), first.is_none(), "left to Python at times");
        admitted += usize::from(next.as_ref().is_some_and(is_admitted));
    }
    let charges = first.as_ref().is_some_and(|reply| reply.fields.iter().any(|(name, _)| *name == "ratelimit"));
    assert!(!charges || admitted <= MOST, "more than the limit");
    first
}

fn is_admitted(reply: &Reply) -> bool {
    reply.status.as_u16() == 200
}

fn reply_text(reply: Option<&Reply>) -> Option<String> {
    reply.map(|reply| format!("{} {:?} {:?}", reply.status, reply.fields, reply.body))
}

/// A body that is answered is JSON, and so is the answer, with as many decisions as it has requests.
pub fn described(body: &[u8]) {
    let [one, other] = [checks_on_table(&Tally::new()), checks_on_table(&Tally::new())];
    let (first, same) = (one.described(body), other.described(body));
    assert_eq!(reply_text(first.as_ref()), reply_text(same.as_ref()), "two answers to one question");
    let Some(reply) = first else {
        assert_eq!(one.table.queries(), 0, "charged, and left to Python");
        return;
    };
    let sent: serde_json::Value = serde_json::from_slice(body).expect("what is answered is JSON");
    let read: serde_json::Value = serde_json::from_slice(&reply.body).expect("an answer is JSON");
    match sent.get("request").is_none().then(|| sent["requests"].as_array()).flatten() {
        Some(requests) => assert_eq!(read["decisions"].as_array().map(Vec::len), Some(requests.len())),
        None => assert!(read["allowed"].is_boolean()),
    }
}

/// The headers of a gateway: lines of `name: value`, behind a `*` where the answer has no body.
pub fn forwarded(sent: &[u8]) {
    let (is_bare, lines) = sent.strip_prefix(b"*").map_or((false, sent), |lines| (true, lines));
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n').take(64) {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
        let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
            headers.append(name, value);
        }
    }
    for ruleset in ["default", "some"] {
        let Some(reply) = check_twice(|fixture| fixture.forwarded(ruleset, is_bare, &headers)) else {
            continue;
        };
        let status = reply.status.as_u16();
        assert!(matches!(status, 200 | 403 | 429) && (status != 403 || is_bare), "{status}: {headers:?}");
        assert_eq!(reply.body.is_empty(), status != 429, "{headers:?}");
    }
}
