//! Which requests the door answers, which it refuses, and in which order.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::net::Shutdown;

use headgate_server::bounds::Bounds;
use support::{another_client, check, start};

#[test]
fn exactly_the_limit_passes_on_any_number_of_connections() {
    let running = start(50, Bounds::default());
    let client = another_client();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (mut connection, request) = (running.connect(), check(&client));
                scope.spawn(move || (0..20).map(|_| connection.request(&request).status).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 50);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 110);
    assert_eq!((running.count("check", 200), running.count("check", 429)), (50, 110));
    assert_eq!(running.behind.requests(), 0);
}

#[test]
fn each_route_answers_as_it_should() {
    let running = start(1, Bounds::default());
    let mut connection = running.connect();
    let health = connection.request("GET /healthz HTTP/1.1\r\n\r\n");
    assert_eq!((health.status, health.text().as_str()), (200, "ok\n"));
    assert_eq!(health.field("content-type"), Some("text/plain; charset=utf-8"));
    let head = connection.send("HEAD /healthz HTTP/1.1\r\n\r\n").try_head();
    assert!(head.contains("content-length: 3\r\n"), "{head}");
    let passed = connection.request(check("a"));
    assert_eq!(
        (passed.status, passed.field("x-remaining"), passed.field("content-length")),
        (200, Some("0"), Some("0"))
    );
    assert_eq!(passed.field("content-type"), None);
    let refused = connection.request(check("a"));
    assert_eq!((refused.status, refused.text().as_str()), (429, "{\"status\":429}"));
    let bare = connection.request("GET /check-403/default/a HTTP/1.1\r\nx-forwarded-for: a\r\n\r\n");
    assert_eq!((bare.status, bare.body.len()), (403, 0));
    let described = connection
        .request("POST /v1/check HTTP/1.1\r\ncontent-length: 13\r\nx-forwarded-for: b\r\n\r\n{\"request\":{}");
    assert_eq!(described.status, 200);
    assert_eq!(running.behind.requests(), 0);
    let unknown = connection.request("GET /check/other HTTP/1.1\r\n\r\n");
    assert!(unknown.text().starts_with("GET /check/other\n"));
    assert_eq!(running.door.figures().left_to_python, 1);
}

#[test]
fn pipelined_requests_are_answered_in_order_and_what_is_wrong_after_them() {
    let running = start(3, Bounds::default());
    let client = another_client();
    let mut connection = running.connect();
    connection.send(format!("{}GET /seen HTTP/1.1\r\n\r\n{}BAD\r\n\r\n", check(&client), check(&client)));
    assert_eq!(connection.response().field("x-remaining"), Some("2"));
    assert!(connection.response().text().starts_with("GET /seen\n"));
    assert_eq!(connection.response().field("x-remaining"), Some("1"));
    let refused = connection.response();
    assert_eq!((refused.status, refused.field("connection")), (400, Some("close")));
    assert!(connection.has_ended());
}

#[test]
fn heads_of_many_fields_are_answered_among_others_in_their_order() {
    let running = start(100, Bounds::default());
    let with =
        |line: &str, fields: usize, rest: &str| format!("{line} HTTP/1.1\r\n{}{rest}", "x: a\r\n".repeat(fields));
    for before in [0, 1, 3] {
        let client = another_client();
        let (few, by) = (check(&client), format!("x-forwarded-for: {client}\r\n\r\n"));
        let mut connection = running.connect();
        connection.send(few.repeat(before));
        connection.send(with("GET /check/default/a", 100, &by)); // one more than there is room for at first
        let body = format!("content-length: 13\r\n{by}{{\"request\":{{}}");
        connection.send(with("POST /v1/check", 200, &body)).send(&few).send(with("GET /check/default/a", 255, &by));
        for left in (0..before + 4).map(|number| 99 - number) {
            assert_eq!(connection.response().field("x-remaining"), Some(&*left.to_string()));
        }
        connection.send(with("GET /check/default/a", 256, &by));
        assert_eq!(connection.response().status, 431);
        assert!(connection.has_ended());
    }
    let (client, mut connection) = (another_client(), running.connect());
    let (few, by) = (check(&client), format!("x-forwarded-for: {client}\r\n\r\n"));
    let wide = with("GET /check/default/a", 150, &by);
    connection.send(format!("{few}{few}{wide}{few}{wide}")); // at once: the wide head waits for those before it
    for left in ["99", "98", "97", "96", "95"] {
        assert_eq!(connection.response().field("x-remaining"), Some(left));
    }
    let mut connection = running.connect();
    connection.send(with("POST /check/default/a", 99, "expect: 100-continue\r\ncontent-length: 3\r\n\r\n"));
    let answered = connection.response();
    assert_eq!((answered.status, answered.field("connection")), (200, Some("close")));
    let mut connection = running.connect();
    connection.send(with("GET /check/default/a", 150, "\r\n"));
    connection.stream.shutdown(Shutdown::Write).expect("half a connection");
    assert_eq!(connection.response().status, 200);
    assert!(connection.has_ended());
    let mut connection = running.connect();
    connection.send(with("GET /check/default/a", 150, "connection: close\r\n\r\n")).send(check("b"));
    assert_eq!(connection.response().field("connection"), Some("close"));
    assert!(connection.has_ended());
}

