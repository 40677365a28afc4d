//! A request of WSGI as a policy reads it, from its environ; the native twin of `headgate.http.wsgi.WsgiRequest`.

use std::borrow::Cow;
use std::cell::OnceCell;

use headgate_policy::subject::{Name, Sent, Subject};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use smallvec::SmallVec;

use crate::gate_subject::ReadError;
use crate::server_text::{Text, add_quoted_path, add_target};
use crate::web_reading::{Reading, UNREAD, read_once};

/// The request of an environ, of which each part is read once, when it is first needed.
pub struct EnvironSubject<'py, 'gate> {
    environ: &'gate Bound<'py, PyDict>,
    reading: &'gate Reading,
    endpoint: &'gate str,
    method: OnceCell<Text<'py>>,
    path: OnceCell<Text<'py>>,
    host: OnceCell<Text<'py>>,
    client_ip: OnceCell<Text<'py>>,
    headers: SmallVec<[OnceCell<Option<Text<'py>>>; 4]>,
}

impl<'py, 'gate> EnvironSubject<'py, 'gate> {
    /// The request of an environ, to the endpoint of this template; "" where none is known.
    #[inline]
    pub fn new(environ: &'gate Bound<'py, PyDict>, reading: &'gate Reading, endpoint: &'gate str) -> Self {
        Self {
            environ,
            reading,
            endpoint,
            method: OnceCell::new(),
            path: OnceCell::new(),
            host: OnceCell::new(),
            client_ip: OnceCell::new(),
            headers: reading.names.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    /// A variable; "" where it is absent.
    #[inline]
    fn variable(&self, name: &Bound<'py, PyString>) -> Result<Text<'py>, ReadError> {
        self.environ.get_item(name)?.map_or(Ok(Text::Known("")), Text::of)
    }

    fn target(&self) -> Result<Text<'py>, ReadError> {
        let py = self.environ.py();
        let (mount, path) = (self.variable(intern!(py, "SCRIPT_NAME"))?, self.variable(intern!(py, "PATH_INFO"))?);
        let mut text = String::new();
        for part in [mount, path] {
            add_quoted_path(&mut text, latin1(part.as_str()?)?.into_iter());
        }
        if text.is_empty() {
            text.push('/');
        }
        if self.reading.reads_queries {
            let query = self.variable(intern!(py, "QUERY_STRING"))?;
            let query = query.as_str()?;
            if !query.is_empty() {
                text.push('?');
                add_target(&mut text, latin1(query)?.into_iter());
            }
        }
        Ok(Text::Owned(text))
    }

    /// The mount, and the one that a header reports; None where one of them is missing.
    #[inline]
    fn header_mount(&self) -> Result<Option<(Text<'py>, Text<'py>)>, ReadError> {
        let py = self.environ.py();
        let mount = self.variable(intern!(py, "SCRIPT_NAME"))?;
        if mount.as_str()?.is_empty() {
            return Ok(None);
        }
        let sent_mount = self.variable(intern!(py, "HTTP_SCRIPT_NAME"))?;
        Ok(if sent_mount.as_str()?.is_empty() { None } else { Some((mount, sent_mount)) })
    }

    fn named_host(&self) -> Result<Text<'py>, ReadError> {
        let py = self.environ.py();
        let host = self.variable(intern!(py, "HTTP_HOST"))?;
        if host.as_str()?.is_empty() { self.variable(intern!(py, "SERVER_NAME")) } else { Ok(host) }
    }

    fn line(&self, number: usize) -> Result<Option<Text<'py>>, ReadError> {
        let name = &self.reading.names[number];
        let Some(value) = self.environ.get_item(&name.in_environs)? else {
            return Ok(None);
        };
        let value = Text::of(value)?;
        Ok(if name.is_of_body && value.as_str()?.is_empty() { None } else { Some(value) })
    }
}

/// The bytes of a text that a server has decoded as Latin-1; any other text is left to Python.
fn latin1(text: &str) -> Result<SmallVec<[u8; 128]>, ReadError> {
    text.chars().map(|character| u8::try_from(character).map_err(|_| ReadError::NeedsPython)).collect()
}

impl Subject for EnvironSubject<'_, '_> {
    type Error = ReadError;

    fn method(&self) -> Result<&str, ReadError> {
        let read = || -> Result<Text<'_>, ReadError> {
            let name = intern!(self.environ.py(), "REQUEST_METHOD");
            Text::of(self.environ.get_item(name)?.ok_or(ReadError::NeedsPython)?)?.in_upper_case()
        };
        read_once(&self.method, read)?.as_str()
    }

    #[inline]
    fn path(&self) -> Result<&str, ReadError> {
        if !self.reading.reads_paths {
            return Ok(UNREAD);
        }
        read_once(&self.path, || self.target())?.as_str()
    }

    /// As `inner_path` of `headgate.http.wsgi` gives it.
    #[inline]
    fn other_path(&self) -> Result<Option<Cow<'_, str>>, ReadError> {
        if !self.reading.reads_paths {
            return Ok(None);
        }
        let Some((mount, sent_mount)) = self.header_mount()? else {
            return Ok(None);
        };
        let (mount, mut sent_mount) = (mount.as_str()?, sent_mount.as_str()?);
        let rest = loop {
            if sent_mount.is_empty() {
                return Ok(None);
            }
            match mount.strip_prefix(sent_mount) {
                Some(rest) => break rest,
                None => sent_mount = sent_mount.split_once(',').map_or("", |(_, later)| later),
            }
        };
        let path = self.variable(intern!(self.environ.py(), "PATH_INFO"))?;
        let mut text = String::new();
        for part in [rest, path.as_str()?] {
            add_quoted_path(&mut text, latin1(part)?.into_iter());
        }
        Ok(Some(Cow::Owned(if text.is_empty() { "/".to_owned() } else { text })))
    }

    fn host(&self) -> Result<&str, ReadError> {
        read_once(&self.host, || self.named_host())?.as_str()
    }

    #[inline]
    fn client_ip(&self) -> Result<&str, ReadError> {
        let read = || self.reading.peer(self.variable(intern!(self.environ.py(), "REMOTE_ADDR"))?);
        read_once(&self.client_ip, read)?.as_str()
    }

    fn endpoint(&self) -> Result<&str, ReadError> {
        Ok(self.endpoint)
    }

    #[inline]
    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, ReadError> {
        let line = read_once(&self.headers[name.number], || self.line(name.number))?;
        line.as_ref().map(|line| line.as_str().map(Sent::One)).transpose()
    }

    fn attribute(&self, _: &str) -> Result<&str, ReadError> {
        Ok("") // an HTTP request has headers, but no attributes
    }
}
