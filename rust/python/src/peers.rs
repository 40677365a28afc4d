//! A plain limit before an ASGI application, whole: who is asking, the decision, and what remains of it.
//!
//! Python's part of a request is longer than deciding is; most requests need none of it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use headgate_core::hash::KeyHash;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::arguments::hash_key;
use crate::bound::BoundLimits;
use crate::fields::RateLimitFields;

/// Addresses whose keys are remembered; then all are forgotten.
const MOST_PEERS: usize = 65_536;
/// Bytes of an address that is remembered; longer ones are none.
const LONGEST_PEER: usize = 64;

/// Decides for requests by the address of their peer.
#[pyclass(frozen, module = "headgate._native")]
pub struct PeerLimits {
    bound: Py<BoundLimits>,
    fields: Py<RateLimitFields>,
    /// Gives the key of an address.
    key_of: Py<PyAny>,
    known: Mutex<HashMap<Box<str>, KeyHash>>,
}

#[pymethods]
impl PeerLimits {
    #[new]
    fn new(bound: Py<BoundLimits>, fields: Py<RateLimitFields>, key_of: Py<PyAny>) -> Self {
        Self { bound, fields, key_of, known: Mutex::default() }
    }

    fn ask<'py>(&self, py: Python<'py>, scope: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(scope) = scope.cast::<PyDict>() else {
            return Ok(None);
        };
        let Some(method) = scope.get_item(intern!(py, "method"))? else {
            return Ok(None);
        };
        if method.cast::<PyString>()?.to_str()? == "OPTIONS" {
            return Ok(None);
        }
        let client = scope.get_item(intern!(py, "client"))?;
        let peer = match client {
            Some(client) if !client.is_none() => match client.cast::<PyTuple>() {
                Ok(pair) => pair.get_item(0)?,
                Err(_) => client.get_item(0)?,
            },
            _ => intern!(py, "").clone().into_any(),
        };
        let bound = self.bound.get();
        let decision = bound.hit_hashed(py, self.key(py, bound, &peer)?)?;
        Ok(Some(match self.fields.get().write_passing(py, &decision)? {
            Some(told) => told.into_any(),
            None => Bound::new(py, decision)?.into_any(),
        }))
    }
}

impl PeerLimits {
    fn key(&self, py: Python<'_>, bound: &BoundLimits, peer: &Bound<'_, PyAny>) -> PyResult<KeyHash> {
        let text = peer.cast::<PyString>()?.to_str()?;
        if let Some(key) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(text) {
            return Ok(*key);
        }
        let key = hash_key(&self.key_of.bind(py).call1((peer, intern!(py, "")))?, bound.seed())?;
        if text.len() <= LONGEST_PEER {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST_PEERS {
                known.clear();
            }
            known.insert(text.into(), key);
        }
        Ok(key)
    }
}
