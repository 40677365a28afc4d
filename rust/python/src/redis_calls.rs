//! Calls of Redis scripts for Python: the native part of `headgate.stores.redis.commands`.

use headgate_redis::calls::{Calls, Form, Member, Script};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::decision::Decision;
use crate::registration::read_limit;

/// (a `CompiledLimit`, its numbers, its field, its kind, whether it is a shadow, its group, the end of its key's name).
type MemberFields<'py> = (Bound<'py, PyAny>, Vec<u8>, Vec<u8>, u8, bool, usize, Vec<u8>);

/// Packs the calls that decide limits, and reads their replies.
#[pyclass(frozen, module = "headgate._native")]
pub struct RedisCalls(pub Calls);

#[pymethods]
impl RedisCalls {
    #[new]
    fn new(
        head: Vec<u8>,
        members: Vec<MemberFields<'_>>,
        order: Vec<usize>,
        together: (String, String),
        apart: (String, String),
    ) -> PyResult<Self> {
        if members.is_empty() || order.len() != members.len() || order.iter().any(|place| *place >= members.len()) {
            return Err(PyValueError::new_err("these are no limits in an order"));
        }
        let mut parsed = Vec::with_capacity(members.len());
        for (compiled, numbers, field, kind, shadow, group, tail) in members {
            let limit = read_limit(&compiled)?;
            let (numbers, field, tail) = (numbers.into(), field.into(), tail.into());
            parsed.push(Member { limit, numbers, field, kind, shadow, group, tail });
        }
        let (together, apart) = (script(together)?, script(apart)?);
        Ok(Self(Calls { head: head.into(), members: parsed.into(), order: order.into(), together, apart }))
    }

    fn pack<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        costs: Vec<i64>,
        now_us: Option<i64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.check(keys.len())?;
        self.check(costs.len())?;
        if !self.0.can_pack(&keys) {
            return Ok(None);
        }
        let mut packed = Vec::new();
        self.0.pack(&keys, &costs, now_us, &mut packed);
        Ok(Some(PyBytes::new(py, &packed)))
    }

    fn read(&self, definitions: Py<PyTuple>, reply: &[u8], costs: Vec<i64>) -> PyResult<Option<Decision>> {
        self.check(costs.len())?;
        Ok(self.0.read(reply, &costs).map(|answer| Decision::with_degraded(definitions, answer, "")))
    }
}

impl RedisCalls {
    fn check(&self, groups: usize) -> PyResult<()> {
        if self.0.members.iter().all(|member| member.group < groups) {
            return Ok(());
        }
        Err(PyValueError::new_err("these limits have more groups"))
    }
}

/// A script by the name that a server has for it, and its form: "one", "few" or "several".
fn script((sha, form): (String, String)) -> PyResult<Script> {
    let form = match &*form {
        "one" => Form::One,
        "few" => Form::Few,
        "several" => Form::Several,
        _ => return Err(PyValueError::new_err(format!("no form {form}"))),
    };
    Ok(Script { sha: sha.into_bytes().into(), form })
}
