//! A request of WSGI as a policy reads it, from its environ; the native twin of `headgate.http.wsgi.WsgiRequest`.

use std::borrow::Cow;
use std::cell::OnceCell;

use headgate_policy::subject::{Name, Sent, Subject};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use smallvec::SmallVec;

use crate::gate_subject::Trouble;
use crate::server_text::{Text, add_quoted_path, add_target};
use crate::web_reading::{Reading, UNREAD, sent};

/// The request of an environ, of which each part is read once, where it is first asked for.
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

    /// A variable; "" where it is not there.
    #[inline]
    fn variable(&self, name: &Bound<'py, PyString>) -> Result<Text<'py>, Trouble> {
        self.environ.get_item(name)?.map_or(Ok(Text::Known("")), Text::of)
    }

    fn target(&self) -> Result<Text<'py>, Trouble> {
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
            let asked = self.variable(intern!(py, "QUERY_STRING"))?;
            let asked = asked.as_str()?;
            if !asked.is_empty() {
                text.push('?');
                add_target(&mut text, latin1(asked)?.into_iter());
            }
        }
        Ok(Text::Own(text))
    }

    /// What a header tells of the mount; None where none does.
    #[inline]
    fn told_mount(&self) -> Result<Option<(Text<'py>, Text<'py>)>, Trouble> {
        let py = self.environ.py();
        let mount = self.variable(intern!(py, "SCRIPT_NAME"))?;
        if mount.as_str()?.is_empty() {
            return Ok(None);
        }
        let told = self.variable(intern!(py, "HTTP_SCRIPT_NAME"))?;
        Ok(if told.as_str()?.is_empty() { None } else { Some((mount, told)) })
    }

    fn named_host(&self) -> Result<Text<'py>, Trouble> {
        let py = self.environ.py();
        let host = self.variable(intern!(py, "HTTP_HOST"))?;
        if host.as_str()?.is_empty() { self.variable(intern!(py, "SERVER_NAME")) } else { Ok(host) }
    }

    fn line(&self, number: usize) -> Result<Option<Text<'py>>, Trouble> {
        let name = &self.reading.names[number];
        let Some(value) = self.environ.get_item(&name.in_environs)? else {
            return Ok(None);
        };
        let value = Text::of(value)?;
        Ok(if name.is_of_body && value.as_str()?.is_empty() { None } else { Some(value) })
    }
}

/// What a server has decoded as Latin-1; what is beyond that is left to Python.
fn latin1(text: &str) -> Result<SmallVec<[u8; 128]>, Trouble> {
    text.chars().map(|character| u8::try_from(character).map_err(|_| Trouble::Python)).collect()
}

impl Subject for EnvironSubject<'_, '_> {
    type Error = Trouble;

    fn method(&self) -> Result<&str, Trouble> {
        let read = || -> Result<Text<'_>, Trouble> {
            let name = intern!(self.environ.py(), "REQUEST_METHOD");
            Text::of(self.environ.get_item(name)?.ok_or(Trouble::Python)?)?.in_upper_case()
        };
        sent(&self.method, read)?.as_str()
    }

    #[inline]
    fn path(&self) -> Result<&str, Trouble> {
        if !self.reading.reads_paths {
            return Ok(UNREAD);
        }
        sent(&self.path, || self.target())?.as_str()
    }

    /// As `inner_path` of `headgate.http.wsgi` gives it.
    #[inline]
    fn other_path(&self) -> Result<Option<Cow<'_, str>>, Trouble> {
        if !self.reading.reads_paths {
            return Ok(None);
        }
        let Some((mount, told)) = self.told_mount()? else {
            return Ok(None);
        };
        let (mount, mut told) = (mount.as_str()?, told.as_str()?);
        let rest = loop {
            if told.is_empty() {
                return Ok(None);
            }
            match mount.strip_prefix(told) {
                Some(rest) => break rest,
                None => told = told.split_once(',').map_or("", |(_, later)| later),
            }
        };
        let path = self.variable(intern!(self.environ.py(), "PATH_INFO"))?;
        let mut text = String::new();
        for part in [rest, path.as_str()?] {
            add_quoted_path(&mut text, latin1(part)?.into_iter());
        }
        Ok(Some(Cow::Owned(if text.is_empty() { "/".to_owned() } else { text })))
    }

    fn host(&self) -> Result<&str, Trouble> {
        sent(&self.host, || self.named_host())?.as_str()
    }

    #[inline]
    fn client_ip(&self) -> Result<&str, Trouble> {
        let read = || self.reading.peer(self.variable(intern!(self.environ.py(), "REMOTE_ADDR"))?);
        sent(&self.client_ip, read)?.as_str()
    }

    fn endpoint(&self) -> Result<&str, Trouble> {
        Ok(self.endpoint)
    }

    #[inline]
    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, Trouble> {
        let line = sent(&self.headers[name.number], || self.line(name.number))?;
        line.as_ref().map(|line| line.as_str().map(Sent::One)).transpose()
    }

    fn attribute(&self, _: &str) -> Result<&str, Trouble> {
        Ok("") // what a request tells of itself are its headers
    }
}
