//! All connections of a door: their bounds, which one gives way, and which has taken too long.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bounds::Bounds;
use crate::connection::{Connection, Signal};
use crate::room::Room;
use crate::waiting::{Overdue, Waits};

/// How many connections above the bound get a refusal; further ones are closed without a response.
const MOST_REFUSED: usize = 64;

/// Whether a new connection may stay.
pub enum Admission {
    Admitted(Arc<Connection>),
    /// It gets a refusal: there are too many.
    Refused(Arc<Connection>),
    /// There is no room even for a refusal.
    Dropped,
}

/// The result of a tick.
#[derive(Default)]
pub struct Ticked {
    pub expired: u64,
    pub idle: u64,
    pub gave_way: u64,
}

struct Open {
    connections: HashMap<u64, Arc<Connection>>,
    of_client: HashMap<IpAddr, usize>,
}

/// All connections, under one lock that is taken when one comes or goes, and once a tick.
pub struct Registry {
    room: Arc<Room>,
    next_id: AtomicU64,
    most: usize,
    most_of_client: usize,
    most_held: usize,
    take: Duration,
    open: Mutex<Open>,
}

impl Registry {
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            room: Arc::new(Room::new()),
            next_id: AtomicU64::new(0),
            most: bounds.connections,
            most_of_client: bounds.connections_of_client,
            most_held: bounds.held_bytes,
            take: bounds.take,
            open: Mutex::new(Open { connections: HashMap::new(), of_client: HashMap::new() }),
        }
    }

    pub fn len(&self) -> usize {
        self.lock().connections.len()
    }

    /// Whether connections that give way or are refused do not end as fast as others arrive.
    pub fn overflows(&self) -> bool {
        self.len() > self.most.saturating_add(MOST_REFUSED / 2)
    }

    /// Bytes of unfinished requests and unread responses, on all connections.
    pub fn held(&self) -> usize {
        self.room.held()
    }

    /// Update the clock, and signal clients that have taken too long and connections that hold too much.
    pub fn tick(&self) -> Ticked {
        let now_ms = self.room.tick();
        let open = self.lock();
        let mut ticked = Ticked::default();
        for connection in open.connections.values() {
            let signal = match connection.waiting.overdue(now_ms) {
                None => continue,
                Some(Overdue::Sending) => Signal::Expire,
                Some(Overdue::Reading | Overdue::Leaving) => Signal::Abort,
            };
            let is_new = !connection.has(signal) && !connection.waiting.waits_for(Waits::Leaving);
            let is_idle = signal == Signal::Expire && connection.waiting.waits_for(Waits::Further);
            let count = if is_idle { &mut ticked.idle } else { &mut ticked.expired };
            *count += u64::from(is_new);
            connection.signal(signal);
        }
        let mut held = self.room.held();
        while held > self.most_held
            && let Some(one) = longest(&open, |one| one.holding_since_ms())
        {
            one.give_way();
            held = held.saturating_sub(one.held());
            ticked.gave_way += 1;
        }
        ticked
    }

    /// Add a connection, if need be in the place of another; returns also whether one gave way.
    pub fn admit(&self, peer: IpAddr) -> (Admission, bool) {
        let id = self.next_id.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection::new(id, peer, Arc::clone(&self.room), self.take));
        let mut open = self.lock();
        let count = open.connections.len();
        if count >= self.most.saturating_add(MOST_REFUSED) {
            return (Admission::Dropped, false);
        }
        let is_of_many = open.of_client.get(&peer).is_some_and(|count| *count >= self.most_of_client);
        let is_full = count >= self.most;
        let gave_way = is_of_many || is_full;
        let may_give_way = |one: &Connection| match !is_of_many || one.peer == peer {
            true => one.waiting_since_ms(),
            false => None,
        };
        let longest = if gave_way { longest(&open, may_give_way) } else { None };
        let has_room = !gave_way || longest.is_some();
        if let Some(one) = longest {
            one.give_way();
        }
        open.connections.insert(id, Arc::clone(&connection));
        *open.of_client.entry(peer).or_insert(0) += 1;
        let admission = if has_room { Admission::Admitted(connection) } else { Admission::Refused(connection) };
        (admission, gave_way && has_room)
    }

    /// Forget a connection that has ended.
    pub fn remove(&self, connection: &Connection) {
        let mut open = self.lock();
        open.connections.remove(&connection.id);
        if let Some(count) = open.of_client.get_mut(&connection.peer) {
            *count -= 1;
            if *count == 0 {
                open.of_client.remove(&connection.peer);
            }
        }
    }

    /// Signal all connections.
    pub fn signal_all(&self, signal: Signal) {
        for connection in self.lock().connections.values() {
            connection.signal(signal);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection with the earliest time, of those that have one.
fn longest(open: &Open, since_ms: impl Fn(&Connection) -> Option<u64>) -> Option<&Arc<Connection>> {
    let waiting = open.connections.values().filter_map(|one| since_ms(one).map(|since_ms| (since_ms, one.id, one)));
    waiting.min_by_key(|(since_ms, id, _)| (*since_ms, *id)).map(|(.., one)| one)
}
