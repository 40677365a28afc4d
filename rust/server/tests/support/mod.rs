//! A door on real sockets, a decider that counts on a real table, and a service behind the door.

#![allow(dead_code, clippy::expect_used, clippy::panic)] // each test uses a part; a test says so when it fails

pub mod behind;
pub mod certified;
pub mod frames;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds as Capacity;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::table;
use headgate_core::table::answer::{Check as TableCheck, Mode, OnFull};
use headgate_server::bounds::Bounds;
use headgate_server::decide::{Answer, Check, Decide, Question, Reply};
use headgate_server::door::{Door, Options};
use headgate_server::tls::Tls;
use http::{HeaderName, HeaderValue, StatusCode};
use tokio_rustls::rustls::{ClientConnection, Stream};

use self::behind::Backend;

const HOUR_US: i64 = 3_600_000_000;
const NOW_US: i64 = 1_800_000_000_000_000;
pub const WAIT: Duration = Duration::from_secs(20);

/// A quota of requests of each client an hour; the client is what X-Forwarded-For says, else the peer.
pub struct Counting {
    table: Arc<table::Table<ProcessStorage>>,
    limit: Arc<Registered>,
    /// Sent with each answer, to identify the decider.
    pub name: &'static str,
}

impl Counting {
    pub fn new(quota: i64, name: &'static str) -> Self {
        let bounds = Capacity { max_keys: 100_000, max_log_blocks: 1000, max_holds: 1000, on_full: OnFull::Forget };
        let table = table::Table::new([7; 16], ProcessStorage::new(bounds));
        let limit = Limit::new(Algorithm::FixedWindow, 1, quota, HOUR_US, 0).expect("a limit");
        let definition = Definition { scope: "a", text: "a", limit };
        let limit = table.register(definition, NOW_US).expect("a lock").expect("room for a limit");
        Self { table: Arc::new(table), limit, name }
    }

    /// Another decider on the same table.
    pub fn renamed(&self, name: &'static str) -> Self {
        Self { table: Arc::clone(&self.table), limit: Arc::clone(&self.limit), name }
    }
}

impl Decide for Counting {
    fn decide(&self, check: &Check<'_>) -> Answer {
        let bare = match check.question {
            Question::Forwarded { ruleset: "default", bare, .. } => bare,
            Question::Forwarded { .. } => return Answer::Pass,
            Question::Described { body } if body.starts_with(b"{\"request\"") => false,
            Question::Described { .. } => return Answer::Pass,
        };
        let headers = check.headers;
        let client = headers.get("x-forwarded-for").map(|value| value.as_bytes().to_vec());
        let client = client.unwrap_or_else(|| check.peer.as_bytes().to_vec());
        let check = TableCheck { limit: &self.limit, key: self.table.seed().text(&client), cost: 1, shadow: false };
        let answer = self.table.apply(&[check], NOW_US, Mode { commit: true, max_delay_us: None }).expect("a lock");
        let remaining = answer.readings.all()[0].remaining;
        let mut fields = vec![
            (HeaderName::from_static("x-remaining"), HeaderValue::from(remaining)),
            (HeaderName::from_static("x-decider"), HeaderValue::from_static(self.name)),
        ];
        if let Some(peer) = headers.get("headgate-door-peer") {
            fields.push((HeaderName::from_static("x-peer-field"), peer.clone()));
        }
        let status = match (answer.allowed, bare) {
            (true, _) => StatusCode::OK,
            (false, false) => StatusCode::TOO_MANY_REQUESTS,
            (false, true) => StatusCode::FORBIDDEN,
        };
        let body = if answer.allowed || bare { Bytes::new() } else { Bytes::from_static(b"{\"status\":429}") };
        Answer::Reply(Reply { status, content_type: "application/problem+json", fields, body })
    }
}

pub struct Running {
    pub door: Door,
    pub address: SocketAddr,
    pub behind: Backend,
}

/// A door with a service behind it; each client may send `quota` checks.
pub fn start(quota: i64, bounds: Bounds) -> Running {
    start_with(Counting::new(quota, "first"), bounds)
}

pub fn start_with(decider: Counting, bounds: Bounds) -> Running {
    open(TcpListener::bind("127.0.0.1:0").expect("a port"), decider, 2, bounds, None)
}

/// A door of one thread.
pub fn start_alone(decider: impl Decide + 'static) -> Running {
    open(TcpListener::bind("127.0.0.1:0").expect("a port"), decider, 1, Bounds::default(), None)
}

