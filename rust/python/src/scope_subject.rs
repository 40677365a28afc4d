//! A request of ASGI as a policy reads it, from its scope; the native twin of `headgate.http.server.asgi_request`.

use std::borrow::Cow;
use std::cell::OnceCell;

use headgate_policy::subject::{Name, Sent, Subject};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::gate_subject::ReadError;
use crate::header_pairs::{Spelling, first_of_name, is_spelled};
use crate::server_text::{Lines, Text, add_quoted_path, add_target, exact_bytes};
use crate::web_reading::{Reading, UNREAD, WebName, read_once};

/// Most policies read no more headers than these.
const USUAL_HEADERS: usize = 4;

/// The request of a scope, of which each part is read once, when it is first needed.
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

    /// The path and the query as they were sent, as far as the policy reads them.
    fn target(&self) -> Result<Text<'py>, ReadError> {
        if !self.reading.reads_queries
            && let Some(raw) = self.scope.get_item(&self.reading.in_scopes.raw_path)?
            && let Ok(raw) = raw.cast_into_exact::<PyBytes>()
            && !raw.as_bytes().is_empty()
            && raw.as_bytes().is_ascii()
        {
            return Ok(Text::Bytes(raw));
        }
        self.built_target()
    }

    fn built_target(&self) -> Result<Text<'py>, ReadError> {
        let (py, scope) = (self.scope.py(), self.scope);
        let raw = scope.get_item(&self.reading.in_scopes.raw_path)?;
        let raw = raw.filter(|raw| !raw.is_none()).map(exact_bytes).transpose()?;
        let query = match self.reading.reads_queries {
            true => scope.get_item(intern!(py, "query_string"))?.filter(|query| !query.is_none()),
            false => None,
        };
        let query = query.map(exact_bytes).transpose()?.filter(|query| !query.as_bytes().is_empty());
        let mut text = String::new();
        match raw.filter(|raw| !raw.as_bytes().is_empty()) {
            Some(raw) if query.is_none() && raw.as_bytes().is_ascii() => return Ok(Text::Bytes(raw)),
            Some(raw) => add_target(&mut text, raw.as_bytes().iter().copied()),
            None => {
                let path = Text::of(scope.get_item(intern!(py, "path"))?.ok_or(ReadError::NeedsPython)?)?;
                add_quoted_path(&mut text, path.as_str()?.bytes());
            }
        }
        if let Some(query) = query {
            text.push('?');
            add_target(&mut text, query.as_bytes().iter().copied());
        }
        Ok(Text::Owned(text))
    }

    /// The root path before the paths of a scope, without what mounts of Starlette add; None where there is none.
    #[inline]
    fn root(&self) -> Result<Option<Text<'py>>, ReadError> {
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

    fn peer(&self) -> Result<Text<'py>, ReadError> {
        let client = self.scope.get_item(&self.reading.in_scopes.client)?;
        if let Some(client) = &client
            && let Ok(pair) = client.cast_exact::<PyTuple>()
            && let [peer, ..] = pair.as_slice()
        {
            return self.reading.peer(Text::of(peer.clone())?);
        }
        self.peer_of(client)
    }

    /// The address of a client that is not a plain tuple.
    fn peer_of(&self, client: Option<Bound<'py, PyAny>>) -> Result<Text<'py>, ReadError> {
        let Some(client) = client.filter(|client| !client.is_none()) else {
            return self.reading.peer(Text::Known(""));
        };
        let peer = match (client.cast::<PyTuple>(), client.cast::<PyList>()) {
            (Ok(pair), _) if !pair.is_empty() => pair.get_item(0)?,
            (_, Ok(pair)) if !pair.is_empty() => pair.get_item(0)?,
            (Err(_), Err(_)) => return Err(ReadError::NeedsPython),
            _ => return self.reading.peer(Text::Known("")),
        };
        self.reading.peer(Text::of(peer)?)
    }

    /// The lines of a header, and all of them as one list, as `headgate.policy.request.joined` gives it.
    fn lines(&self, name: &WebName) -> Result<Lines<'py>, ReadError> {
        let wanted = name.in_scopes.as_deref().ok_or(ReadError::NeedsPython)?;
        let headers = self.scope.get_item(&self.reading.in_scopes.headers)?.ok_or(ReadError::NeedsPython)?;
        let Ok(pairs) = headers.cast_exact::<PyList>() else {
            return self.lines_in(&headers, 0, wanted);
        };
        match first_of_name(pairs, wanted) {
            None => Ok(Lines::None),
            Some(first) => self.lines_in(&headers, first, wanted),
        }
    }

    /// The lines of a header, the first of which is at this place or behind it.
    fn lines_in(&self, headers: &Bound<'py, PyAny>, first: usize, wanted: &[u8]) -> Result<Lines<'py>, ReadError> {
        match find_lines(headers, first, wanted, Spelling::Any)? {
            Lines::Several(_) if self.reading.is_of_framework => Err(ReadError::NeedsPython), // the framework chooses
            Lines::Several(several) => Ok(match find_lines(headers, first, wanted, Spelling::Plain)? {
                Lines::None => Lines::Several(several),
                Lines::One(plain) => Lines::Several(Box::new((plain.as_str()?.to_owned(), several.1))),
                Lines::Several(plain) => Lines::Several(Box::new((plain.0, several.1))),
            }),
            lines => Ok(lines),
        }
    }
}

