//! Text as servers pass it to applications: as Python text, as bytes, and percent-encoded where it was decoded.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::gate_subject::ReadError;

/// Text that was sent.
pub enum Text<'py> {
    /// As Python has it.
    Python(Bound<'py, PyString>),
    /// Bytes that are ASCII.
    Bytes(Bound<'py, PyBytes>),
    /// Created here.
    Owned(String),
    /// Known in advance.
    Known(&'static str),
}

impl<'py> Text<'py> {
    /// A text whose class is that of Python itself.
    #[inline]
    pub fn of(value: Bound<'py, PyAny>) -> Result<Self, ReadError> {
        if !value.is_exact_instance_of::<PyString>() {
            return Err(ReadError::NeedsPython);
        }
        value.cast_into::<PyString>().map(Self::Python).map_err(|_| ReadError::NeedsPython)
    }

    /// Bytes as the text that they are in Latin-1, as values of headers are.
    #[inline]
    pub fn of_latin1(value: Bound<'py, PyAny>) -> Result<Self, ReadError> {
        let bytes = exact_bytes(value)?;
        Ok(if bytes.as_bytes().is_ascii() {
            Self::Bytes(bytes)
        } else {
            Self::Owned(bytes.as_bytes().iter().copied().map(char::from).collect())
        })
    }

    /// The text in Rust; one that has no UTF-8 is left to Python.
    #[inline]
    pub fn as_str(&self) -> Result<&str, ReadError> {
        match self {
            Self::Python(text) => text.to_str().map_err(|_| ReadError::NeedsPython),
            Self::Bytes(bytes) => std::str::from_utf8(bytes.as_bytes()).map_err(|_| ReadError::NeedsPython),
            Self::Owned(text) => Ok(text),
            Self::Known(text) => Ok(text),
        }
    }

    /// In upper case, as methods are compared.
    #[inline]
    pub fn in_upper_case(self) -> Result<Self, ReadError> {
        let text = self.as_str()?;
        if !text.is_ascii() {
            return Err(ReadError::NeedsPython); // upper case beyond ASCII is in tables of Unicode
        }
        let has_lower = text.bytes().any(|byte| byte.is_ascii_lowercase());
        Ok(if has_lower { Self::Owned(text.to_ascii_uppercase()) } else { self })
    }
}

/// The lines of a header as they were sent.
pub enum Lines<'py> {
    /// There is none.
    None,
    /// One.
    One(Text<'py>),
    /// Several, and all of them as one list.
    Several(Box<(String, Vec<Text<'py>>)>),
}

impl<'py> Lines<'py> {
    /// One more line.
    pub fn and(self, line: Text<'py>) -> Result<Self, ReadError> {
        let mut lines = match self {
            Self::None => return Ok(Self::One(line)),
            Self::One(first) => vec![first],
            Self::Several(several) => several.1,
        };
        lines.push(line);
        let joined = lines.iter().map(Text::as_str).collect::<Result<Vec<_>, _>>()?.join(", ");
        Ok(Self::Several(Box::new((joined, lines))))
    }
}

/// Bytes whose class is that of Python itself.
#[inline]
pub fn exact_bytes(value: Bound<'_, PyAny>) -> Result<Bound<'_, PyBytes>, ReadError> {
    if !value.is_exact_instance_of::<PyBytes>() {
        return Err(ReadError::NeedsPython);
    }
    value.cast_into::<PyBytes>().map_err(|_| ReadError::NeedsPython)
}

/// A path that a server has decoded, percent-encoded again; `urllib.parse.quote`.
pub fn add_quoted_path(text: &mut String, decoded: impl Iterator<Item = u8>) {
    for byte in decoded {
        if byte.is_ascii_alphanumeric() || b"_.-~/:@!$&'()*+,;=".contains(&byte) {
            text.push(char::from(byte));
        } else {
            add_encoded(text, byte);
        }
    }
}

/// A target as it was sent: bytes that are not ASCII are percent-encoded, as they should be.
pub fn add_target(text: &mut String, sent: impl Iterator<Item = u8>) {
    for byte in sent {
        if byte.is_ascii() {
            text.push(char::from(byte));
        } else {
            add_encoded(text, byte);
        }
    }
}

fn add_encoded(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}
