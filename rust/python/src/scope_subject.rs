//! A request of ASGI as a policy reads it, from its scope; the native twin of `headgate.http.server.asgi_request`.

use std::borrow::Cow;
use std::cell::OnceCell;

use headgate_policy::subject::{Name, Sent, Subject};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::gate_subject::Trouble;
use crate::header_pairs::{Spelling, first_of_name, is_spelled};
use crate::server_text::{Lines, Text, add_quoted_path, add_target, exact_bytes};
use crate::web_reading::{Reading, UNREAD, WebName, sent};

/// Most policies read no more headers than these.
const USUAL_HEADERS: usize = 4;

/// The request of a scope, of which each part is read once, where it is first asked for.
pub struct ScopeSubject<'py, 'gate> {
    scope: &'gate Bound<'py, PyDict>,
    reading: &'gate Reading,
    endpoint: &'gate str,
    method: OnceCell<Text<'py>>,
    path: OnceCell<Text<'py>>,
    host: OnceCell<Lines<'py>>,
    client_ip: OnceCell<Text<'py>>,
    headers: [OnceCell<Lines<'py>>; USUAL_HEADERS],
    more_headers: Box<[OnceCell<Lines<'py>>]>,
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
            headers: [const { OnceCell::new() }; USUAL_HEADERS],
            more_headers: match reading.names.len() {
                0..=USUAL_HEADERS => Box::default(),
                names => (USUAL_HEADERS..names).map(|_| OnceCell::new()).collect(),
            },
        }
    }

    /// What was sent as path and query, as far as the policy reads it.
    fn target(&self) -> Result<Text<'py>, Trouble> {
        if !self.reading.reads_queries
            && let Some(raw) = self.scope.get_item(&self.reading.in_scopes.raw_path)?
            && let Ok(raw) = raw.cast_into_exact::<PyBytes>()
            && !raw.as_bytes().is_empty()
            && raw.as_bytes().is_ascii()
        {
            return Ok(Text::Bytes(raw));
        }
        self.made_target()
    }

    fn made_target(&self) -> Result<Text<'py>, Trouble> {
        let (py, scope) = (self.scope.py(), self.scope);
        let raw = scope.get_item(&self.reading.in_scopes.raw_path)?;
        let raw = raw.filter(|raw| !raw.is_none()).map(exact_bytes).transpose()?;
        let asked = match self.reading.reads_queries {
            true => scope.get_item(intern!(py, "query_string"))?.filter(|asked| !asked.is_none()),
            false => None,
        };
        let asked = asked.map(exact_bytes).transpose()?.filter(|asked| !asked.as_bytes().is_empty());
        let mut text = String::new();
        match raw.filter(|raw| !raw.as_bytes().is_empty()) {
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

    /// The root path before the paths of a scope, without what mounts of Starlette add; None where there is none.
    #[inline]
    fn root(&self) -> Result<Option<Text<'py>>, Trouble> {
        let root = match self.scope.get_item(&self.reading.in_scopes.root_path)?.filter(|root| !root.is_none()) {
            None => return Ok(None),
            Some(root) => Text::of(root)?,
        };
        if root.as_str()?.is_empty() {
            return Ok(None);
        }
        match self.scope.get_item(intern!(self.scope.py(), "app_root_path"))? {
            None => Ok(Some(root)),
            Some(root) => Text::of(root).map(Some),
        }
    }

    fn peer(&self) -> Result<Text<'py>, Trouble> {
        let client = self.scope.get_item(&self.reading.in_scopes.client)?;
        if let Some(client) = &client
            && let Ok(pair) = client.cast_exact::<PyTuple>()
            && let [peer, ..] = pair.as_slice()
        {
            return self.reading.peer(Text::of(peer.clone())?);
        }
        self.peer_of(client)
    }

    /// The address of a client that is no plain tuple of one.
    fn peer_of(&self, client: Option<Bound<'py, PyAny>>) -> Result<Text<'py>, Trouble> {
        let Some(client) = client.filter(|client| !client.is_none()) else {
            return self.reading.peer(Text::Known(""));
        };
        let peer = match (client.cast::<PyTuple>(), client.cast::<PyList>()) {
            (Ok(pair), _) if !pair.is_empty() => pair.get_item(0)?,
            (_, Ok(pair)) if !pair.is_empty() => pair.get_item(0)?,
            (Err(_), Err(_)) => return Err(Trouble::Python),
            _ => return self.reading.peer(Text::Known("")),
        };
        self.reading.peer(Text::of(peer)?)
    }

    /// The lines of a header, and all of them as one list, as `headgate.policy.request.joined` gives it.
    fn lines(&self, name: &WebName) -> Result<Lines<'py>, Trouble> {
        let wanted = name.in_scopes.as_deref().ok_or(Trouble::Python)?;
        let headers = self.scope.get_item(&self.reading.in_scopes.headers)?.ok_or(Trouble::Python)?;
        let Ok(pairs) = headers.cast_exact::<PyList>() else {
            return self.lines_in(&headers, 0, wanted);
        };
        match first_of_name(pairs, wanted) {
            None => Ok(Lines::None),
            Some(first) => self.lines_in(&headers, first, wanted),
        }
    }

    /// The lines of a header, of which none is before this place.
    fn lines_in(&self, headers: &Bound<'py, PyAny>, first: usize, wanted: &[u8]) -> Result<Lines<'py>, Trouble> {
        match found(headers, first, wanted, Spelling::Any)? {
            Lines::Several(_) if self.reading.is_of_framework => Err(Trouble::Python), // which one is its choice
            Lines::Several(several) => Ok(match found(headers, first, wanted, Spelling::Plain)? {
                Lines::None => Lines::Several(several),
                Lines::One(plain) => Lines::Several(Box::new((plain.as_str()?.to_owned(), several.1))),
                Lines::Several(plain) => Lines::Several(Box::new((plain.0, several.1))),
            }),
            found => Ok(found),
        }
    }
}

