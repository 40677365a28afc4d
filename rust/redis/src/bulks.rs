//! Bulk strings, as most replies of scripts are, among the bytes received on a connection.

/// The most digits of the length of a usual reply.
const MOST_DIGITS: usize = 4;

/// The replies at the beginning of some bytes; the field is what has not been read yet.
pub struct Bulks<'a>(pub &'a [u8]);

/// The next reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Bulk<'a> {
    /// A complete bulk string.
    Complete(&'a [u8]),
    /// The beginning of a bulk string, or nothing.
    Partial,
    /// Anything else.
    Other,
}

impl<'a> Bulks<'a> {
    /// Read the next reply; the bytes stay where it is not a complete bulk string.
    #[allow(clippy::should_implement_trait)] // it does not end
    pub fn next(&mut self) -> Bulk<'a> {
        let mut length = 0;
        for (at, byte) in self.0.iter().enumerate() {
            match byte {
                b'$' if at == 0 => {}
                b'0'..=b'9' if (1..=MOST_DIGITS).contains(&at) => length = 10 * length + usize::from(byte - b'0'),
                b'\r' if at > 1 => return self.text(at, length),
                _ => return Bulk::Other,
            }
        }
        Bulk::Partial
    }

    /// Read the text of this length, whose length line ends at `end`.
    fn text(&mut self, end: usize, length: usize) -> Bulk<'a> {
        let (start, total) = (end + 2, end + 2 + length + 2);
        if self.0.get(end + 1).is_some_and(|byte| *byte != b'\n') {
            return Bulk::Other;
        }
        if self.0.len() < total {
            return Bulk::Partial;
        }
        let (text, left) = self.0.split_at(total);
        if !text.ends_with(b"\r\n") {
            return Bulk::Other;
        }
        self.0 = left;
        Bulk::Complete(&text[start..start + length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_one_after_the_other_up_to_one_that_is_not_whole() {
        let bytes = b"$3\r\na\r\n\r\n$0\r\n\r\n$11\r\n$3\r\nabc\r\n:1\r\n:0\r\n";
        for end in 0..bytes.len() {
            let mut bulks = Bulks(&bytes[..end]);
            for (text, until) in [(&b"a\r\n"[..], 9), (b"", 15), (b"$3\r\nabc\r\n:1", 33)] {
                if end < until {
                    break;
                }
                assert_eq!(bulks.next(), Bulk::Complete(text));
            }
            let left = bulks.0;
            let expected = if left.first() == Some(&b':') { Bulk::Other } else { Bulk::Partial };
            assert_eq!((bulks.next(), bulks.0), (expected, left), "{end}");
        }
    }

    #[test]
    fn everything_else_is_detected_at_once() {
        for bytes in [
            &b":1\r\n"[..],
            b"-NOSCRIPT",
            b"*1",
            b"+OK",
            b"$-1\r\n",
            b"$\r",
            b"$12345",
            b"$1\rx",
            b"$1\r\nabc\r\n",
            b"\r",
        ] {
            assert_eq!(Bulks(bytes).next(), Bulk::Other, "{bytes:?}");
        }
    }
}
