//! The prepared check of one request, for a store that answers later; it borrows nothing from the request.

use std::sync::Arc;

use headgate_policy::costs::Cost;
use headgate_policy::keys::encode_key;
use headgate_policy::selection::Resolved;
use smallvec::SmallVec;

use crate::bound::BoundLimits;
use crate::judge::CheckMode;
use crate::store_check::StoreCheck;
use crate::table::LeftToPython;

/// How a check is to be answered.
pub enum Prepared<C> {
    /// No rule applies.
    Free,
    /// For each rule whether it refuses, as the request lacks an identity.
    Refused(Arc<BoundLimits<C>>, Vec<bool>),
    /// By the store.
    Query(StoreCheck<C>),
}

/// Prepare the check of a resolved request.
pub fn prepared<C>(
    resolved: &Resolved<'_, Arc<BoundLimits<C>>>,
    cost: Cost<'_>,
    mode: CheckMode,
) -> Result<Prepared<C>, LeftToPython> {
    let Some(bound) = &resolved.query.limits else {
        return Ok(Prepared::Free);
    };
    if bound.waits && mode == CheckMode::Single {
        return Err(LeftToPython);
    }
    if let Some(refused) = resolved.refused() {
        return Ok(Prepared::Refused(Arc::clone(bound), refused));
    }
    if bound.in_flight {
        return Err(LeftToPython);
    }
    let mut keys = SmallVec::new();
    for parts in resolved.keys() {
        let text = parts.and_then(|parts| encode_key(&parts)).ok_or(LeftToPython)?;
        keys.push(text.into_boxed_str());
    }
    let groups = &resolved.query.groups;
    let key_of = groups.iter().map(|group| group.key).collect();
    let costs = groups.iter().map(|group| cost.of(group)).collect();
    Ok(Prepared::Query(StoreCheck { bound: Arc::clone(bound), keys, key_of, costs }))
}
