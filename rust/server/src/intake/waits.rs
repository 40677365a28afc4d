//! What a connection waits for, and how it handles signals meanwhile.

use std::io;

use crate::connection::Signal;
use crate::intake::{Intake, Next};
use crate::problems::Refusal;
use crate::waiting::Waits;

impl Intake {
    /// Record what the connection waits for, and since when; further bytes of the same do not reset the time.
    pub(super) fn note_wait(&mut self) {
        let (waits, within) = match &self.next {
            // Trickling empty lines do not extend the time of a head that has begun.
            Next::Head(_) if self.empty > 0 && self.waits_for == Some((Waits::Head, self.number)) => return,
            Next::Frames(frames) if frames.in_fields() => (Waits::Head, Some(self.bounds.head)),
            Next::Head(_) if !self.buffer.is_empty() => (Waits::Head, Some(self.bounds.head)),
            Next::Head(_) if self.number == 0 => (Waits::Request, Some(self.bounds.head)),
            Next::Head(_) | Next::Frames(_) => (Waits::Further, Some(self.bounds.idle)),
            Next::Body { .. } | Next::Chunks(_) => (Waits::Body, None),
            Next::WideHead | Next::Nothing => return,
        };
        if self.waits_for != Some((waits, self.number)) {
            self.connection.waiting.expect(waits, within);
            self.connection.clear_signal(Signal::Expire);
            self.waits_for = Some((waits, self.number));
        }
    }

    /// Handle the signals to the connection, as no more bytes have arrived; returns whether it ends.
    pub(super) fn handle_signals(&mut self) -> io::Result<bool> {
        if self.connection.waiting.answering() > 0 {
            return Ok(false); // it is answered first; the exchange handles a body that is partly received
        }
        let gives_way = self.connection.has(Signal::GiveWay);
        let is_over = gives_way || self.connection.has(Signal::Expire);
        match self.next {
            Next::Head(_) if self.buffer.is_empty() => Ok(is_over || self.connection.has(Signal::Close)),
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
