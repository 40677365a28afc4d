//! Whole ids of holds at the border, as text and as bytes.

use headgate_core::holding::record::HoldId;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// How a whole id begins.
const PREFIX: &[u8; 2] = b"h1";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A whole id: what a hold is found by, and the shard that it is in.
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
        Ok(Self { digest: HoldId(digest), place })
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
        for (four, three) in text[2..].chunks_exact(4).zip(bytes.chunks_exact_mut(3)) {
            let mut word = 0;
            for letter in four {
                word = word << 6 | u32::from(value_of(*letter)?);
            }
            three.copy_from_slice(&word.to_be_bytes()[1..]);
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&bytes[..16]);
        Some(Self { digest: HoldId(digest), place: u16::from_be_bytes([bytes[16], bytes[17]]) })
    }

    /// As text; `headgate.holding.write_id`.
    pub fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        let mut bytes = [0; 18];
        bytes[..16].copy_from_slice(&self.digest.0);
        bytes[16..].copy_from_slice(&self.place.to_be_bytes());
        let mut text = [0; 26];
        text[..2].copy_from_slice(PREFIX);
        for (three, four) in bytes.chunks_exact(3).zip(text[2..].chunks_exact_mut(4)) {
            let word = u32::from(three[0]) << 16 | u32::from(three[1]) << 8 | u32::from(three[2]);
            for (index, letter) in four.iter_mut().enumerate() {
                *letter = ALPHABET[(word >> (18 - 6 * index)) as usize & 63];
            }
        }
        PyString::new(py, std::str::from_utf8(&text).unwrap_or_default())
    }
}

#[inline]
fn value_of(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}

/// Call a function of `headgate.holding`, which knows all forms and writes all messages.
pub fn call<'py>(value: &Bound<'py, PyAny>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    value.py().import("headgate.holding")?.call_method1(function, (value,))
}
