//! Which checks of gateways and bodies are answered natively, and which are left to Python before anything is charged.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod setup;

use std::thread;

use headgate_checks::figures::Tally;
use headgate_server::decide::Reply;
use setup::{TestChecks, checks_on_table, field, fields};

fn status(fixture: &TestChecks, headers: &[(&str, &str)]) -> Option<u16> {
    fixture.forwarded("default", false, &fields(headers)).map(|reply| reply.status.as_u16())
}

fn body(reply: &Reply) -> &str {
    std::str::from_utf8(&reply.body).expect("text")
}

#[test]
fn a_request_is_counted_as_what_the_gateway_describes() {
    let fixture = checks_on_table(&Tally::new());
    let from = |address: &str, uri: &str| {
        status(&fixture, &[("x-forwarded-for", address), ("x-forwarded-uri", uri), ("x-user", "1")])
    };
    assert_eq!([from("192.0.2.7", "/"), from("192.0.2.7", "/a"), from("192.0.2.7", "/")], [Some(200); 3]);
    assert_eq!(from("192.0.2.7", "/"), Some(429));
    assert_eq!(from("192.0.2.7", "/health"), Some(200));
    assert_eq!([from("192.0.2.8", "/api/1"), from("192.0.2.8", "/api/1")], [Some(200); 2]);
    assert_eq!(from("192.0.2.8", "/api/1"), Some(429));
    assert_eq!(from("192.0.2.8", "/"), Some(200));
}

