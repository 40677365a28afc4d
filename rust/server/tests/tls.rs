//! TLS: what holds of bare connections holds of these, and whoever is no client of the door's is told so and closed.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use headgate_server::bounds::Bounds;
use headgate_server::tls::{Part, Pem, Tls};
use support::certified::*;
use support::frames::{GOAWAY, HEADERS, SETTINGS, hello, whole};
use support::{Client, another_client, check, connect, wait_until};

const HTTP1: Speaks = Speaks { protocol: Some(b"http/1.1"), certificate: None, old_tls: false };
const HTTP2: Speaks = Speaks { protocol: Some(b"h2"), ..HTTP1 };

/// An alert, as the first record of a connection (RFC 8446, 5.1).
const ALERT: u8 = 21;

fn answered(client: &mut Client) {
    assert_eq!(client.ask(check(&another_client())).status, 200);
}

/// What a client gets that sends these bytes, until the connection ends.
fn told(address: std::net::SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut client = connect(address);
    client.send(bytes);
    let mut told = vec![];
    let _ = client.stream.read_to_end(&mut told); // it may have been reset behind what was told
    told
}

#[test]
fn http1_is_spoken_over_each_version_of_tls_with_keys_of_each_kind() {
    for pair in [SERVER, RSA] {
        let running = start_tls(tls_of(pair, None), Bounds::default());
        for speaks in [HTTP1, Speaks { old_tls: true, ..HTTP1 }, Speaks { protocol: None, ..HTTP1 }] {
            let mut client = running.connect_tls(speaks);
            assert_eq!(client.shown(), der_of(pair));
            assert_eq!(client.session.as_ref().expect("TLS").alpn_protocol(), speaks.protocol);
            answered(&mut client);
            let passed = client.ask("GET /seen HTTP/1.1\r\nhost: a\r\n\r\n");
            assert!(passed.text().contains("headgate-door-peer: 127.0.0.1"), "{}", passed.text());
            let large = client.ask("GET /large?3000000 HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(large.body.len(), 3_000_000);
            let body = "x".repeat(100_000);
            let echoed = client.ask(format!("POST /echo HTTP/1.1\r\ncontent-length: 100000\r\n\r\n{body}"));
            assert_eq!(echoed.text(), body);
        }
        running.wait_for_the_end();
        assert_eq!(running.door.figures().no_handshake, 0);
    }
}

#[test]
fn requests_in_a_row_are_answered_in_their_order() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let mut client = running.connect_tls(HTTP1);
    client.send(check("same").repeat(500));
    for number in 1..=500 {
        let left = (1_000_000 - number).to_string();
        assert_eq!(client.response().field("x-remaining"), Some(left.as_str()));
    }
}

#[test]
fn http2_is_what_a_client_gets_that_offers_it() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let mut client = running.connect_tls(HTTP2);
    client.send(hello(b""));
    client.frame_of(SETTINGS);
    for stream in [1, 3, 5] {
        client.send(whole(stream, "GET", "/healthz"));
        let response = client.frame_of(HEADERS);
        assert_eq!((response.stream, response.status()), (stream, 200));
    }
    assert_eq!(client.session.as_ref().expect("TLS").alpn_protocol(), Some(&b"h2"[..]));
    let mut neither = running.connect_tls(Speaks { protocol: Some(b"gopher"), ..HTTP1 });
    let refused = neither.shake_hands().expect_err("no protocol");
    assert!(refused.contains("NoApplicationProtocol"), "{refused}");
}

#[test]
fn a_client_that_speaks_no_tls_is_told_so_and_closed() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let others: [&[u8]; 4] = [
        b"GET /check/default HTTP/1.1\r\nhost: a\r\n\r\n",
        &hello(b""),
        &[7; 5000],
        &[0x16, 3, 1, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0],
    ];
    for bytes in others {
        let told = told(running.address, bytes);
        assert_eq!(told.first(), Some(&ALERT), "{bytes:?}: {told:?}");
    }
    running.wait_for_the_end();
    assert_eq!(running.door.figures().no_handshake, 4);
    assert_eq!(running.door.figures().total(), 0);
}