/// The lines of a header from this place on.
fn find_lines<'py>(
    headers: &Bound<'py, PyAny>,
    first: usize,
    wanted: &[u8],
    spelling: Spelling,
) -> Result<Lines<'py>, ReadError> {
    let mut lines = Lines::None;
    if let Ok(pairs) = headers.cast::<PyList>() {
        for pair in pairs.iter().skip(first) {
            lines = add_line(lines, &pair, wanted, spelling)?;
        }
    } else {
        for pair in headers.cast::<PyTuple>().map_err(|_| ReadError::NeedsPython)?.iter().skip(first) {
            lines = add_line(lines, &pair, wanted, spelling)?;
        }
    }
    Ok(lines)
}

/// Add this field to the lines of a header if it has that name.
#[inline]
fn add_line<'py>(
    lines: Lines<'py>,
    pair: &Bound<'py, PyAny>,
    wanted: &[u8],
    spelling: Spelling,
) -> Result<Lines<'py>, ReadError> {
    let (name, value) = if let Ok(pair) = pair.cast::<PyTuple>() {
        let [name, value] = pair.as_slice() else {
            return Err(ReadError::NeedsPython);
        };
        (name.clone(), value.clone())
    } else {
        let pair = pair.cast::<PyList>().map_err(|_| ReadError::NeedsPython)?;
        if pair.len() != 2 {
            return Err(ReadError::NeedsPython);
        }
        (pair.get_item(0)?, pair.get_item(1)?)
    };
    let name = name.cast_exact::<PyBytes>().map_err(|_| ReadError::NeedsPython)?;
    match is_spelled(name.as_bytes(), wanted, spelling) {
        true => lines.and(Text::of_latin1(value)?),
        false => Ok(lines),
    }
}

impl Subject for ScopeSubject<'_, '_> {
    type Error = ReadError;

    fn method(&self) -> Result<&str, ReadError> {
        let name = &self.reading.in_scopes.method;
        let read = || self.scope.get_item(name)?.map_or(Ok(Text::Known("GET")), Text::of)?.in_upper_case();
        read_once(&self.method, read)?.as_str()
    }

    #[inline]
    fn path(&self) -> Result<&str, ReadError> {
        if !self.reading.reads_paths {
            return Ok(UNREAD);
        }
        read_once(&self.path, || self.target())?.as_str()
    }

    /// The only one that `other_paths` of `headgate.http.server.asgi_request` gives; several are left to Python.
    #[inline]
    fn other_path(&self) -> Result<Option<Cow<'_, str>>, ReadError> {
        if !self.reading.reads_paths {
            return Ok(None);
        }
        let Some(root) = self.root()? else {
            return Ok(None);
        };
        let root = root.as_str()?;
        let path = Text::of(self.scope.get_item(intern!(self.scope.py(), "path"))?.ok_or(ReadError::NeedsPython)?)?;
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
            Some(_) => return Err(ReadError::NeedsPython),
        }
        Ok(Some(Cow::Owned(if text.is_empty() { "/".to_owned() } else { text })))
    }

    fn host(&self) -> Result<&str, ReadError> {
        match read_once(&self.host, || self.lines(&self.reading.host))? {
            Lines::None => Ok(""),
            Lines::One(line) => line.as_str(),
            Lines::Several(several) => Ok(&several.0),
        }
    }

    #[inline]
    fn client_ip(&self) -> Result<&str, ReadError> {
        read_once(&self.client_ip, || self.peer())?.as_str()
    }

    fn endpoint(&self) -> Result<&str, ReadError> {
        Ok(self.endpoint)
    }

    #[inline]
    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, ReadError> {
        let place = match self.headers.get(name.number) {
            Some(place) => place,
            None => &self.more_headers[name.number - USUAL_HEADERS],
        };
        Ok(match read_once(place, || self.lines(&self.reading.names[name.number]))? {
            Lines::None => None,
            Lines::One(line) => Some(Sent::One(line.as_str()?)),
            Lines::Several(several) => {
                let (joined, lines) = &**several;
                Some(Sent::Several { joined, lines: lines.iter().map(Text::as_str).collect::<Result<_, _>>()? })
            }
        })
    }

    fn attribute(&self, _: &str) -> Result<&str, ReadError> {
        Ok("") // an HTTP request has headers, but no attributes
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
