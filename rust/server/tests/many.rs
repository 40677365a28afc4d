//! Ten thousand connections, most of them idle, and hundreds of clients of every bad kind at once.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use headgate_server::bounds::Bounds;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::frames::{DATA, END_HEADERS, HEADERS, NO_WINDOW, complete_request, frame, hello, request};
use support::{Client, another_client, check, connect, start, wait_until};

const MANY: usize = 10_000;

/// The descriptors that a process has open beside the connections of this test, those of the other test included.
const OTHERS: u64 = 2048;

/// The variable with the address to which the child process of the test connects.
const ADDRESS: &str = "HEADGATE_TEST_CONNECTS_TO";

/// Let this process and its children open as many connections as the test needs; returns whether the system allows it.
fn may_open_many() -> bool {
    let wanted = MANY as u64 + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < wanted) {
        return false;
    }
    let raised = Rlimit { current: Some(limit.current.unwrap_or(wanted).max(wanted)), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).is_ok()
}

/// The clients, in a process of their own: each is answered once and stays, until a line arrives on standard input.
fn be_the_clients(address: SocketAddr) {
    let mut clients: Vec<Client> = vec![];
    for _ in 0..MANY {
        let mut client = connect(address);
        assert_eq!(client.request(check(&another_client())).status, 200);
        clients.push(client);
    }
    println!("all are open");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    for client in clients.iter_mut().step_by(100) {
        assert_eq!(client.request(check(&another_client())).status, 200);
    }
    println!("some were answered again");
}

fn starts_the_clients(address: SocketAddr) -> Child {
    let itself = std::env::current_exe().expect("this test");
    let mut command = Command::new(itself);
    command.args(["--exact", "ten_thousand_connections_are_served_though_most_are_idle", "--nocapture"]);
    command.env(ADDRESS, address.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("a process")
}

fn wait_for_line(from: &mut impl BufRead, words: &str) {
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert_ne!(from.read_line(&mut line).expect("text"), 0, "the clients ended before {words:?}");
    }
}

#[test]
fn ten_thousand_connections_are_served_though_most_are_idle() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return be_the_clients(address.parse().expect("an address"));
    }
    if !may_open_many() {
        // Cargo shows what a test prints past its capture, so that this does not go unseen.
        let limit = getrlimit(Resource::Nofile);
        writeln!(std::io::stderr(), "SKIPPED: ten thousand connections need more descriptors than {limit:?}")
            .expect("a line");
        return;
    }
    let running = start(10, Bounds { connections: MANY + 100, ..Bounds::default() });
    let mut child = starts_the_clients(running.address);
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    wait_for_line(&mut output, "all are open");
    assert_eq!(running.door.figures().open, MANY as u64);
    for _ in 0..100 {
        running.others_are_answered();
    }
    let passed = running.connect().request("GET /seen HTTP/1.1\r\n\r\n");
    assert_eq!(passed.status, 200);
    assert_eq!(running.door.figures().held, 0);
    child.stdin.take().expect("its input").write_all(b"go on\n").expect("it reads");
    wait_for_line(&mut output, "some were answered again");
    assert!(child.wait().expect("it ends").success());
    running.wait_for_the_end();
    assert_eq!(running.door.figures().gave_way, 0);
}

/// One client of each bad kind; the returned ones stay open.
fn bad_clients(address: SocketAddr) -> Vec<Client> {
    let sent: [Vec<u8>; 16] = [
        vec![],
        b"\r\n\r\n".to_vec(),
        b"GET /check/default HTTP/1.1\r\nx".to_vec(),
        b"POST /v1/check HTTP/1.1\r\ncontent-length: 100\r\n\r\nabc".to_vec(),
        b"POST /seen HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab".to_vec(),
        b"POST /seen HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n".to_vec(),
        b"PUT /seen HTTP/1.1\r\ncontent-length: 1000000\r\n\r\nabc".to_vec(),
        b"POST /v1/check HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nx\r\n".to_vec(),
        b"GET /large?100000000 HTTP/1.1\r\n\r\n".to_vec(),
        b"\0\x01\x02\x03\r\n\r\n".to_vec(),
        [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], &[7; 200][..]].concat(), // TLS
        hello(b"")[..20].to_vec(),
        hello(b""),
        [hello(b""), frame(HEADERS, 0, 1, &request("GET", "/seen"))].concat(),
        [hello(b""), frame(HEADERS, END_HEADERS, 1, &request("POST", "/seen")), frame(DATA, 0, 1, b"abc")].concat(),
        [hello(NO_WINDOW), complete_request(1, "GET", "/healthz"), complete_request(3, "GET", "/large?100000")]
            .concat(),
    ];
    let mut clients = vec![];
    for bytes in &sent {
        for end in [None, Some(Shutdown::Write), Some(Shutdown::Both)] {
            let mut client = connect(address);
            client.send(bytes);
            if let Some(how) = end {
                let _ = client.stream.shutdown(how); // it may have been closed already
            }
            clients.push(client);
        }
    }
    clients
}

#[test]
fn hundreds_of_bad_clients_at_once_all_end_in_time_and_stop_no_other() {
    let soon = Duration::from_millis(1500);
    let running = start(1000, Bounds { head: soon, body: soon, take: soon, idle: soon, ..Bounds::default() });
    let mut clients = vec![];
    for _ in 0..10 {
        clients.extend(bad_clients(running.address));
        running.others_are_answered();
    }
    assert_eq!(clients.len(), 480);
    let mut steady = running.connect();
    wait_until("an end of all others", || {
        assert_eq!(steady.request(check("steady")).status, 200);
        std::thread::sleep(Duration::from_millis(50));
        running.door.figures().open == 1
    });
    drop(steady);
    running.wait_for_the_end();
    wait_until("no request behind", || running.behind.waiting() == 0);
}