#[test]
fn one_that_says_nothing_and_leaves_is_not_counted_and_one_that_leaves_in_between_is() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    drop(connect(running.address));
    let mut halfway = connect(running.address);
    let mut begun = vec![];
    session_of(&config_of(HTTP1)).write_tls(&mut begun).expect("a hello");
    halfway.send(&begun[..begun.len() / 2]).stream.shutdown(Shutdown::Write).expect("half a connection");
    assert!(halfway.has_ended());
    let mut later = connect(running.address);
    later.send(&begun).stream.shutdown(Shutdown::Write).expect("half a connection");
    let _ = later.stream.read_to_end(&mut vec![]);
    drop((halfway, later));
    running.wait_for_the_end();
    assert_eq!(running.door.figures().no_handshake, 2);
}

#[test]
fn only_clients_with_a_certificate_of_the_authority_are_let_in() {
    let running = start_tls(tls_of(SERVER, Some(CA)), Bounds::default());
    for old_tls in [false, true] {
        let mut known = running.connect_tls(Speaks { certificate: Some(CLIENT), old_tls, ..HTTP1 });
        answered(&mut known);
        for (certificate, why) in [(None, "CertificateRequired"), (Some(STRANGER), "UnknownCA")] {
            let mut refused = running.connect_tls(Speaks { certificate, old_tls, ..HTTP1 });
            // In TLS 1.3 a client may send before it knows whether it is let in.
            let error = refused.shake_hands().err().or_else(|| {
                let _ = refused.stream.set_read_timeout(Some(support::WAIT));
                refused.read(&mut [0; 1]).err().map(|error| error.to_string())
            });
            let error = error.expect("a refusal");
            let old = if old_tls { "HandshakeFailure" } else { why };
            assert!(error.contains(why) || error.contains(old), "{error}");
        }
    }
    running.wait_for_open(0);
    assert_eq!(running.door.figures().no_handshake, 4);
    assert_eq!(running.count("check", 200), 2);
}

#[test]
fn hundreds_of_slow_handshakes_end_in_their_time_while_others_are_served() {
    let bounds = Bounds { head: Duration::from_secs(2), ..Bounds::default() };
    let running = start_tls(tls_of(SERVER, None), bounds);
    let mut begun = vec![];
    session_of(&config_of(HTTP1)).write_tls(&mut begun).expect("a hello");
    let mut slow: Vec<Client> = (0..300)
        .map(|number| {
            let mut client = connect(running.address);
            client.send(&begun[..[0, 1, 5, begun.len() - 1, begun.len()][number % 5]]);
            client
        })
        .collect();
    for _ in 0..20 {
        answered(&mut running.connect_tls(HTTP1));
    }
    let mut trickles = connect(running.address);
    let mut bytes = begun.iter();
    while bytes.next().is_some_and(|byte| trickles.stream.write_all(&[*byte]).is_ok()) {
        thread::sleep(Duration::from_millis(50));
    }
    assert!(bytes.len() > 0, "it was waited for without an end");
    for client in &mut slow {
        let _ = client.stream.read_to_end(&mut vec![]);
    }
    running.wait_for_the_end();
    assert_eq!(running.door.figures().expired, 301);
    assert_eq!(running.door.figures().no_handshake, 0);
}

#[test]
fn what_unfinished_handshakes_hold_is_bounded() {
    let running = start_tls(tls_of(SERVER, None), Bounds { held_bytes: 400_000, ..Bounds::default() });
    // A hello of 60,000 bytes in records of 10,000, of which the last never comes.
    let record = |payload: &[u8]| [&[0x16, 3, 1, 0x27, 0x10], payload].concat();
    let first = record(&[&[1, 0, 0xea, 0x60, 3, 3], &[7; 9_994][..]].concat());
    let hello = [first, record(&[0; 10_000]).repeat(3)].concat();
    let mut clients: Vec<Client> = vec![];
    for _ in 0..30 {
        let mut client = connect(running.address);
        let _ = client.stream.write_all(&hello);
        clients.push(client);
    }
    wait_until("some give way", || running.door.figures().gave_way >= 15);
    wait_until("no more than may be", || running.door.figures().held <= 400_000);
    answered(&mut running.connect_tls(HTTP1));
    drop(clients);
    running.wait_for_the_end();
}