#[test]
fn a_body_names_the_ruleset_of_each_request() {
    let fixture = checks_on_table(&Tally::new());
    let by_some = br#"{"request": {"path": "/api/1", "client_ip": "192.0.2.8"}, "ruleset": "some"}"#;
    for _ in 0..3 {
        assert!(body(&fixture.described(by_some).expect("an answer")).contains(r#""allowed": true"#));
    }
    let several = br#"{"requests": [{"request": {"client_ip": "192.0.2.8"}, "ruleset": "some"}, {"path": "/health"}]}"#;
    let reply = fixture.described(several).expect("an answer");
    assert_eq!(body(&reply).matches(r#"{"allowed": false"#).count(), 1);
    let before = fixture.table.queries();
    let unknown = br#"{"requests": [{"path": "/health"}, {"request": {}, "ruleset": "none"}]}"#;
    assert!(fixture.described(unknown).is_none() && fixture.table.queries() == before);
}

#[test]
fn a_refusal_reports_which_limit_refused_and_when_to_retry() {
    let fixture = checks_on_table(&Tally::new());
    let headers = fields(&[]);
    for _ in 0..3 {
        let reply = fixture.forwarded("some", false, &headers).expect("an answer");
        assert_eq!((reply.status.as_u16(), reply.body.is_empty()), (200, true));
        assert_eq!(field(&reply, "ratelimit-policy"), Some("\"ip\";q=3;w=3600"));
    }
    let refusal = fixture.forwarded("some", false, &headers).expect("an answer");
    assert_eq!(refusal.status.as_u16(), 429);
    assert_eq!(refusal.content_type, "application/problem+json");
    let names: Vec<&str> = refusal.fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["retry-after", "ratelimit-policy", "ratelimit"]);
    assert!(body(&refusal).contains(r#""violated-policies":["ip"]"#));
    let bare = fixture.forwarded("some", true, &headers).expect("an answer");
    assert_eq!((bare.status.as_u16(), bare.body.is_empty()), (403, true));
    assert_eq!(field(&bare, "x-ratelimit-problem"), Some(body(&refusal)));
}

#[test]
fn a_request_that_lacks_an_identity_is_refused_without_a_query_to_the_table() {
    let fixture = checks_on_table(&Tally::new());
    let refusal = fixture.forwarded("default", false, &fields(&[("x-forwarded-uri", "/api/1")])).expect("an answer");
    assert_eq!(refusal.status.as_u16(), 429);
    assert_eq!(field(&refusal, "retry-after"), None);
    assert!(body(&refusal).contains(r#""violated-policies":["user"]"#));
    assert_eq!(fixture.table.queries(), 0);
}

#[test]
fn what_only_python_answers_is_left_to_it_and_charges_nothing() {
    let fixture = checks_on_table(&Tally::new());
    let unusual: [&[(&str, &str)]; 8] = [
        &[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b")],
        &[("x-forwarded-method", "GET"), ("x-forwarded-method", "POST")],
        &[("x-original-uri", "/a"), ("x-original-uri", "/b")],
        &[("x-forwarded-method", "stra\u{df}e")],
        &[("x_forwarded_for", "192.0.2.7")],
        &[("x_forwarded-uri", "/health")],
        &[("x-forwarded-uri", "/held/1")],
        &[("x-forwarded-uri", "/slow/1")],
    ];
    for headers in unusual {
        assert_eq!(status(&fixture, headers), None, "{headers:?}");
    }
    assert!(fixture.forwarded("unknown", false, &fields(&[])).is_none());
    for body in [
        "",
        "{}",
        "[]",
        r#"{"request": {"path": "api"}}"#,
        r#"{"request": {"path": "/held/1"}}"#,
        r#"{"request": {"path": "/slow/1"}}"#,
        r#"{"request": {}, "cost": -1}"#,
        r#"{"request": {}, "cost": 4503599627370497}"#,
        r#"{"request": {}, "cost": {"usd": "0.1"}}"#,
        r#"{"request": {}, "cost": {"tokens": 1}}"#,
        r#"{"request": {}, "other": 1}"#,
        r#"{"request": {"other": "1"}}"#,
        r#"{"request": {"headers": {"Ä": "1"}}}"#,
        r#"{"request": {}, "requests": [{}]}"#,
        r#"{"requests": []}"#,
        r#"{"requests": [{}], "cost": 1}"#,
        r#"{"requests": [{}, {"path": "/held/1"}]}"#,
        r#"{"requests": [{}, {"request": {}, "cost": 1.5}]}"#,
        r#"{"requests": [{}, {"method": "straße"}]}"#,
    ] {
        assert!(fixture.described(body.as_bytes()).is_none(), "{body}");
    }
    assert_eq!(fixture.table.queries(), 0);
    // Irrelevant names with `_` do no harm, and equal lines are one value.
    let plain = [("x_trace_id", "1"), ("x-forwarded-uri", "/a"), ("x-forwarded-uri", " /a")];
    assert_eq!(status(&fixture, &plain), Some(200));
}

#[test]
fn a_body_is_answered_with_one_decision_or_with_one_for_each_request() {
    let fixture = checks_on_table(&Tally::new());
    let one = fixture.described(br#"{"request": {"client_ip": "192.0.2.7"}, "cost": 2}"#).expect("an answer");
    assert_eq!((one.status.as_u16(), one.content_type), (200, "application/json"));
    assert!(
        body(&one).starts_with(r#"{"allowed": true, "rule": "ip", "limit": 3, "unit": "requests", "remaining": 1,"#)
    );
    let several = br#"{"requests": [
        {"client_ip": "192.0.2.7"}, {"client_ip": "192.0.2.7"}, {"path": "/health"},
        {"request": {"client_ip": "192.0.2.8", "headers": {"X_User": ["1", "1"]}, "path": "/api/1"}, "cost": {"requests": 2}},
        {"client_ip": "192.0.2.9", "path": "/slow/1"}
    ]}"#;
    let several = fixture.described(several).expect("an answer");
    let written: serde_json::Value = serde_json::from_slice(&several.body).expect("JSON");
    let decisions = written["decisions"].as_array().expect("decisions");
    let passed: Vec<_> = decisions.iter().map(|decision| decision["allowed"].as_bool()).collect();
    assert_eq!(passed, [Some(true), Some(false), Some(true), Some(true), Some(true)]);
    assert_eq!(decisions[3]["limits"][1]["remaining"], 0);
}

#[test]
fn a_table_that_fails_is_left_to_python_for_a_second() {
    let fixture = checks_on_table(&Tally::new());
    fixture.table.fail_at(0);
    assert_eq!(status(&fixture, &[]), None);
    fixture.table.fail_at(setup::NEVER_FAILS);
    fixture.table.advance(999_999);
    assert_eq!(status(&fixture, &[]), None);
    assert_eq!(fixture.table.queries(), 1);
    fixture.table.advance(1);
    assert_eq!(status(&fixture, &[]), Some(200));
}

#[test]
fn where_the_table_fails_in_a_list_the_charged_requests_are_answered() {
    let fixture = checks_on_table(&Tally::new());
    fixture.table.fail_at(1);
    let reply = fixture.described(br#"{"requests": [{}, {}, {}]}"#).expect("an answer");
    let written: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    let decisions = written["decisions"].as_array().expect("decisions");
    assert_eq!(decisions.len(), 3);
    assert_eq!(decisions[0]["allowed"], true);
    for failed in &decisions[1..] {
        assert_eq!(failed["error"]["status"], 503);
    }
    assert_eq!(fixture.table.queries(), 2, "a table that fails is not queried again");
}

#[test]
fn exactly_the_limit_is_admitted_and_all_is_counted_with_many_threads() {
    let tally = Tally::new();
    let fixture = checks_on_table(&tally);
    let headers = fields(&[("x-forwarded-for", "192.0.2.7")]);
    let passed: usize = thread::scope(|scope| {
        let admitted =
            || (0..50).filter(|_| fixture.forwarded("default", false, &headers).expect("one").status == 200).count();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(admitted)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    assert_eq!(passed, 3);
    let figures = tally.figures();
    let counted: Vec<_> = figures.decisions.iter().map(|((rule, result), count)| (&**rule, *result, *count)).collect();
    assert_eq!(counted, [("ip", "allowed", 3), ("ip", "refused", 397)]);
    assert_eq!(figures.buckets.iter().sum::<u64>(), 400);
    assert!(figures.total_ns > 0);
}

#[test]
fn figures_never_fall_when_a_policy_is_replaced() {
    let tally = Tally::new();
    let old = checks_on_table(&tally);
    assert_eq!(status(&old, &[("x-forwarded-uri", "/health")]), Some(200));
    assert_eq!(status(&old, &[("x-forwarded-uri", "/api/1")]), Some(429));
    let before = tally.figures();
    let new = checks_on_table(&tally);
    drop(old);
    assert_eq!(tally.figures(), before);
    assert_eq!(status(&new, &[("x-forwarded-uri", "/api/1")]), Some(429));
    let after = tally.figures().decisions;
    let count = |rule: &str, result| after.get(&(rule.into(), result)).copied();
    assert_eq!(count("none", "allowed"), Some(1));
    assert_eq!([count("ip", "blocked"), count("user", "refused")], [Some(2); 2]);
}
