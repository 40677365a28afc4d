//! What a request costs, of each unit that limits count.

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
    /// What one request takes of it, as the rule says.
    pub cost: i64,
}

/// A cost that a request has of its own: so many such requests, and what it takes of units that it names.
#[derive(Clone, Copy, Debug)]
pub struct Cost<'a> {
    /// How many such requests.
    pub times: i64,
    /// What stands in place of the rules' own, by the places of units.
    pub amounts: &'a [(usize, i64)],
}

impl Cost<'_> {
    /// The usual cost.
    pub const ONE: Self = Self { times: 1, amounts: &[] };

    /// What a group is charged: no more than 2**52.
    #[inline]
    pub fn of(&self, group: &Group) -> i64 {
        let named = self.amounts.iter().find(|(unit, _)| *unit == group.unit);
        named.map_or_else(|| group.cost.saturating_mul(self.times).min(LARGEST), |(_, amount)| *amount)
    }
}