#[test]
fn half_a_record_is_held_until_it_is_whole() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let mut client = running.connect_tls(HTTP1);
    answered(&mut client);
    let session = client.session.as_mut().expect("TLS");
    session.writer().write_all(check("half").as_bytes()).expect("room");
    let mut record = vec![];
    session.write_tls(&mut record).expect("a record");
    let (one, other) = record.split_at(record.len() / 2);
    client.stream.write_all(one).expect("it is taken");
    wait_until("half a record is held", || running.door.figures().held == one.len() as u64);
    client.stream.write_all(other).expect("it is taken");
    assert_eq!(client.response().status, 200);
    wait_until("nothing is held", || running.door.figures().held == 0);
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_one_that_reads_slowly_is_not() {
    let running = start_tls(tls_of(SERVER, None), Bounds { take: Duration::from_secs(1), ..Bounds::default() });
    let mut slow = running.connect_tls(HTTP1);
    slow.send("GET /large?20000000 HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut never = running.connect_tls(HTTP1);
    never.send("GET /large?20000000 HTTP/1.1\r\nhost: a\r\n\r\n");
    for _ in 0..30 {
        slow.exactly(200_000).expect("what is sent");
        thread::sleep(Duration::from_millis(100));
    }
    wait_until("one is cut off", || running.door.figures().expired == 1);
    running.wait_for_open(1);
    slow.exactly(13_000_000).expect("the rest");
}

#[test]
fn a_client_that_asks_on_and_reads_nothing_is_cut_off() {
    // TLS takes each of the short responses whole, also when the socket takes nothing.
    let running = start_tls(tls_of(SERVER, None), Bounds { take: Duration::from_secs(1), ..Bounds::default() });
    let mut client = running.connect_tls(HTTP1);
    answered(&mut client);
    wait_until("its connection is cut off", || {
        if running.door.figures().expired > 0 {
            return true;
        }
        let session = client.session.as_mut().expect("TLS");
        let request = check("never reads").repeat(400);
        let _ = session.writer().write_all(request.as_bytes());
        let _ = client.stream.set_write_timeout(Some(Duration::from_millis(50)));
        let _ = session.write_tls(&mut client.stream);
        false
    });
    running.wait_for_the_end();
}

#[test]
fn another_certificate_is_shown_to_who_comes_and_who_is_there_stays() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let done = AtomicBool::new(false);
    let mut before = running.connect_tls(HTTP1);
    assert_eq!(before.shown(), der_of(SERVER));
    thread::scope(|scope| {
        let asking: Vec<_> = (0..4)
            .map(|_| {
                let (mut client, done) = (running.connect_tls(HTTP1), &done);
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        answered(&mut client);
                    }
                })
            })
            .collect();
        for pair in [RENEWED, RSA, SERVER, RENEWED] {
            running.door.swap_tls(tls_of(pair, None));
            let so_far = running.count("check", 200);
            wait_until("checks", || running.count("check", 200) > so_far + 50);
            assert_eq!(running.connect_tls(HTTP1).shown(), der_of(pair));
        }
        done.store(true, Ordering::SeqCst);
        for thread in asking {
            thread.join().expect("every check was answered");
        }
    });
    answered(&mut before);
    running.door.swap_tls(tls_of(RENEWED, Some(CA)));
    let mut stranger = running.connect_tls(HTTP1);
    assert!(stranger.shake_hands().is_err() || stranger.read(&mut [0; 1]).is_err());
    answered(&mut before);
}

