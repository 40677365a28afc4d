//! Requests that are passed on to the service behind the door: complete, unforged, and no faster than they are read.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::sync::atomic::Ordering;

use headgate_server::bounds::Bounds;
use support::{check, start, wait_until};

#[test]
fn the_service_behind_sees_the_request_and_the_clients_true_address() {
    let running = start(1, Bounds::default());
    let response = running.connect().request(
        "POST /v1/reserve?a=%20b HTTP/1.1\r\nHost: a:1\r\nX-Key: 1\r\nX-Key: 2\r\nconnection: keep-alive, x-key\r\n\
         keep-alive: timeout=5\r\nte: trailers\r\nproxy-authorization: secret\r\nheadgate-door-peer: 8.8.8.8\r\n\
         Headgate-Door-Peer: 9.9.9.9\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\nhello",
    );
    assert_eq!(response.status, 100);
    let mut connection = running.connect();
    let response = connection.request(
        "POST /v1/reserve?a=%20b HTTP/1.1\r\nHost: a:1\r\nX-Key: 1\r\nX-Key: 2\r\nconnection: keep-alive, x-key\r\n\
         keep-alive: timeout=5\r\nte: trailers\r\nproxy-authorization: secret\r\nheadgate-door-peer: 8.8.8.8\r\n\
         Headgate-Door-Peer: 9.9.9.9\r\ncontent-length: 5\r\n\r\nhello",
    );
    assert_eq!(response.status, 200);
    let text = response.text();
    let mut lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.remove(0), "POST /v1/reserve?a=%20b");
    lines.sort_unstable();
    let seen = [
        "",
        "content-length: 5",
        "headgate-door-connection: keep-alive, x-key",
        "headgate-door-peer: 127.0.0.1",
        "hello",
        "host: a:1",
        "keep-alive: timeout=5",
        "proxy-authorization: secret",
        "te: trailers",
        "x-key: 1",
        "x-key: 2",
    ];
    assert_eq!(lines, seen);
    assert_eq!((response.field("x-behind"), response.field("keep-alive")), (Some("1"), None));
    assert_eq!(connection.request(check("a")).status, 200);
}

#[test]
fn large_bodies_pass_both_ways_and_wait_for_a_client_that_reads_slowly() {
    let running = start(1, Bounds::default());
    let size = 64 << 20;
    let mut reader = running.connect();
    reader.send(format!("GET /large?{size} HTTP/1.1\r\n\r\n"));
    // Nothing is read: the service has sent what fits in the buffers on the way.
    let sent = || running.behind.counts.sent.load(Ordering::SeqCst);
    let mut before = u64::MAX;
    while before != sent() {
        before = sent();
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert!(before < size / 2, "{before} bytes went ahead of the client");
    assert_eq!(reader.response().body.len() as u64, size);

    let body = vec![b'y'; 1 << 20];
    let mut writer = running.connect();
    let mut copy = writer.stream.try_clone().expect("a copy");
    let head = format!("POST /echo HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
    let echoed = std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            copy.write_all(head.as_bytes()).expect("a head");
            copy.write_all(&body).expect("a body");
        });
        writer.response()
    });
    assert_eq!(echoed.body, body);
}

#[test]
fn bodies_in_chunks_pass_and_trailers_change_nothing() {
    let running = start(1, Bounds::default());
    let mut connection = running.connect();
    let request =
        "POST /seen HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nx-user: admin\r\n\r\n";
    let text = connection.request(request).text();
    assert!(text.ends_with("\nabcde") && !text.contains("admin"), "{text}");
}

#[test]
fn without_a_service_behind_the_door_checks_are_answered_and_the_rest_is_503() {
    let mut running = start(5, Bounds::default());
    let mut connection = running.connect();
    assert_eq!(connection.request("GET /seen HTTP/1.1\r\n\r\n").status, 200);
    running.behind.stop();
    assert_eq!(connection.request(check("a")).status, 200);
    let response = connection.request("GET /seen HTTP/1.1\r\n\r\n");
    assert_eq!(response.status, 503);
    assert!(response.text().contains("the Python service behind the front door does not answer"));
    assert_eq!(connection.request(check("a")).status, 200);
}

