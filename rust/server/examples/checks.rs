//! A door that answers `/check/default` from a table, one limit for each client, to measure the door alone.
//!
//! `cargo run --release --package headgate-server --example checks -- THREADS SOCKETS` prints its address, and ends
//! with its standard input. With several sockets the system spreads the connections over the threads.

#![allow(clippy::expect_used)] // a tool for measuring

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use bytes::Bytes;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds as Capacity;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::table::Table;
use headgate_core::table::answer::{Check as TableCheck, Mode, OnFull};
use headgate_server::bounds::Bounds;
use headgate_server::decide::{Answer, Check, Decide, Reply};
use headgate_server::door::{Door, Options};
use http::{HeaderName, HeaderValue, StatusCode};

const HOUR_US: i64 = 3_600_000_000;
const NOW_US: i64 = 1_800_000_000_000_000;
const HIT: Mode = Mode { commit: true, max_delay_us: None };

struct Counting {
    table: Table<ProcessStorage>,
    limit: Arc<Registered>,
}

impl Decide for Counting {
    fn decide(&self, check: &Check<'_>) -> Answer {
        let key = self.table.seed().text(check.peer.as_bytes());
        let check = TableCheck { limit: &self.limit, key, cost: 1, shadow: false };
        let Ok(answer) = self.table.apply(&[check], NOW_US, HIT) else {
            return Answer::Pass;
        };
        let left = format!("\"all\";r={};t=3600", answer.readings.all()[0].remaining);
        let policy = HeaderValue::from_static("\"all\";q=1000000000;w=3600");
        let fields = vec![
            (HeaderName::from_static("ratelimit-policy"), policy),
            (HeaderName::from_static("ratelimit"), HeaderValue::try_from(left).expect("text")),
        ];
        let status = if answer.allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
        Answer::Reply(Reply { status, content_type: "text/plain", fields, body: Bytes::new() })
    }
}

fn main() -> io::Result<()> {
    let mut numbers = std::env::args().skip(1).filter_map(|number| number.parse().ok());
    let (threads, sockets) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(1));
    let bounds = Capacity { max_keys: 100_000, max_log_blocks: 1000, max_holds: 1000, on_full: OnFull::Forget };
    let table = Table::new([7; 16], ProcessStorage::new(bounds));
    let limit = Limit::new(Algorithm::FixedWindow, 1, 1_000_000_000, HOUR_US, 0).expect("a limit");
    let definition = Definition { scope: "a", text: "a", limit };
    let limit = table.register(definition, NOW_US).expect("a lock").expect("room for a limit");
    let listeners = listen(sockets)?;
    let address = listeners[0].local_addr()?;
    let options =
        Options { python_socket: "/nowhere".into(), threads, cpus: vec![], bounds: Bounds::default(), tls: None };
    let _door = Door::open(listeners, options, Box::new(Counting { table, limit }))?;
    println!("http://{address}/check/default");
    io::stdin().read_to_end(&mut vec![]).map(|_| ())
}

/// `count` sockets on one free port.
fn listen(count: usize) -> io::Result<Vec<TcpListener>> {
    let mut address: SocketAddr = ([127, 0, 0, 1], 0).into();
    let mut listeners = vec![];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _in = runtime.enter();
    for _ in 0..count {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_reuseport(true)?;
        socket.bind(address)?;
        address = socket.local_addr()?;
        listeners.push(socket.listen(1024)?.into_std()?);
    }
    Ok(listeners)
}