#[test]
fn a_drain_answers_what_has_begun_and_ends_the_rest_in_words() {
    let mut running = start_tls(tls_of(SERVER, None), Bounds::default());
    let address = running.address;
    let mut idle = running.connect_tls(HTTP1);
    answered(&mut idle);
    let mut second = running.connect_tls(HTTP2);
    second.send(hello(b""));
    second.frame_of(SETTINGS);
    let mut busy = running.connect_tls(HTTP1);
    busy.send("GET /later?1500 HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut begun = running.connect_tls(HTTP1);
    let mut first = vec![];
    begun.session.as_mut().expect("TLS").write_tls(&mut first).expect("a hello");
    begun.stream.write_all(&first).expect("it is taken");
    wait_until("all are open", || running.door.figures().open == 4);
    wait_until("one is busy", || running.behind.requests() == 1);
    let asking = thread::spawn(move || {
        let mut client = connect(address);
        client.session = Some(Box::new(session_of(&config_of(HTTP1))));
        let mut asked = 0;
        loop {
            let response = client.ask(check("everyone"));
            assert_eq!(response.status, 200);
            asked += 1;
            if response.field("connection") == Some("close") {
                return asked;
            }
        }
    });
    wait_until("checks", || running.count("check", 200) > 50);
    running.door.end(Duration::from_secs(20));
    answered(&mut begun);
    assert_eq!(busy.response().status, 200);
    second.frame_of(GOAWAY);
    assert_eq!(idle.read(&mut [0; 1]).expect("an end that is told"), 0);
    assert!(asking.join().expect("every check was answered") > 0);
    drop((idle, second, busy, begun));
    running.door.drain(Duration::from_secs(20)).expect("threads that end");
    assert_eq!(running.door.figures().open, 0);
}

#[test]
fn a_client_that_sends_no_more_is_answered() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    for is_told in [true, false] {
        let mut client = running.connect_tls(HTTP1);
        let session = client.session.as_mut().expect("TLS");
        while session.is_handshaking() {
            session.complete_io(&mut client.stream).expect("a handshake");
        }
        session.set_buffer_limit(None);
        session.writer().write_all(check("leaves").repeat(500).as_bytes()).expect("room");
        if is_told {
            session.send_close_notify();
        }
        while session.wants_write() {
            session.write_tls(&mut client.stream).expect("it is taken");
        }
        client.stream.shutdown(Shutdown::Write).expect("half a connection");
        for _ in 0..500 {
            assert_eq!(client.response().status, 200);
        }
    }
    running.wait_for_the_end();
}

#[test]
fn where_there_are_too_many_the_one_that_waits_longest_gives_way() {
    let running = start_tls(tls_of(SERVER, None), Bounds { connections: 3, ..Bounds::default() });
    let mut silent: Vec<Client> = (0..3).map(|_| connect(running.address)).collect();
    running.wait_for_open(3);
    answered(&mut running.connect_tls(HTTP1));
    assert!(silent[0].has_ended());
    assert_eq!(running.door.figures().gave_way, 1);
}

/// What is said of these texts.
fn why_not(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> (Part, String) {
    let unusable = Tls::new(&Pem { certificate, key, client_ca }).err().expect("nothing that can be used");
    (unusable.part, unusable.why)
}

#[test]
fn texts_that_cannot_be_used_are_told_apart_and_show_no_key() {
    let (certificate, key) = SERVER;
    let cut = &key[..key.len() / 2];
    let garbled = String::from_utf8_lossy(key).replace("\nM", "\n*");
    let no_certificate = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    type Case<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>, Part, &'a str);
    let cases: [Case<'_>; 10] = [
        (b"", key, None, Part::Certificate, "holds no certificate"),
        (key, key, None, Part::Certificate, "holds no certificate"),
        (&certificate[..200], key, None, Part::Certificate, "is broken PEM"),
        (no_certificate, key, None, Part::Certificate, "cannot be read"),
        (certificate, b"", None, Part::Key, "holds no private key"),
        (certificate, cut, None, Part::Key, "is broken PEM"),
        (certificate, garbled.as_bytes(), None, Part::Key, "is broken PEM"),
        (certificate, RENEWED.1, None, Part::Key, "does not belong to the certificate"),
        (certificate, ENCRYPTED_KEY, None, Part::Key, "is encrypted"),
        (certificate, key, Some(b"nothing"), Part::ClientCa, "holds no certificate"),
    ];
    for (certificate, key, client_ca, part, words) in cases {
        let (own, why) = why_not(certificate, key, client_ca);
        assert_eq!(own, part, "{why}");
        assert!(why.contains(words), "{why}");
        let lines = String::from_utf8_lossy(SERVER.1).lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(lines.iter().filter(|line| !line.starts_with('-')).all(|line| !why.contains(&line[..8])), "{why}");
    }
}

#[test]
fn the_time_of_a_certificate_is_read() {
    let (from, until) = tls_of(SERVER, None).validity.expect("times");
    assert!(from.len() == 15 && until.len() == 15 && from.ends_with('Z') && from < until, "{from} {until}");
}
