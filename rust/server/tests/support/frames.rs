//! Frames of HTTP/2 by hand, for clients that behave like no library.

use super::Client;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Settings that leave no room for the body of any response.
pub const NO_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The fields of a request to a short path: `:method`, `:scheme`, `:path`, `:authority`, in HPACK.
pub fn request(method: &str, path: &str) -> Vec<u8> {
    let literal =
        |name: u8, value: &str| [&[name, u8::try_from(value.len()).expect("short")], value.as_bytes()].concat();
    [literal(2, method), vec![0x86], literal(4, path), literal(1, "a")].concat()
}

/// A complete request.
pub fn complete_request(stream: u32, method: &str, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &request(method, path))
}

/// The preface of a connection, with these settings.
pub fn hello(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()
}

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The status of a response, where HPACK has a number for it.
    pub fn status(&self) -> u16 {
        match self.payload.first() {
            Some(0x88) => 200,
            Some(0x8c) => 400,
            other => panic!("another status: {other:?}"),
        }
    }
}

impl Client {
    /// The next frame; None where the connection ends before it.
    pub fn try_frame(&mut self) -> Option<Frame> {
        let head = self.exactly(9)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let payload = self.exactly(number(&head[..3]) as usize)?;
        Some(Frame { kind: head[3], flags: head[4], stream: number(&head[5..]), payload })
    }

    /// The next frames of these kinds, in any order.
    pub fn frames_of<const N: usize>(&mut self, kinds: [u8; N]) -> [Frame; N] {
        let mut seen = kinds.map(|_| None);
        while seen.iter().any(Option::is_none) {
            let frame = self.try_frame().expect("a frame");
            if let Some(at) = kinds.iter().position(|kind| *kind == frame.kind) {
                seen[at].get_or_insert(frame);
            }
        }
        seen.map(|frame| frame.expect("a frame"))
    }

    /// The next frame of a kind.
    pub fn frame_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.try_frame().expect("a frame");
            if frame.kind == kind {
                return frame;
            }
        }
    }
}