#[test]
fn a_request_without_host_reaches_the_service_without_one() {
    let running = start(1, Bounds::default());
    let text = running.connect().request("GET /seen HTTP/1.1\r\n\r\n").text();
    assert!(text.starts_with("GET /seen\n") && !text.contains("host"), "{text}");
}

#[test]
fn a_body_that_no_route_reads_is_not_passed_on() {
    let running = start(1, Bounds::default());
    let mut connection = running.connect();
    for (line, body) in [
        ("PUT /seen", "content-length: 5\r\n\r\nhello"),
        ("POST /check/other", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let text = connection.request(format!("{line} HTTP/1.1\r\n{body}")).text();
        assert!(text.starts_with(&format!("{line}\n")) && !text.contains("hello"), "{text}");
        assert!(!text.contains("content-length: 5") && !text.contains("transfer-encoding"), "{text}");
    }
    assert_eq!(connection.request(check("a")).status, 200);
}

#[test]
fn a_request_with_an_incomplete_body_takes_no_turn() {
    let running = start(1, Bounds { forwarded: 1, ..Bounds::default() });
    let mut slow: Vec<_> = (0..50).map(|_| running.connect()).collect();
    for client in &mut slow {
        client.send("POST /seen HTTP/1.1\r\ncontent-length: 5\r\n\r\nhel");
    }
    wait_until("bodies", || running.door.figures().held > 50 * 3);
    for _ in 0..20 {
        assert_eq!(running.connect().request("GET /seen HTTP/1.1\r\n\r\n").status, 200);
    }
    for client in &mut slow {
        assert!(client.request("lo").text().ends_with("\nhello"));
    }
}

#[test]
fn requests_that_free_a_place_never_wait_behind_those_that_wait_for_one() {
    let running = start(1, Bounds { forwarded: 1, ..Bounds::default() });
    let mut waiting: Vec<_> = (0..20).map(|_| running.connect()).collect();
    for client in &mut waiting {
        client.send("POST /wait HTTP/1.1\r\ncontent-length: 0\r\n\r\n");
    }
    wait_until("a request behind", || running.behind.waiting() > 0);
    for _ in 0..20 {
        let mut connection = running.connect();
        for path in ["/v1/commit", "/v1/cancel", "/v1/extend"] {
            let response = connection.request(format!("POST {path} HTTP/1.1\r\ncontent-length: 2\r\n\r\n{{}}"));
            assert!(response.text().ends_with("\n{}"), "{}", response.text());
        }
        for path in ["/metrics", "/readyz", "/healthz"] {
            assert_eq!(connection.request(format!("GET {path} HTTP/1.1\r\n\r\n")).status, 200);
        }
    }
    assert_eq!(running.behind.waiting(), 1, "threads share their turns");
}

#[test]
fn the_memory_of_requests_that_wait_for_a_turn_is_bounded() {
    let running = start(1, Bounds { forwarded: 1, held_bytes: 1 << 20, ..Bounds::default() });
    let mut clients: Vec<_> = (0..40).map(|_| running.connect()).collect();
    let body = "a".repeat(64 << 10);
    for client in &mut clients {
        client.send(format!("POST /wait HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    }
    // 16 of them fill it, and as many as there are threads may be read at one time.
    wait_until("refusals", || running.count("other", 503) >= 40 - 16 - 2);
    assert!(running.door.figures().held <= (1 << 20) + 3 * (65 << 10));
    assert_eq!(running.connect().request("POST /v1/commit HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}").status, 200);
    let refused = clients.iter_mut().rev().find_map(|client| {
        client.stream.set_nonblocking(true).expect("a socket");
        client.try_response()
    });
    assert!(refused.expect("a refusal").text().contains("too many requests wait for the Python service; ask again"));
    drop(clients);
    running.wait_for_the_end();
}
