//! Clients that speak no TLS, are not admitted, or are slow: each gets an alert and is closed, and no other waits.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

use headgate_server::bounds::Bounds;
use support::certified::*;
use support::frames::hello;
use support::{Client, check, connect, wait_until};

/// An alert, as the first record of a connection (RFC 8446, 5.1).
const ALERT: u8 = 21;

/// What a client receives that sends these bytes, until the connection ends.
fn reply_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut client = connect(address);
    client.send(bytes);
    let mut reply = vec![];
    let _ = client.stream.read_to_end(&mut reply); // it may have been reset after the alert
    reply
}

#[test]
fn a_client_that_speaks_no_tls_gets_an_alert_and_is_closed() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    let others: [&[u8]; 4] = [
        b"GET /check/default HTTP/1.1\r\nhost: a\r\n\r\n",
        &hello(b""),
        &[7; 5000],
        &[0x16, 3, 1, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0],
    ];
    for bytes in others {
        let reply = reply_to(running.address, bytes);
        assert_eq!(reply.first(), Some(&ALERT), "{bytes:?}: {reply:?}");
    }
    running.wait_for_the_end();
    assert_eq!(running.door.figures().no_handshake, 4);
    assert_eq!(running.door.figures().total(), 0);
}

#[test]
fn a_client_that_leaves_before_its_first_byte_is_not_counted_and_one_that_leaves_later_is() {
    let running = start_tls(tls_of(SERVER, None), Bounds::default());
    drop(connect(running.address));
    let mut halfway = connect(running.address);
    let mut hello_bytes = vec![];
    session_of(&config_of(HTTP1)).write_tls(&mut hello_bytes).expect("a hello");
    halfway.send(&hello_bytes[..hello_bytes.len() / 2]).stream.shutdown(Shutdown::Write).expect("half a connection");
    assert!(halfway.has_ended());
    let mut later = connect(running.address);
    later.send(&hello_bytes).stream.shutdown(Shutdown::Write).expect("half a connection");
    let _ = later.stream.read_to_end(&mut vec![]);
    drop((halfway, later));
    running.wait_for_the_end();
    assert_eq!(running.door.figures().no_handshake, 2);
}

#[test]
fn only_clients_with_a_certificate_of_the_authority_are_admitted() {
    let running = start_tls(tls_of(SERVER, Some(CA)), Bounds::default());
    for old_tls in [false, true] {
        let mut known = running.connect_tls(ClientOptions { certificate: Some(CLIENT), old_tls, ..HTTP1 });
        answered(&mut known);
        for (certificate, why) in [(None, "CertificateRequired"), (Some(STRANGER), "UnknownCA")] {
            let mut refused = running.connect_tls(ClientOptions { certificate, old_tls, ..HTTP1 });
            // In TLS 1.3 a client may send before it knows whether it is admitted.
            let error = refused.perform_handshake().err().or_else(|| {
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
    let bounds = Bounds { head: Duration::from_secs(4), ..Bounds::default() };
    let running = start_tls(tls_of(SERVER, None), bounds);
    let mut hello_bytes = vec![];
    session_of(&config_of(HTTP1)).write_tls(&mut hello_bytes).expect("a hello");
    let mut slow: Vec<Client> = (0..300)
        .map(|number| {
            let mut client = connect(running.address);
            client.send(&hello_bytes[..[0, 1, 5, hello_bytes.len() - 1, hello_bytes.len()][number % 5]]);
            client
        })
        .collect();
    for _ in 0..20 {
        answered(&mut running.connect_tls(HTTP1));
    }
    let mut trickles = connect(running.address);
    let mut bytes = hello_bytes.iter();
    while bytes.next().is_some_and(|byte| trickles.stream.write_all(&[*byte]).is_ok()) {
        thread::sleep(Duration::from_millis(50));
    }
    assert!(bytes.len() > 0, "the wait for it had no end");
    for client in &mut slow {
        let _ = client.stream.read_to_end(&mut vec![]);
    }
    running.wait_for_the_end();
    assert_eq!(running.door.figures().expired, 301);
    assert_eq!(running.door.figures().no_handshake, 0);
}

#[test]
fn the_memory_of_unfinished_handshakes_is_bounded() {
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
    let running = start_tls(tls_of(SERVER, None), Bounds { take: Duration::from_secs(4), ..Bounds::default() });
    let mut slow = running.connect_tls(HTTP1);
    slow.send("GET /large?20000000 HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut never = running.connect_tls(HTTP1);
    never.send("GET /large?20000000 HTTP/1.1\r\nhost: a\r\n\r\n");
    for _ in 0..30 {
        slow.exactly(200_000).expect("what is sent");
        thread::sleep(Duration::from_millis(200));
    }
    wait_until("one is cut off", || running.door.figures().expired == 1);
    running.wait_for_open(1);
    slow.exactly(13_000_000).expect("the rest");
}

#[test]
fn a_client_that_keeps_sending_and_reads_nothing_is_cut_off() {
    // TLS buffers each of the short responses completely, also when the socket takes nothing.
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
fn where_there_are_too_many_the_one_that_waits_longest_gives_way() {
    let running = start_tls(tls_of(SERVER, None), Bounds { connections: 3, ..Bounds::default() });
    let mut silent: Vec<Client> = (0..3).map(|_| connect(running.address)).collect();
    running.wait_for_open(3);
    answered(&mut running.connect_tls(HTTP1));
    assert!(silent[0].has_ended());
    assert_eq!(running.door.figures().gave_way, 1);
}
