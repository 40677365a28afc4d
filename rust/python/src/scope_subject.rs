//! A request of ASGI as a policy reads it, from its scope; the native twin of `headgate.http.server.asgi_request`.

use std::cell::OnceCell;

use headgate_policy::subject::{Name, Sent, Subject};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::gate_subject::Trouble;
use crate::server_text::{Lines, Text, add_quoted_path, add_target, exact_bytes};
use crate::web_reading::{Reading, UNREAD, WebName, sent};

/// The request of a scope, of which each part is read once, where it is first asked for.
pub struct ScopeSubject<'py, 'gate> {
    scope: &'gate Bound<'py, PyDict>,
    reading: &'gate Reading,
    endpoint: &'gate str,
    method: OnceCell<Text<'py>>,
    path: OnceCell<Text<'py>>,
    host: OnceCell<Lines<'py>>,
    client_ip: OnceCell<Text<'py>>,
    headers: SmallVec<[OnceCell<Lines<'py>>; 4]>,
}

impl<'py, 'gate> ScopeSubject<'py, 'gate> {
    /// The request of a scope, to the endpoint of this template; "" where none is known.
    #[inline]
    pub fn new(scope: &'gate Bound<'py, PyDict>, reading: &'gate Reading, endpoint: &'gate str) -> Self {
        Self {
            scope,
            reading,
            endpoint,
            method: OnceCell::new(),
            path: OnceCell::new(),
            host: OnceCell::new(),
            client_ip: OnceCell::new(),
            headers: reading.names.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    fn target(&self) -> Result<Text<'py>, Trouble> {
        let (py, scope) = (self.scope.py(), self.scope);
        let raw = scope.get_item(intern!(py, "raw_path"))?.filter(|raw| !raw.is_none()).map(exact_bytes).transpose()?;
        let raw = raw.filter(|raw| !raw.as_bytes().is_empty());
        let asked = match self.reading.reads_queries {
            true => scope.get_item(intern!(py, "query_string"))?.filter(|asked| !asked.is_none()),
            false => None,
        };
        let asked = asked.map(exact_bytes).transpose()?.filter(|asked| !asked.as_bytes().is_empty());
        let mut text = String::new();
        match raw {
            Some(raw) if asked.is_none() && raw.as_bytes().is_ascii() => return Ok(Text::Bytes(raw)),
            Some(raw) => add_target(&mut text, raw.as_bytes().iter().copied()),
            None => {
                let path = Text::of(scope.get_item(intern!(py, "path"))?.ok_or(Trouble::Python)?)?;
                add_quoted_path(&mut text, path.as_str()?.bytes());
            }
        }
        if let Some(asked) = asked {
            text.push('?');
            add_target(&mut text, asked.as_bytes().iter().copied());
        }
        Ok(Text::Own(text))
    }

    fn peer(&self) -> Result<Text<'py>, Trouble> {
        let client = self.scope.get_item(intern!(self.scope.py(), "client"))?;
        let peer = match &client {
            Some(client) => match (client.cast::<PyTuple>(), client.cast::<PyList>()) {
                (Ok(pair), _) if !pair.is_empty() => pair.get_item(0)?,
                (_, Ok(pair)) if !pair.is_empty() => pair.get_item(0)?,
                (Err(_), Err(_)) if !client.is_none() => return Err(Trouble::Python),
                _ => return self.reading.peer(Text::Known("")),
            },
            None => return self.reading.peer(Text::Known("")),
        };
        self.reading.peer(Text::of(peer)?)
    }

    /// The lines of a header, and all of them as one list, as `headgate.policy.request.joined` gives it.
    fn lines(&self, name: &WebName) -> Result<Lines<'py>, Trouble> {
        let wanted = name.in_scopes.as_deref().ok_or(Trouble::Python)?;
        match self.found(wanted, Spelling::Any)? {
            Lines::Several(..) if self.reading.is_of_framework => Err(Trouble::Python), // which one is its choice
            Lines::Several(all, lines) => Ok(match self.found(wanted, Spelling::Plain)? {
                Lines::None => Lines::Several(all, lines),
                Lines::One(plain) => Lines::Several(plain.as_str()?.to_owned(), lines),
                Lines::Several(plain, _) => Lines::Several(plain, lines),
            }),
            found => Ok(found),
        }
    }

