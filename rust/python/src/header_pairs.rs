//! Header fields as ASGI has them: pairs of bytes, in a list.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// How the name of a field may be spelled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// With `_` for `-`, too.
    Any,
    Plain,
}

/// Whether this is the name of a field, in a spelling.
#[inline]
pub fn is_spelled(name: &[u8], wanted: &[u8], spelling: Spelling) -> bool {
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
    name.len() == wanted.len()
        && (name == wanted || (spelling == Spelling::Any && name.iter().map(plain).eq(wanted.iter().copied())))
}

/// The place of the first field that may be of this name, in any spelling: it is, or it is no plain pair.
///
/// Most fields have other names, so most requests need no more than this.
pub fn first_of_name(fields: &Bound<'_, PyList>, wanted: &[u8]) -> Option<usize> {
    fields.iter().position(|field| !is_of_another_name(&field, wanted))
}

#[inline]
fn is_of_another_name(field: &Bound<'_, PyAny>, wanted: &[u8]) -> bool {
    let Ok(pair) = field.cast_exact::<PyTuple>() else {
        return false;
    };
    let [name, _] = pair.as_slice() else {
        return false;
    };
    name.cast_exact::<PyBytes>().is_ok_and(|name| !is_spelled(name.as_bytes(), wanted, Spelling::Any))
}