/// The lines of a header from this place on, found where they are.
fn found<'py>(
    headers: &Bound<'py, PyAny>,
    first: usize,
    wanted: &[u8],
    spelling: Spelling,
) -> Result<Lines<'py>, Trouble> {
    let mut found = Lines::None;
    if let Ok(pairs) = headers.cast::<PyList>() {
        for pair in pairs.iter().skip(first) {
            found = found_in(found, &pair, wanted, spelling)?;
        }
    } else {
        for pair in headers.cast::<PyTuple>().map_err(|_| Trouble::Python)?.iter().skip(first) {
            found = found_in(found, &pair, wanted, spelling)?;
        }
    }
    Ok(found)
}

/// What was found of a header so far, and this field if it is one of that name.
#[inline]
fn found_in<'py>(
    found: Lines<'py>,
    pair: &Bound<'py, PyAny>,
    wanted: &[u8],
    spelling: Spelling,
) -> Result<Lines<'py>, Trouble> {
    let (name, value) = if let Ok(pair) = pair.cast::<PyTuple>() {
        let [name, value] = pair.as_slice() else {
            return Err(Trouble::Python);
        };
        (name.clone(), value.clone())
    } else {
        let pair = pair.cast::<PyList>().map_err(|_| Trouble::Python)?;
        if pair.len() != 2 {
            return Err(Trouble::Python);
        }
        (pair.get_item(0)?, pair.get_item(1)?)
    };
    let name = name.cast_exact::<PyBytes>().map_err(|_| Trouble::Python)?;
    match is_spelled(name.as_bytes(), wanted, spelling) {
        true => found.and(Text::of_latin1(value)?),
        false => Ok(found),
    }
}

impl Subject for ScopeSubject<'_, '_> {
    type Error = Trouble;

    fn method(&self) -> Result<&str, Trouble> {
        let name = &self.reading.in_scopes.method;
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

    /// The only one that `other_paths` of `headgate.http.server.asgi_request` gives; several are left to Python.
    #[inline]
    fn other_path(&self) -> Result<Option<Cow<'_, str>>, Trouble> {
        if !self.reading.reads_paths {
            return Ok(None);
        }
        let Some(root) = self.root()? else {
            return Ok(None);
        };
        let root = root.as_str()?;
        let path = Text::of(self.scope.get_item(intern!(self.scope.py(), "path"))?.ok_or(Trouble::Python)?)?;
        let path = path.as_str()?;
        if root.bytes().all(|byte| byte == b'/') || !path.starts_with('/') {
            return Ok(None);
        }
        let mut text = String::new();
        match path.find(root) {
            None => add_quoted_path(&mut text, root.bytes().chain(path.bytes())),
            Some(0) if matches!(path.as_bytes().get(root.len()), None | Some(b'/')) => {
                add_quoted_path(&mut text, path.bytes().skip(root.len()));
            }
            Some(_) => return Err(Trouble::Python),
        }
        Ok(Some(Cow::Owned(if text.is_empty() { "/".to_owned() } else { text })))
    }

    fn host(&self) -> Result<&str, Trouble> {
        match sent(&self.host, || self.lines(&self.reading.host))? {
            Lines::None => Ok(""),
            Lines::One(line) => line.as_str(),
            Lines::Several(several) => Ok(&several.0),
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
        let place = match self.headers.get(name.number) {
            Some(place) => place,
            None => &self.more_headers[name.number - USUAL_HEADERS],
        };
        Ok(match sent(place, || self.lines(&self.reading.names[name.number]))? {
            Lines::None => None,
            Lines::One(line) => Some(Sent::One(line.as_str()?)),
            Lines::Several(several) => {
                let (joined, lines) = &**several;
                Some(Sent::Several { joined, lines: lines.iter().map(Text::as_str).collect::<Result<_, _>>()? })
            }
        })
    }

    fn attribute(&self, _: &str) -> Result<&str, Trouble> {
        Ok("") // what a request tells of itself are its headers
    }
}

/// Whether a scope is of this type.
#[inline]
pub fn is_type(scope: &Bound<'_, PyDict>, reading: &Reading, wanted: &str) -> PyResult<bool> {
    let Some(kind) = scope.get_item(&reading.in_scopes.kind)? else {
        return Ok(false);
    };
    Ok(kind.cast::<PyString>().is_ok_and(|kind| kind.to_str().is_ok_and(|kind| kind == wanted)))
}
