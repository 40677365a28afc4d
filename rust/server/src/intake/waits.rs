//! What a client is waited for, and what is wanted of its connection meanwhile.

use std::io;

use crate::connection::Wish;
use crate::intake::{Intake, Next};
use crate::problems::Refusal;
use crate::waiting::Waits;

impl Intake {
    /// Note what the client is waited for, and since when; whatever else comes of the same does not make it later.
    pub(super) fn note_wait(&mut self) {
        let (waits, within) = match &self.next {
            // Empty lines that trickle make no head later that has begun.
            Next::Head(_) if self.empty > 0 && self.waits_for == Some((Waits::Head, self.number)) => return,
            Next::Frames(frames) if frames.in_fields() => (Waits::Head, Some(self.bounds.head)),
            Next::Head(_) if !self.buffer.is_empty() => (Waits::Head, Some(self.bounds.head)),
            Next::Head(_) if self.number == 0 => (Waits::Request, Some(self.bounds.head)),
            Next::Head(_) | Next::Frames(_) => (Waits::Request, Some(self.bounds.idle)),
            Next::Body { .. } | Next::Chunks(_) => (Waits::Body, None),
            Next::WideHead | Next::Nothing => return,
        };
        if self.waits_for != Some((waits, self.number)) {
            self.connection.waiting.expect(waits, within);
            self.connection.is_done_with(Wish::Expire);
            self.waits_for = Some((waits, self.number));
        }
    }

    /// See to what is wanted of the connection, now that nothing more has come; whether it ends.
    pub(super) fn see_to_wish(&mut self) -> io::Result<bool> {
        if self.connection.waiting.answering() > 0 {
            return Ok(false); // it is answered first; what has come of a body is the exchange's concern
        }
        let gives_way = self.connection.has(Wish::GiveWay);
        let is_over = gives_way || self.connection.has(Wish::Expire);
        match self.next {
            Next::Head(_) if self.buffer.is_empty() => Ok(is_over || self.connection.has(Wish::Close)),
            Next::Head(_) if is_over => {
                self.refuse(if gives_way {
                    Refusal::gave_way()
                } else {
                    Refusal::head_too_slow(self.bounds.head.as_secs_f64())
                });
                Ok(false)
            }
            Next::Body { .. } | Next::Chunks(_) if gives_way => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "another connection needs the place"))
            }
            _ => Ok(false),
        }
    }
}
