//! The usual calls of the Redis store, many at a time: `headgate.stores.redis.commands`, with one script call a
//! decision.
//!
//! It packs the calls that decide limits on one server, and reads the replies of those that went well. Whatever is
//! unusual (long names, calendars, several servers, errors, replies that are none) is left to Python, before anything
//! is sent, or with the reply. tests/laws/test_native_redis.py holds both together. There is no Python here and no I/O.

#![forbid(unsafe_code)]

pub mod bulks;
pub mod calls;
mod replies;
