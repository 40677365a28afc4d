//! Finding the end of a body in chunks (RFC 9112, 7.1). Its bytes go to hyper unchanged; here they are only followed.
//!
//! Lines end in CR LF, sizes are digits, and extensions and trailers are bounded, so that a body is unambiguous.

use self::Unfollowed::{NoChunks, TooLong};

/// Bytes of extensions and of trailers that one body may have.
pub const MOST_EXTENSIONS: usize = 4096;
pub const MOST_TRAILERS: usize = 8192;
const MOST_DIGITS: u32 = 15;

/// Why chunks are not followed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfollowed {
    /// These bytes are no chunks.
    NoChunks,
    /// They have more extensions or trailers than they may.
    TooLong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size {
        size: u64,
        digits: u32,
    },
    Extension {
        size: u64,
    },
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// In a line of the trailers; `length` counts its bytes.
    Trailer {
        length: usize,
    },
    TrailerEnd {
        length: usize,
    },
    End,
}

/// Follows one body.
#[derive(Clone, Copy, Debug)]
pub struct Chunks {
    state: State,
    extensions: usize,
    trailers: usize,
}

impl Chunks {
    pub fn new() -> Self {
        Self { state: State::Size { size: 0, digits: 0 }, extensions: 0, trailers: 0 }
    }

    pub fn has_ended(&self) -> bool {
        self.state == State::End
    }

    /// How many of these bytes belong to the body.
    pub fn follow(&mut self, sent: &[u8]) -> Result<usize, Unfollowed> {
        let mut at = 0;
        while let (Some(byte), false) = (sent.get(at), self.has_ended()) {
            if let State::Data { left } = self.state {
                let taken = usize::try_from(left).unwrap_or(usize::MAX).min(sent.len() - at);
                at += taken;
                let left = left - taken as u64;
                self.state = if left == 0 { State::DataCr } else { State::Data { left } };
            } else {
                self.state = self.after(*byte)?;
                at += 1;
            }
        }
        Ok(at)
    }

    fn after(&mut self, byte: u8) -> Result<State, Unfollowed> {
        Ok(match (self.state, byte) {
            (State::Size { size, digits }, _) if byte.is_ascii_hexdigit() && digits < MOST_DIGITS => {
                let digit = char::from(byte).to_digit(16).ok_or(NoChunks)?;
                State::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
            }
            (State::Size { size, digits: 1.. }, b'\r') => State::SizeEnd { size },
            (State::Size { size, digits: 1.. }, b';') => State::Extension { size },
            (State::Extension { size }, b'\r') => State::SizeEnd { size },
            (State::Extension { .. }, b'\t' | b' '..=b'~' | 0x80..) if self.extensions == MOST_EXTENSIONS => {
                return Err(TooLong);
            }
            (State::Extension { size }, b'\t' | b' '..=b'~' | 0x80..) => {
                self.extensions += 1;
                State::Extension { size }
            }
            (State::SizeEnd { size: 0 }, b'\n') => State::Trailer { length: 0 },
            (State::SizeEnd { size }, b'\n') => State::Data { left: size },
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size { size: 0, digits: 0 },
            (State::Trailer { length }, b'\r') => State::TrailerEnd { length },
            (State::Trailer { length: 0 }, b' ' | b'\t') => return Err(NoChunks), // a folded line
            (State::Trailer { .. }, b'\t' | b' '..=b'~' | 0x80..) if self.trailers == MOST_TRAILERS => {
                return Err(TooLong);
            }
            (State::Trailer { length }, b'\t' | b' '..=b'~' | 0x80..) => {
                self.trailers += 1;
                State::Trailer { length: length + 1 }
            }
            (State::TrailerEnd { length: 0 }, b'\n') => State::End,
            (State::TrailerEnd { .. }, b'\n') => State::Trailer { length: 0 },
            _ => return Err(NoChunks),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of the body, if it is complete, however it is cut.
    fn end_of(sent: &str) -> Result<Option<usize>, Unfollowed> {
        let mut at_once = Chunks::new();
        let taken = at_once.follow(sent.as_bytes());
        let mut piecewise = Chunks::new();
        let mut sum = Ok(0);
        for byte in sent.as_bytes() {
            sum = sum.and_then(|sum| Ok(sum + piecewise.follow(&[*byte])?));
        }
        assert_eq!(taken, sum, "{sent:?}");
        assert_eq!(at_once.state == State::End, piecewise.state == State::End);
        taken.map(|taken| at_once.has_ended().then_some(taken))
    }

    #[test]
    fn a_body_ends_with_its_last_chunk() {
        assert_eq!(end_of("0\r\n\r\nGET"), Ok(Some(5)));
        assert_eq!(end_of("3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"), Ok(Some(28)));
        assert_eq!(end_of("3;a=b\r\nabc\r\n0;\r\nx: y\r\n\r\nGET"), Ok(Some(24)));
        assert_eq!(end_of("3\r\nabc\r\n0\r\n"), Ok(None));
    }

    #[test]
    fn chunks_that_can_be_read_in_two_ways_are_refused() {
        for sent in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            " 1\r\n",
            "1 \r\n",
            "1\nabc",
            "1\r\nabc",
            "1\r\na\n",
            "1;\n",
            "1;a\0\r\n",
            "0\r\n\n",
            "0\r\n x\r\n",
            "0\r\nx: y\n\r\n",
            "1\rx",
            "0000000000000000\r\n",
            "ffffffffffffffff\r\n",
        ] {
            assert_eq!(end_of(sent), Err(NoChunks), "{sent:?}");
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        assert!(end_of(&format!("1;{}\r\na\r\n0\r\n\r\n", "a".repeat(4096))).is_ok());
        assert_eq!(end_of(&format!("1;{}\r\na\r\n0\r\n\r\n", "a".repeat(4097))), Err(TooLong));
        assert_eq!(end_of(&"1;abcdefgh\r\na\r\n".repeat(513)), Err(TooLong));
        assert_eq!(end_of(&format!("0\r\n{}", "x: y\r\n".repeat(3000))), Err(TooLong));
    }
}
