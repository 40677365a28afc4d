//! A plain limit before an application, whole: the client's key, the decision, and what remains.
//!
//! Python's part of a request is longer than deciding is; most requests need none of it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use headgate_core::hash::KeyHash;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::arguments::hash_key;
use crate::bound::BoundLimits;
use crate::decision::Decision;
use crate::fields::RateLimitFields;
use crate::sender::{FieldSender, FieldStarter};

/// Addresses whose keys are remembered; then all are forgotten.
const MOST_PEERS: usize = 65_536;
/// Bytes of an address that is remembered; longer ones are none.
const LONGEST_PEER: usize = 64;

/// A decision, and the fields that tell it if it passes at once.
type DecisionAndFields<'py> = (Bound<'py, Decision>, Option<Bound<'py, PyList>>);

/// Decides for requests by the address of their peer.
#[pyclass(frozen, module = "headgate._native")]
pub struct PeerLimits {
    bound: Py<BoundLimits>,
    fields: Py<RateLimitFields>,
    /// Gives the key of an address.
    key_of: Py<PyAny>,
    known: Mutex<Known>,
}

/// Keys that were made already, of each address within each scope.
///
/// Texts are known by their hashes, as keys are.
#[derive(Default)]
struct Known {
    scopes: HashMap<KeyHash, HashMap<KeyHash, KeyHash, ByTag>, ByTag>,
    count: usize,
}

type ByTag = BuildHasherDefault<TagHasher>;

/// A request that counts in no scope counts in this one; a route's template is never empty.
const NO_SCOPE: &str = "";

#[pymethods]
impl PeerLimits {
    #[new]
    fn new(bound: Py<BoundLimits>, fields: Py<RateLimitFields>, key_of: Py<PyAny>) -> Self {
        Self { bound, fields, key_of, known: Mutex::default() }
    }

    fn ask<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyAny>,
        send: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(decision) = self.decide(py, scope, NO_SCOPE)? else {
            return Ok(None);
        };
        self.told(decision, send, |send, told| Ok(Bound::new(py, FieldSender::new(send, told))?.into_any())).map(Some)
    }

    fn ask_environ<'py>(
        &self,
        py: Python<'py>,
        environ: &Bound<'py, PyAny>,
        start_response: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(environ) = environ.cast::<PyDict>() else {
            return Ok(None);
        };
        if holds(environ, intern!(py, "REQUEST_METHOD"), "OPTIONS")? {
            return Ok(None);
        }
        let peer = environ.get_item(intern!(py, "REMOTE_ADDR"))?;
        let peer = peer.unwrap_or_else(|| intern!(py, "").clone().into_any());
        let Some(decision) = self.decide_for(py, NO_SCOPE, &peer)? else {
            return Ok(None);
        };
        self.told(
            decision,
            start_response,
            |start, told| Ok(Bound::new(py, FieldStarter::new(start, told))?.into_any()),
        )
        .map(Some)
    }

    fn ask_within<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyAny>,
        within: &str,
    ) -> PyResult<Option<DecisionAndFields<'py>>> {
        let Some(decision) = self.decide(py, scope, within)? else {
            return Ok(None);
        };
        let told = self.fields.get().write_passing(py, &decision)?;
        Ok(Some((Bound::new(py, decision)?, told)))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.bound)?;
        visit.call(&self.fields)?;
        visit.call(&self.key_of)
    }
}

impl PeerLimits {
    /// What the server gave to send with, telling what remains, where a request passes at once; else the decision.
    fn told<'py>(
        &self,
        decision: Decision,
        send: Bound<'py, PyAny>,
        telling: impl FnOnce(Py<PyAny>, Py<PyList>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = send.py();
        match self.fields.get().write_passing(py, &decision)? {
            None => Ok(Bound::new(py, decision)?.into_any()),
            Some(told) if told.is_empty() => Ok(send),
            Some(told) => telling(send.unbind(), told.unbind()),
        }
    }

    /// The decision on an HTTP request; none on what is not judged here.
    fn decide(&self, py: Python<'_>, scope: &Bound<'_, PyAny>, within: &str) -> PyResult<Option<Decision>> {
        let Ok(scope) = scope.cast::<PyDict>() else {
            return Ok(None);
        };
        if !holds(scope, intern!(py, "type"), "http")? || holds(scope, intern!(py, "method"), "OPTIONS")? {
            return Ok(None);
        }
        let client = scope.get_item(intern!(py, "client"))?;
        let peer = match client {
            Some(client) if client.is_truthy()? => match client.cast::<PyTuple>() {
                Ok(pair) => pair.get_item(0)?,
                Err(_) => client.get_item(0)?,
            },
            _ => intern!(py, "").clone().into_any(),
        };
        self.decide_for(py, within, &peer)
    }

    /// The decision for a peer; none for one whose address is no text.
    fn decide_for(&self, py: Python<'_>, within: &str, peer: &Bound<'_, PyAny>) -> PyResult<Option<Decision>> {
        let bound = self.bound.get();
        match text_of(peer) {
            Some(text) => bound.hit_hashed(py, self.key(py, bound, within, peer, text)?).map(Some),
            None => Ok(None),
        }
    }

    fn key(
        &self,
        py: Python<'_>,
        bound: &BoundLimits,
        within: &str,
        peer: &Bound<'_, PyAny>,
        text: &str,
    ) -> PyResult<KeyHash> {
        let scope_hash = bound.seed().text(within.as_bytes());
        let peer_hash = bound.seed().text(text.as_bytes());
        if let Some(key) = self.known().scopes.get(&scope_hash).and_then(|peers| peers.get(&peer_hash)) {
            return Ok(*key);
        }
        let own = self.key_of.bind(py).call1((peer, intern!(py, "")))?;
        let key = if within == NO_SCOPE {
            own
        } else {
            let mut parts = vec![PyString::new(py, within).into_any()];
            parts.extend(own.cast::<PyTuple>()?.iter());
            PyTuple::new(py, parts)?.into_any()
        };
        let key = hash_key(&key, bound.seed())?;
        if text.len() <= LONGEST_PEER {
            self.known().remember(scope_hash, peer_hash, key);
        }
        Ok(key)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn holds(scope: &Bound<'_, PyDict>, name: &Bound<'_, PyString>, wanted: &str) -> PyResult<bool> {
    Ok(scope.get_item(name)?.is_some_and(|value| text_of(&value) == Some(wanted)))
}

/// A text; none for what is none, and for one that UTF-8 cannot say.
fn text_of<'a>(value: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    value.cast::<PyString>().ok()?.to_str().ok()
}

impl Known {
    fn remember(&mut self, within: KeyHash, peer: KeyHash, key: KeyHash) {
        if self.count >= MOST_PEERS {
            *self = Self::default();
        }
        self.count += 1;
        self.scopes.entry(within).or_default().insert(peer, key);
    }
}

/// Takes what is a hash already as it is.
#[derive(Default)]
struct TagHasher(u64);

impl Hasher for TagHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, part: u64) {
        self.0 ^= part;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
