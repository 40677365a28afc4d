//! Costs of requests as a gate's caller passes them; costs that are not read here are left to Python to read or refuse.

use headgate_core::limit::LARGEST;
use headgate_policy::compiled::Policy;
use headgate_policy::costs::Cost;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString, PyType};
use smallvec::SmallVec;

/// `headgate.amounts.REQUESTS`.
const REQUESTS: &str = "requests";

/// A cost that was read: how many usual requests it stands for, and its amounts in the units that it names.
pub struct RequestCost {
    times: i64,
    amounts: SmallVec<[(usize, i64); 4]>,
}

impl RequestCost {
    /// The cost, as policies use it.
    #[inline]
    pub fn cost(&self) -> Cost<'_> {
        Cost { times: self.times, amounts: &self.amounts }
    }
}

/// Reads costs in the units of a policy.
pub struct CostReader {
    /// Whether each unit is money, which callers give in whole units and limits count in billionths.
    money: Box<[bool]>,
    /// `headgate.costs.ReadCosts`, of which money is in billionths already.
    read_costs: Py<PyType>,
}

impl CostReader {
    /// A reader for a policy's units.
    pub fn new(py: Python<'_>, policy: &Policy) -> PyResult<Self> {
        let is_money = py.import("headgate.amounts")?.getattr("is_money")?;
        let money = policy.units.iter().map(|unit| is_money.call1((&**unit,))?.extract()).collect::<PyResult<_>>()?;
        let read_costs = py.import("headgate.costs")?.getattr("ReadCosts")?.cast_into::<PyType>()?.unbind();
        Ok(Self { money, read_costs })
    }

    /// A number, or a mapping that names units as the policy does; None for any other object.
    #[inline]
    pub fn read(&self, policy: &Policy, cost: &Bound<'_, PyAny>) -> PyResult<Option<RequestCost>> {
        if let Some(times) = number(cost) {
            return Ok(Some(RequestCost { times, amounts: SmallVec::new() }));
        }
        self.read_mapping(policy, cost)
    }

    /// See `headgate.policy.rule_costs.charged`.
    fn read_mapping(&self, policy: &Policy, cost: &Bound<'_, PyAny>) -> PyResult<Option<RequestCost>> {
        let is_read = cost.get_type().is(&self.read_costs);
        if !is_read && !cost.is_exact_instance_of::<PyDict>() {
            return Ok(None);
        }
        let mut request_cost = RequestCost { times: 1, amounts: SmallVec::new() };
        for (name, amount) in cost.cast::<PyDict>()? {
            let Some(amount) = number(&amount) else {
                return Ok(None);
            };
            let Ok(name) = name.cast_exact::<PyString>() else {
                return Ok(None);
            };
            let Ok(name) = name.to_str() else {
                return Ok(None);
            };
            match policy.units.iter().position(|unit| **unit == *name) {
                Some(unit) if self.money[unit] && !is_read => return Ok(None),
                Some(unit) if name != REQUESTS => request_cost.amounts.push((unit, amount)),
                Some(_) => request_cost.times = amount,
                None if !is_read => return Ok(None), // an error, or another spelling
                None if name == REQUESTS => request_cost.times = amount,
                None => {}
            }
        }
        Ok(Some(request_cost))
    }
}

/// A number as most costs are.
#[inline]
fn number(cost: &Bound<'_, PyAny>) -> Option<i64> {
    if !cost.is_exact_instance_of::<PyInt>() {
        return None;
    }
    cost.extract::<i64>().ok().filter(|number| (0..=LARGEST).contains(number))
}
