//! Paths that have one form and stand in it already, as by far most do: found by reading each byte once.

use crate::text::is_longer;

/// Characters of the longest path, with its query, that is brought into its forms.
pub const LONGEST_PATH: usize = 4096;

/// The next byte of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'p> {
    /// A segment.
    Segment(&'p [u8]),
    /// Nothing: the path is plain.
    End,
    /// Something that the path may have other forms for: all of it is to be looked at again.
    NotPlain,
}

/// The segments of a path, as long as it is plain.
#[derive(Clone, Debug)]
pub struct PlainPath<'p> {
    path: &'p str,
    /// Where the next segment begins.
    start: usize,
    /// Whether a `?` ends it, whatever the query is.
    ends_at_query: bool,
}

impl<'p> PlainPath<'p> {
    /// A path that begins with `/`; None for any other.
    #[inline]
    pub fn new(path: &'p str) -> Option<Self> {
        path.starts_with('/').then_some(Self { path, start: 1, ends_at_query: false })
    }

    /// The part before the query of a path that begins with `/`.
    #[inline]
    pub fn before_query(path: &'p str) -> Option<Self> {
        Some(Self { ends_at_query: true, ..Self::new(path)? })
    }

    /// The next segment, if there is one.
    #[inline]
    pub fn step(&mut self) -> Step<'p> {
        let Some(rest) = self.path.as_bytes().get(self.start..) else {
            return Step::End;
        };
        let length = rest.iter().position(|byte| !IS_PLAIN[usize::from(*byte)]).unwrap_or(rest.len());
        let (segment, following) = rest.split_at(length);
        self.start += length + 1;
        match following.first() {
            Some(b'/') | None => {}
            Some(b'?') if self.ends_at_query || self.has_plain_query() => self.start = self.path.len() + 1,
            _ => return Step::NotPlain,
        }
        match segment.last() {
            Some(b'.') => Step::NotPlain,
            Some(_) => Step::Segment(segment),
            // A slash may end a path, and be all of it.
            None if self.start > self.path.len() => Step::End,
            None => Step::NotPlain,
        }
    }

    /// Whether the text after a `?` changes nothing.
    #[cold]
    fn has_plain_query(&self) -> bool {
        !is_longer(self.path, LONGEST_PATH) && !self.path.contains('#')
    }
}

/// Whether a byte has one meaning in a path, whatever is beside it; a `.` has at the end of a segment only.
const IS_PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        plain[byte] = matches!(byte as u8,
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*'
            | b'+' | b',' | b'=' | b':' | b'@' | b'-');
        byte += 1;
    }
    plain
};