fn open(
    listener: TcpListener,
    decider: impl Decide + 'static,
    threads: usize,
    bounds: Bounds,
    tls: Option<Tls>,
) -> Running {
    let address = listener.local_addr().expect("an address");
    let behind = Backend::start();
    let options = Options { python_socket: behind.socket.clone(), threads, cpus: vec![], bounds, tls };
    let door = Door::open(vec![listener], options, Box::new(decider)).expect("a door");
    Running { door, address, behind }
}

impl Running {
    pub fn connect(&self) -> Client {
        connect(self.address)
    }

    /// The responses of a route with a status.
    pub fn count(&self, route: &str, status: u16) -> u64 {
        let figures = self.door.figures();
        figures
            .responses
            .iter()
            .filter(|(name, code, _)| *name == route && *code == status)
            .map(|(.., count)| count)
            .sum()
    }

    /// Check that another client is answered.
    pub fn others_are_answered(&self) {
        assert_eq!(self.connect().request(check(&another_client())).status, 200);
    }

    /// Wait until no connection is open, and nothing is held for one that was.
    pub fn wait_for_the_end(&self) {
        self.wait_for_open(0);
        wait_until("nothing held", || self.door.figures().held == 0);
    }

    /// Wait until this many connections are open.
    pub fn wait_for_open(&self, count: u64) {
        wait_until("connections", || self.door.figures().open == count);
    }
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WAIT, "{what}: not within {WAIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn connect(address: SocketAddr) -> Client {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(WAIT)).expect("a timeout");
    stream.set_write_timeout(Some(WAIT)).expect("a timeout");
    stream.set_nodelay(true).expect("no delay");
    Client { stream, session: None, unread: vec![] }
}

/// A client that sends bytes, and reads responses.
pub struct Client {
    pub stream: TcpStream,
    /// The TLS session; None without TLS.
    pub session: Option<Box<ClientConnection>>,
    unread: Vec<u8>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        match &mut self.session {
            Some(session) => Stream::new(session.as_mut(), &mut self.stream).write_all(bytes.as_ref()),
            None => self.stream.write_all(bytes.as_ref()),
        }
        .expect("what is sent is taken");
        self
    }

    pub fn request(&mut self, bytes: impl AsRef<[u8]>) -> Response {
        self.send(bytes).response()
    }

    /// The next response; panics where the connection ends before.
    pub fn response(&mut self) -> Response {
        self.try_response().expect("a response")
    }

    /// The next response, None where the connection ends before it.
    pub fn try_response(&mut self) -> Option<Response> {
        let end = loop {
            if let Some(at) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.more()?;
        };
        let head = String::from_utf8(self.unread.drain(..end).collect()).expect("text");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let mut response = Response { status, head, body: vec![] };
        if response.field("transfer-encoding").is_some() {
            loop {
                let line = self.line()?;
                let size = usize::from_str_radix(&line, 16).expect("a size");
                response.body.extend(self.exactly(size)?);
                self.line()?;
                if size == 0 {
                    return Some(response);
                }
            }
        }
        let length = response.field("content-length").map_or(0, |length| length.parse().expect("a length"));
        response.body = self.exactly(length)?;
        Some(response)
    }

    /// The head of the next response, which has no body.
    pub fn try_head(&mut self) -> String {
        loop {
            if let Some(at) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                return String::from_utf8(self.unread.drain(..at + 4).collect()).expect("text");
            }
            self.more().expect("a head");
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..at + 2).take(at).collect();
                return Some(String::from_utf8(line).expect("text"));
            }
            self.more()?;
        }
    }

    pub fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.unread.len() < count {
            self.more()?;
        }
        Some(self.unread.drain(..count).collect())
    }

    fn more(&mut self) -> Option<()> {
        let mut bytes = [0; 16 << 10];
        match self.read(&mut bytes) {
            Ok(0) => None,
            Err(error) => {
                eprintln!("a connection ends: {error}");
                None
            }
            Ok(count) => {
                self.unread.extend_from_slice(&bytes[..count]);
                Some(())
            }
        }
    }

    /// Whether the connection ends without another byte; panics where it does neither in time.
    pub fn has_ended(&mut self) -> bool {
        if !self.unread.is_empty() {
            return false;
        }
        match self.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => true,
            Err(error) => panic!("the connection neither ended nor went on: {error}"),
        }
    }
}

/// A check of a client, as a gateway sends it.
pub fn check(client: &str) -> String {
    format!("GET /check/default HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\n\r\n")
}

/// A name for this test's client.
pub fn another_client() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("client-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}
