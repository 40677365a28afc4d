//! Reports decisions to clients: the bodies that `headgate.http.refusal` and `decision_json` write.

use headgate_answers::{Limits, NamedLimit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::decision::Decision;
use crate::fields::PythonForm;

/// Form, name, rule, text and base unit of a limit.
type Named = (PythonForm, String, String, String, String);

/// Writes the reports of decisions on the same limits to clients.
#[pyclass(frozen, module = "headgate._native")]
pub struct Answers(Limits);

#[pymethods]
impl Answers {
    #[new]
    fn new(limits: Vec<Named>, policy: Option<String>) -> Self {
        let named = |(form, name, rule, text, unit): Named| NamedLimit {
            form: form.into(),
            name: name.into(),
            rule: rule.into(),
            text: text.into(),
            unit: unit.into(),
        };
        Self(Limits { all: limits.into_iter().map(named).collect(), policy: policy.map(String::into_boxed_str) })
    }

    fn problem<'py>(&self, py: Python<'py>, decision: &Decision) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.problem(decision.verdict()).as_bytes())
    }

    fn decision_json(&self, decision: &Decision) -> String {
        self.0.decision_json(decision.verdict())
    }
}