#[test]
fn a_body_ends_where_it_says_and_the_next_request_begins_there() {
    let running = start(100, Bounds::default());
    let client = another_client();
    for body in [
        "content-length: 5\r\n\r\nGET /".to_owned(),
        "transfer-encoding: chunked\r\n\r\n5;x=\"GET /\"\r\nGET /\r\n0\r\nGET: /\r\n\r\n".to_owned(),
        format!("content-length: {}\r\n\r\n{}", 200_000, "GET /\r\n\r\n ".repeat(20_000)),
    ] {
        for path in ["/check/default", "/v1/check", "/seen"] {
            let mut connection = running.connect();
            connection.send(format!("POST {path} HTTP/1.1\r\n{body}")).send(check(&client));
            assert_eq!(connection.response().status, 200, "{path} {}", &body[..40]);
            let next = connection.response();
            assert!(next.field("x-remaining").is_some(), "{path} {}: {}", &body[..40], next.head);
        }
    }
}

#[test]
fn heads_and_bodies_have_bounds() {
    let running = start(100, Bounds::default());
    let target = "a".repeat(17 << 10);
    let field = format!("x: {}\r\n", "a".repeat(1 << 10));
    for (request, status, detail) in [
        (format!("GET /{target} HTTP/1.1\r\n\r\n"), 414, "a request target has at most 16384 bytes"),
        (
            format!("GET / HTTP/1.1\r\n{}\r\n", field.repeat(65)),
            431,
            "the head of a request has at most 65536 bytes in 256 fields",
        ),
        (
            format!("GET / HTTP/1.1\r\n{}\r\n", "x: a\r\n".repeat(257)),
            431,
            "the head of a request has at most 65536 bytes in 256 fields",
        ),
        (
            "POST /v1/check HTTP/1.1\r\ncontent-length: 1048577\r\n\r\n".to_owned(),
            413,
            "a body has at most 1048576 bytes",
        ),
        (
            format!("POST /v1/check HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n100001\r\n{}", "a".repeat(0x10_0001)),
            413,
            "a body has at most 1048576 bytes",
        ),
    ] {
        let mut connection = running.connect();
        let response = connection.request(request);
        assert_eq!(response.status, status);
        assert!(
            response.text().ends_with(&format!(r#""status":{status},"detail":"{detail}"}}"#)),
            "{}",
            response.text()
        );
        assert_eq!(response.field("connection"), Some("close"));
    }
    let mut connection = running.connect();
    let most = "x: a\r\n".repeat(255);
    assert_eq!(connection.request(format!("GET /check/default HTTP/1.1\r\nhost: a\r\n{most}\r\n")).status, 200);
    let body = "a".repeat(1 << 20);
    let large = connection.request(format!("POST /v1/check HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    assert!(large.text().ends_with(&body)); // the decider left it to the Python service
}

#[test]
fn an_unwanted_body_is_discarded_however_large_it_is() {
    let running = start(100, Bounds::default());
    let body = "a".repeat(5 << 20);
    for framed in [
        format!("content-length: {}\r\n\r\n{body}", body.len()),
        format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
    ] {
        let mut connection = running.connect();
        for _ in 0..2 {
            connection.send(format!("POST /check/default HTTP/1.1\r\n{framed}"));
            assert_eq!(connection.response().status, 200);
        }
        connection.send("GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n").send(check("behind the last"));
        let last = connection.response();
        assert_eq!((last.status, last.field("connection")), (200, Some("close")));
        assert!(connection.has_ended());
    }
    assert_eq!(running.connect().request(check("behind the last")).field("x-remaining"), Some("99"));
}

#[test]
fn an_upgrade_is_not_accepted_and_nothing_behind_it_is_read() {
    let running = start(100, Bounds::default());
    let mut connection = running.connect();
    let request = "GET /check/default HTTP/1.1\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n\r\n";
    let response = connection.send(request).send(check("behind")).response();
    assert_eq!((response.status, response.field("connection")), (200, Some("close")));
    assert!(connection.has_ended());
    assert_eq!(running.connect().request(check("behind")).field("x-remaining"), Some("99"));
}

#[test]
fn http_1_0_is_answered_and_stays_open_only_where_it_asks_to() {
    let running = start(100, Bounds::default());
    let mut connection = running.connect();
    let stays = connection.request("GET /healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
    assert_eq!(stays.field("connection"), Some("keep-alive"));
    let last = connection.request("GET /healthz HTTP/1.0\r\n\r\n");
    assert_eq!((last.status, last.field("connection")), (200, Some("close")));
    assert!(connection.has_ended());
    let mut connection = running.connect();
    running.door.announce_end();
    let last = connection.request("GET /healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
    assert!(last.head.contains("connection: close\r\n") && !last.head.contains("keep-alive"), "{}", last.head);
    assert!(connection.has_ended());
}

#[test]
fn a_client_that_has_sent_all_is_still_answered() {
    let running = start(100, Bounds::default());
    for request in [check("a"), "GET /seen HTTP/1.1\r\n\r\n".to_owned()] {
        let mut connection = running.connect();
        connection.send(request);
        connection.stream.shutdown(Shutdown::Write).expect("half a connection");
        assert_eq!(connection.response().status, 200);
        assert!(connection.has_ended());
    }
}

#[test]
fn a_client_cannot_forge_the_fields_of_the_door() {
    let running = start(100, Bounds::default());
    let request = check("a").replace("host: a", "host: a\r\nheadgate-door-peer: 1.2.3.4");
    let response = running.connect().request(request);
    assert_eq!((response.status, response.field("x-peer-field")), (200, None));
}
