//! The cost of a request in each unit that limits count.

use headgate_core::limit::LARGEST;

/// A unit that a rule's limits count.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Which of the rules that apply.
    pub rule: usize,
    /// Which of the keys of these rules.
    pub key: usize,
    /// Which of the policy's units.
    pub unit: usize,
    /// The cost of one request in it, by the rule.
    pub cost: i64,
}

/// The cost of one request: how many usual requests it stands for, and its amounts in the units that it names.
#[derive(Clone, Copy, Debug)]
pub struct Cost<'a> {
    /// How many such requests.
    pub times: i64,
    /// The amounts that replace those of the rules, by the places of units.
    pub amounts: &'a [(usize, i64)],
}

impl Cost<'_> {
    /// The usual cost.
    pub const ONE: Self = Self { times: 1, amounts: &[] };

    /// The charge of a group: no more than 2**52.
    #[inline]
    pub fn of(&self, group: &Group) -> i64 {
        let named = self.amounts.iter().find(|(unit, _)| *unit == group.unit);
        named.map_or_else(|| group.cost.saturating_mul(self.times).min(LARGEST), |(_, amount)| *amount)
    }
}
