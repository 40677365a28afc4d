//! Whole ids of holds at the border, as text and as bytes.

use headgate_core::holding::record::HoldId;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// How a whole id begins.
const PREFIX: &[u8; 2] = b"h1";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A whole id: the digest that a hold is found by, and the shard that it is in.
#[derive(Clone, Copy)]
pub struct WholeId {
    pub digest: HoldId,
    pub place: u16,
}

impl WholeId {
    /// Read a whole id; `headgate.holding.read_id` has the messages.
    #[inline]
    pub fn read(id: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = id.cast::<PyString>()
            && let Ok(text) = text.to_str()
            && let Some(id) = Self::decode(text.as_bytes())
        {
            return Ok(id);
        }
        let (digest, place): ([u8; 16], u16) = call(id, "read_id")?.extract()?;
        Ok(Self { digest: HoldId::of_bytes(digest), place })
    }

    /// The id of a name within a key.
    pub fn named(key: &Bound<'_, PyAny>, name: &Bound<'_, PyAny>, place: u16) -> PyResult<Self> {
        let text = key.py().import("headgate.keys")?.call_method1("encode_key", (key,))?;
        let id = key.py().import("headgate.holding")?.call_method1("whole_id", (text, name, place))?;
        Self::read(&id)
    }

    #[inline]
    fn decode(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; 18];
        if text.len() != 26 || !text.starts_with(PREFIX) {
            return None;
        }
        let mut any = 0;
        for (four, three) in text[2..].chunks_exact(4).zip(bytes.chunks_exact_mut(3)) {
            let [a, b, c, d] = [0, 1, 2, 3].map(|index| VALUES[usize::from(four[index])]);
            any |= a | b | c | d;
            three.copy_from_slice(&[a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]);
        }
        if any >= 64 {
            return None;
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&bytes[..16]);
        Some(Self { digest: HoldId::of_bytes(digest), place: u16::from_be_bytes([bytes[16], bytes[17]]) })
    }

    /// As text; `headgate.holding.write_id`.
    pub fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        let mut bytes = [0; 18];
        bytes[..16].copy_from_slice(&self.digest.bytes());
        bytes[16..].copy_from_slice(&self.place.to_be_bytes());
        let mut text = [0; 26];
        text[..2].copy_from_slice(PREFIX);
        for (three, four) in bytes.chunks_exact(3).zip(text[2..].chunks_exact_mut(4)) {
            let [a, b, c] = [three[0], three[1], three[2]];
            let values = [a >> 2, (a << 4 | b >> 4) & 63, (b << 2 | c >> 6) & 63, c & 63];
            four.copy_from_slice(&values.map(|value| ALPHABET[usize::from(value)]));
        }
        PyString::new(py, std::str::from_utf8(&text).unwrap_or_default())
    }
}

/// The value of each letter; 64 and more for other bytes.
const VALUES: [u8; 256] = {
    let mut values = [0xff; 256];
    let mut index = 0;
    while index < ALPHABET.len() {
        values[ALPHABET[index] as usize] = index as u8;
        index += 1;
    }
    values
};

/// Call a function of `headgate.holding`, which knows all forms and writes all messages.
pub fn call<'py>(value: &Bound<'py, PyAny>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    value.py().import("headgate.holding")?.call_method1(function, (value,))
}