    /// The lines of a header, found where they are.
    fn found(&self, wanted: &[u8], spelling: Spelling) -> Result<Lines<'py>, Trouble> {
        let headers = self.scope.get_item(intern!(self.scope.py(), "headers"))?.ok_or(Trouble::Python)?;
        let mut found = Lines::None;
        if let Ok(pairs) = headers.cast::<PyList>() {
            for pair in pairs.iter() {
                found = found_in(found, &pair, wanted, spelling)?;
            }
        } else {
            for pair in headers.cast::<PyTuple>().map_err(|_| Trouble::Python)? {
                found = found_in(found, &pair, wanted, spelling)?;
            }
        }
        Ok(found)
    }
}

/// How the name of a field may be spelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// With `_` for `-`, too.
    Any,
    Plain,
}

/// What was found of a header so far, and this field if it is one of that name.
#[inline]
fn found_in<'py>(
    found: Lines<'py>,
    pair: &Bound<'py, PyAny>,
    wanted: &[u8],
    spelling: Spelling,
) -> Result<Lines<'py>, Trouble> {
    if let Ok(pair) = pair.cast::<PyTuple>() {
        let [name, value] = pair.as_slice() else {
            return Err(Trouble::Python);
        };
        return match is_spelled(name, wanted, spelling)? {
            true => found.and(Text::of_latin1(value.clone())?),
            false => Ok(found),
        };
    }
    let pair = pair.cast::<PyList>().map_err(|_| Trouble::Python)?;
    if pair.len() != 2 {
        return Err(Trouble::Python);
    }
    match is_spelled(&pair.get_item(0)?, wanted, spelling)? {
        true => found.and(Text::of_latin1(pair.get_item(1)?)?),
        false => Ok(found),
    }
}

/// Whether this is a name of a field, in a spelling.
#[inline]
fn is_spelled(name: &Bound<'_, PyAny>, wanted: &[u8], spelling: Spelling) -> Result<bool, Trouble> {
    let name = name.cast_exact::<PyBytes>().map_err(|_| Trouble::Python)?.as_bytes();
    if name.len() != wanted.len() {
        return Ok(false);
    }
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
    Ok(name == wanted || (spelling == Spelling::Any && name.iter().map(plain).eq(wanted.iter().copied())))
}

impl Subject for ScopeSubject<'_, '_> {
    type Error = Trouble;

    fn method(&self) -> Result<&str, Trouble> {
        let name = intern!(self.scope.py(), "method");
        let read = || self.scope.get_item(name)?.map_or(Ok(Text::Known("GET")), Text::of)?.in_upper_case();
        sent(&self.method, read)?.as_str()
    }

    #[inline]
    fn path(&self) -> Result<&str, Trouble> {
        if !self.reading.reads_paths {
            return Ok(UNREAD);
        }
        sent(&self.path, || self.target())?.as_str()
    }

    fn host(&self) -> Result<&str, Trouble> {
        match sent(&self.host, || self.lines(&self.reading.host))? {
            Lines::None => Ok(""),
            Lines::One(line) => line.as_str(),
            Lines::Several(joined, _) => Ok(joined),
        }
    }

    #[inline]
    fn client_ip(&self) -> Result<&str, Trouble> {
        sent(&self.client_ip, || self.peer())?.as_str()
    }

    fn endpoint(&self) -> Result<&str, Trouble> {
        Ok(self.endpoint)
    }

    #[inline]
    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, Trouble> {
        Ok(match sent(&self.headers[name.number], || self.lines(&self.reading.names[name.number]))? {
            Lines::None => None,
            Lines::One(line) => Some(Sent::One(line.as_str()?)),
            Lines::Several(joined, lines) => {
                Some(Sent::Several { joined, lines: lines.iter().map(Text::as_str).collect::<Result<_, _>>()? })
            }
        })
    }

    fn attribute(&self, _: &str) -> Result<&str, Trouble> {
        Ok("") // what a request tells of itself are its headers
    }
}

/// Whether a scope is of this type. Most servers name it by the same object: both are interned.
#[inline]
pub fn is_type(scope: &Bound<'_, PyDict>, wanted: &Bound<'_, PyString>) -> PyResult<bool> {
    let Some(kind) = scope.get_item(intern!(scope.py(), "type"))? else {
        return Ok(false);
    };
    Ok(kind.is(wanted) || (kind.is_instance_of::<PyString>() && kind.eq(wanted)?))
}
