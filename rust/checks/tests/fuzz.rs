//! Bodies and header fields that no client sends by accident: nothing panics, and nothing is charged and left to Python.
//!
//! Inputs are made of seeds that are cut, joined and changed by a generator whose failures repeat. `HEADGATE_FUZZ` is how
//! many there are.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

#[path = "../../fuzz/src/bounded.rs"]
mod bounded;
mod fuzzed;
mod setup;

use headgate_checks::figures::Tally;
use headgate_server::decide::Reply;
use http::{HeaderMap, HeaderName, HeaderValue};
use setup::{TestChecks, checks_on_table};

/// A small generator (xorshift64*), so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound.max(1)
    }

    fn one_of<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

const BODIES: [&str; 6] = [
    r#"{"request": {"method": "GET", "path": "/api/1", "headers": {"X-User": "1"}, "client_ip": "192.0.2.7"}}"#,
    r#"{"request": {"path": "/", "host": "a.example"}, "cost": 2}"#,
    r#"{"request": {"headers": {"X-User": ["1", "2"], "x_user": "3"}}, "cost": {"requests": 1}}"#,
    r#"{"requests": [{"path": "/"}, {"request": {"path": "/api/2"}, "cost": 0}, {"path": "/health"}]}"#,
    r#"{"requests": [{"path": "/slow/1"}, {"client_ip": "::1"}]}"#,
    r#"{"requests": [{}, {"path": "/held/1"}]}"#,
];
const PIECES: [&[u8]; 30] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"true",
    b"1",
    b"-1",
    b"1e9",
    b"99999999999999999999",
    b"0.5",
    b"\xff",
    b"\xc3\xa9",
    b"\0",
    b" ",
    b"\"request\"",
    b"\"requests\"",
    b"\"cost\"",
    b"\"headers\"",
    b"\"path\"",
    b"/",
    b"[[[[[[[[",
    b"{\"a\":{\"a\":",
    b"\xef\xbb\xbf",
];
const NAMES: [&str; 12] = [
    "x-forwarded-method",
    "x-forwarded-uri",
    "x-forwarded-host",
    "x-forwarded-for",
    "x-original-uri",
    "x-original-method",
    "x-user",
    "x_user",
    "x_forwarded_for",
    "host",
    "cookie",
    "x_other",
];
const VALUES: [&[u8]; 20] = [
    b"",
    b"GET",
    b"post",
    b"/",
    b"/api/1",
    b"/api/../health",
    b"/held/1",
    b"/slow/%2e%2e/api",
    b"192.0.2.7",
    b"192.0.2.7, 10.0.0.1",
    b"\xc3\xa9",
    b"\xff\xfe",
    b" a ",
    b"\t",
    b"a,b",
    b"http://h/api/1",
    b"//h/api/1?x=1#y",
    b"1",
    b"%zz",
    b"\"",
];

fn count() -> usize {
    std::env::var("HEADGATE_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000)
}

/// Check the properties of every answer.
fn check(fixture: &TestChecks, decide: impl FnOnce(&TestChecks) -> Option<Reply>) -> Option<Reply> {
    let before = fixture.table.queries();
    let reply = decide(fixture);
    if reply.is_none() {
        assert_eq!(fixture.table.queries(), before, "charged, and left to Python");
    }
    reply
}

#[test]
fn any_body_is_answered_in_json_or_left_to_python_uncharged() {
    let (fixture, mut random) = (checks_on_table(&Tally::new()), Random(0x5EED));
    let (mut answered, mut left) = (0, 0);
    for _ in 0..count() {
        let mut body = random.one_of(&BODIES).as_bytes().to_vec();
        for _ in 0..random.below(3) {
            let (start, removed) = (random.below(body.len()), random.below(4));
            let end = body.len().min(start + removed);
            body.splice(start..end, random.one_of(&PIECES).iter().copied());
        }
        let shown = String::from_utf8_lossy(&body).into_owned();
        let Some(reply) = check(&fixture, |fixture| fixture.described(&body)) else {
            left += 1;
            continue;
        };
        answered += 1;
        let sent: serde_json::Value = serde_json::from_slice(&body).unwrap_or_else(|_| panic!("no JSON: {shown}"));
        let written: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        match sent.get("requests").and_then(|requests| requests.as_array()) {
            Some(requests) => {
                assert_eq!(written["decisions"].as_array().map(Vec::len), Some(requests.len()), "{shown}")
            }
            None => assert!(written["allowed"].is_boolean(), "{shown}"),
        }
    }
    assert!(answered > 0 && left > 0);
}

#[test]
fn any_headers_of_a_gateway_are_answered_or_left_to_python_uncharged() {
    let (fixture, mut random) = (checks_on_table(&Tally::new()), Random(0xF1E1D));
    let (mut answered, mut left) = (0, 0);
    for _ in 0..count() {
        let mut headers = HeaderMap::new();
        for _ in 0..random.below(6) {
            let mut value = random.one_of(&VALUES).to_vec();
            if random.below(3) == 0 {
                value.extend_from_slice(random.one_of(&VALUES));
            }
            let name = HeaderName::from_static(random.one_of(&NAMES));
            headers.append(name, HeaderValue::from_bytes(&value).expect("a value"));
        }
        let (ruleset, bare) = (random.one_of(&["default", "default", "some", "", "\u{e9}"]), random.below(2) == 0);
        let Some(reply) = check(&fixture, |fixture| fixture.forwarded(ruleset, bare, &headers)) else {
            left += 1;
            continue;
        };
        answered += 1;
        let status = reply.status.as_u16();
        assert!(matches!(status, 200 | 403 | 429) && (status != 403 || bare), "{status}: {headers:?}");
        assert_eq!(reply.body.is_empty(), status != 429, "{headers:?}");
    }
    assert!(answered > 0 && left > 0);
}

#[test]
fn two_tables_answer_any_body_alike() {
    bounded::each("described", 1_500, fuzzed::described);
}

#[test]
fn two_tables_answer_any_gateway_alike_and_never_admit_more_than_the_limit() {
    bounded::each("forwarded", 1_500, fuzzed::forwarded);
}
