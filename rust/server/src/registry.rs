//! All connections of a door: how many there may be, which one gives way, and which has taken too long.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::connection::{Connection, Wish};
use crate::room::Room;

/// So many connections above the bound are told so; those above are closed without a word.
const TOLD: usize = 64;

/// Whether a new connection may stay.
pub enum Admission {
    Admitted(Arc<Connection>),
    /// It is told that there are too many.
    Refused(Arc<Connection>),
    /// There is no room to tell it anything.
    Dropped,
}

/// What a tick has found.
#[derive(Default)]
pub struct Ticked {
    pub expired: u64,
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
    open: Mutex<Open>,
}

impl Registry {
    pub fn new(most: usize, most_of_client: usize, most_held: usize) -> Self {
        Self {
            room: Arc::new(Room::new()),
            next_id: AtomicU64::new(0),
            most,
            most_of_client,
            most_held,
            open: Mutex::new(Open { connections: HashMap::new(), of_client: HashMap::new() }),
        }
    }

    pub fn len(&self) -> usize {
        self.lock().connections.len()
    }

    /// Look at the clock, at which clients have taken too long, and at what all hold.
    pub fn tick(&self) -> Ticked {
        let now_ms = self.room.tick();
        let open = self.lock();
        let mut ticked = Ticked::default();
        for connection in open.connections.values().filter(|one| one.is_due(now_ms)) {
            ticked.expired += u64::from(!connection.has(Wish::Expire));
            connection.want(Wish::Expire);
        }
        let mut held = self.room.held();
        while held > self.most_held
            && let Some(one) = longest_waiting(&open, |one| one.held() > 0)
        {
            one.want(Wish::GiveWay);
            held = held.saturating_sub(one.held());
            ticked.gave_way += 1;
        }
        ticked
    }

    /// Add a connection, if need be in the place of another; also says whether one gave way.
    pub fn admit(&self, peer: IpAddr) -> (Admission, bool) {
        let id = self.next_id.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection::new(id, peer, Arc::clone(&self.room)));
        let mut open = self.lock();
        let count = open.connections.len();
        if count >= self.most.saturating_add(TOLD) {
            return (Admission::Dropped, false);
        }
        let is_of_many = open.of_client.get(&peer).is_some_and(|count| *count >= self.most_of_client);
        let is_full = count >= self.most;
        let gave_way = is_of_many || is_full;
        let longest = if gave_way { longest_waiting(&open, |one| !is_of_many || one.peer == peer) } else { None };
        let has_room = !gave_way || longest.is_some();
        if let Some(one) = longest {
            one.want(Wish::GiveWay);
        }
        open.connections.insert(id, Arc::clone(&connection));
        *open.of_client.entry(peer).or_insert(0) += 1;
        let admission = if has_room { Admission::Admitted(connection) } else { Admission::Refused(connection) };
        (admission, gave_way && has_room)
    }

    /// Forget a connection that has ended.
    pub fn remove(&self, connection: &Connection) {
        connection.hold(0);
        let mut open = self.lock();
        open.connections.remove(&connection.id);
        if let Some(count) = open.of_client.get_mut(&connection.peer) {
            *count -= 1;
            if *count == 0 {
                open.of_client.remove(&connection.peer);
            }
        }
    }

    /// Want something of all connections.
    pub fn want_of_all(&self, wish: Wish) {
        for connection in self.lock().connections.values() {
            connection.want(wish);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection that has waited longest for its client, of those that may be.
fn longest_waiting(open: &Open, may: impl Fn(&Connection) -> bool) -> Option<&Arc<Connection>> {
    let waiting = open.connections.values().filter(|one| may(one));
    let since = waiting.filter_map(|one| one.waiting_since_ms().map(|since_ms| (since_ms, one.id, one)));
    since.min_by_key(|(since_ms, id, _)| (*since_ms, *id)).map(|(.., one)| one)
}
