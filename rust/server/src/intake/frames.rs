//! Finding the end of HTTP/2 frames (RFC 9113, 4.1), and of the fields of a request, which may span several (4.3).
//!
//! h2 reads the frames. Here they are only followed, so that an incomplete head is bounded in time, and counted, as in
//! HTTP/1.

/// The length of the connection preface (RFC 9113, 3.4).
pub const PREFACE: usize = 24;

const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows the frames of one connection.
#[derive(Clone, Debug)]
pub struct Frames {
    /// The bytes before the first frame that have not arrived.
    preface: usize,
    head: [u8; HEAD],
    /// How much of a frame's head has arrived.
    count: usize,
    /// How much of its payload has not arrived.
    left: usize,
    /// Whether fields go on in the next frame.
    in_fields: bool,
    /// The received bytes of an incomplete frame, or of incomplete fields.
    unfinished: usize,
}

impl Frames {
    /// The frames of a connection that begins with `preface` other bytes.
    pub fn after(preface: usize) -> Self {
        Self { preface, head: [0; HEAD], count: 0, left: 0, in_fields: false, unfinished: 0 }
    }

    /// The received bytes of an incomplete frame, or of incomplete fields.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Whether fields have begun and not ended.
    pub fn in_fields(&self) -> bool {
        self.in_fields || (self.count == HEAD && matches!(self.head[3], HEADERS | CONTINUATION))
    }

    /// Follow received bytes.
    pub fn follow(&mut self, sent: &[u8]) {
        let mut sent = &sent[self.skipped(sent.len())..];
        while !sent.is_empty() {
            if self.count < HEAD {
                let taken = (HEAD - self.count).min(sent.len());
                self.head[self.count..self.count + taken].copy_from_slice(&sent[..taken]);
                self.count += taken;
                self.unfinished += taken;
                sent = &sent[taken..];
                let [high, middle, low, ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
            } else {
                let taken = self.left.min(sent.len());
                self.left -= taken;
                self.unfinished += taken;
                sent = &sent[taken..];
            }
            if self.count == HEAD && self.left == 0 {
                self.end();
            }
        }
    }

    fn skipped(&mut self, count: usize) -> usize {
        let skipped = self.preface.min(count);
        self.preface -= skipped;
        skipped
    }

    /// End a complete frame.
    fn end(&mut self) {
        let (kind, flags) = (self.head[3], self.head[4]);
        self.count = 0;
        self.in_fields = matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS == 0;
        if !self.in_fields {
            self.unfinished = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap_or(u8::MAX);
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// What is unfinished after each byte.
    fn followed(sent: &[u8]) -> Vec<(usize, bool)> {
        let mut frames = Frames::after(3);
        let one = |byte: &u8| {
            frames.follow(&[*byte]);
            (frames.unfinished(), frames.in_fields())
        };
        sent.iter().map(one).collect()
    }

    #[test]
    fn a_frame_is_unfinished_until_its_last_byte() {
        let sent = [&b"PRI"[..], &frame(6, 0, b"12"), &frame(4, 1, b"")].concat();
        let seen: Vec<usize> = followed(&sent).iter().map(|(unfinished, _)| *unfinished).collect();
        assert_eq!(seen, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert!(followed(&sent).iter().all(|(_, in_fields)| !in_fields));
    }

    #[test]
    fn fields_go_on_until_a_frame_says_that_they_end() {
        let sent =
            [&b"PRI"[..], &frame(HEADERS, 1, b"ab"), &frame(CONTINUATION, 0, b"c"), &frame(CONTINUATION, 4, b"")]
                .concat();
        let seen = followed(&sent);
        assert_eq!(seen[11], (9, true)); // the head of the first frame has arrived
        assert_eq!(seen[sent.len() - 2], (11 + 10 + 8, true));
        assert_eq!(seen[sent.len() - 1], (0, false));
    }

    #[test]
    fn however_it_is_cut_it_is_the_same() {
        let sent = [&b"PRI"[..], &frame(HEADERS, 0, b"abc"), &frame(0, 0, &[7; 200]), &frame(9, 4, b"d")].concat();
        for cut in 0..=sent.len() {
            let mut frames = Frames::after(3);
            frames.follow(&sent[..cut]);
            let middle = (frames.unfinished(), frames.in_fields());
            assert_eq!(middle, if cut == 0 { (0, false) } else { followed(&sent)[cut - 1] }, "{cut}");
            frames.follow(&sent[cut..]);
            assert_eq!((frames.unfinished(), frames.in_fields()), (0, false));
        }
    }
}
