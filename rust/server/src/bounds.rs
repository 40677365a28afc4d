//! Bounds on what clients can make the door hold and wait for: `headgate.service.http.bounds`, plus those of HTTP/2.

use std::time::Duration;

/// Bounds of a door, of all its threads together.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Open connections. Beyond that the one that has waited longest for its client is closed.
    pub connections: usize,
    /// Connections of one address; a gateway has one for all its clients, so usually there is no such bound.
    pub connections_of_client: usize,
    /// Bytes of incomplete requests, and of responses that wait for their clients, on all connections.
    pub held_bytes: usize,
    /// The request line and all header fields, in bytes.
    pub head_bytes: usize,
    /// The target of a request, in bytes.
    pub target_bytes: usize,
    /// Header fields of a request.
    pub fields: usize,
    /// The body of a request, in bytes.
    pub body_bytes: usize,
    /// How long a head may take from its first byte, and a new connection to send that byte.
    pub head: Duration,
    /// How long a body may take; one that arrives steadily may take longer.
    pub body: Duration,
    /// How long a client may take to read what was sent.
    pub take: Duration,
    /// How long a connection stays open between requests.
    pub idle: Duration,
    /// Requests that are at the Python service at one time; others wait their turn. Requests that settle a hold, health
    /// and metrics have as many turns of their own.
    pub forwarded: usize,
    /// Requests that one connection of HTTP/2 may have open.
    pub streams: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 8192,
            connections_of_client: usize::MAX,
            held_bytes: 64 << 20,
            head_bytes: 64 << 10,
            target_bytes: 16 << 10,
            fields: 256,
            body_bytes: 1 << 20,
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            take: Duration::from_secs(30),
            idle: Duration::from_secs(180),
            forwarded: 1024,
            streams: 128,
        }
    }
}
