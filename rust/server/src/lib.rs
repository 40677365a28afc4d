//! The front door of the service: HTTP/1.1 and HTTP/2 for checks, on many threads, in front of the Python service.
//!
//! A `Decide` answers checks; everything else is passed on to the Python service on a private socket. hyper and h2
//! implement HTTP, and rustls TLS, if configured. This crate adds what they leave open: which request heads are
//! unambiguous, how large and how slow a client may be, how many there may be, and how the door shuts down. There is no
//! Python here.

#![forbid(unsafe_code)]

mod accepting;
pub mod bounds;
mod connection;
pub mod decide;
mod deciding;
pub mod door;
mod exchange;
mod forward;
mod handshake;
mod hop_by_hop;
mod http1;
mod http2;
mod intake;
#[cfg(fuzzing)]
pub use intake::fuzzing;
mod outgoing;
mod passed_on;
mod private;
mod problems;
mod protocol;
mod registry;
mod room;
pub mod stats;
pub mod tls;
mod transport;
mod uploads;
mod waiting;
mod worker;
