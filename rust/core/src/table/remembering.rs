//! Recording a hold that is made: a share in the shard of each of its keys.

use std::ops::DerefMut;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithms::leases::Lease;
use crate::algorithms::transition::Reading;
use crate::holding::record::{Content, HoldId, One, Record};
use crate::holding::share::{Amount, HeldLimit, Other, Part, Share};
use crate::holding::store::HoldStore;
use crate::shard::Shard;
use crate::shard::backing::Backing;
use crate::table::answer::Check;
use crate::table::judgement::Judgement;
use crate::table::settling::HoldRequest;
use crate::table::storage::LockedShards;

/// Record what was just charged: a share in each shard, last the one that lists the others. Returns the hold's id.
#[inline]
pub(super) fn remember<G, B>(
    locked: &mut LockedShards<G>,
    checks: &[Check],
    judgement: &Judgement,
    request: &HoldRequest<'_>,
    passed: bool,
    home: usize,
    now_us: i64,
) -> HoldId
where
    G: DerefMut<Target = Shard<B>>,
    B: Backing,
{
    let next_id = || Some(locked.guards[home].backing.holds()?.next_id(request.id));
    let id = if request.named { request.id } else { next_id().unwrap_or(request.id) };
    let mut others = SmallVec::new();
    for guard in (0..locked.guards.len()).filter(|guard| *guard != home).chain([home]) {
        let Some(holds) = locked.guards[guard].backing.holds_mut() else {
            continue;
        };
        let mut share = Share { weight: 1, limits_of_all: checks.len() as u16, ..Share::default() };
        share.limits.reserve_exact(locked.locations.iter().filter(|location| location.guard == guard).count());
        if guard == home {
            let amount = |cost: &i64| Amount { cost: *cost, held: *cost, actual: *cost };
            share.amounts = request.costs.iter().map(amount).collect();
            share.others = std::mem::take(&mut others);
        }
        for (index, check) in checks.iter().enumerate().filter(|(index, _)| locked.locations[*index].guard == guard) {
            let reading = judgement.readings[index];
            let key = holds.key_or_new(locked.locations[index].tag, check.limit.salt);
            let refunds = holds.key(key).map_or(0, |key| key.refunds);
            let counted = check.is_in_flight() || check.cost == 0 || judgement.updates[index].is_some();
            let (marked, number) = (judgement.marks[index], check.limit.number());
            let part = Part { marked, refunds, cost: check.cost, number };
            let parts: SmallVec<[Part; 1]> =
                if reading.allowed() && counted { SmallVec::from_buf([part]) } else { SmallVec::new() };
            let in_flight = check.is_in_flight() && parts.iter().any(|part| part.cost > 0);
            let (index, group) = (index as u16, request.groups[index]);
            share.limits.push(HeldLimit { parts, key, index, group, shadow: check.shadow, in_flight, reading });
        }
        let places: SmallVec<[(u32, i64); 2]> =
            share.limits.iter().filter(|held| held.in_flight).map(|held| (held.key, held.cost())).collect();
        let content = match (&share.limits[..], &share.amounts[..]) {
            ([held], [amount]) if !held.parts.is_empty() && share.limits_of_all == 1 => {
                let Reading { remaining, reset_after_us, next_after_us, delay_us, .. } = held.reading;
                Content::One(One {
                    part: held.parts[0],
                    key: held.key,
                    actual: amount.actual,
                    answered: [remaining, reset_after_us, next_after_us, delay_us],
                    in_flight: held.in_flight,
                    shadow: held.shadow,
                })
            }
            _ => Content::Many(Arc::new(share)),
        };
        let until_us = now_us + request.lease_us;
        let number = holds.add(Record {
            id,
            until_us,
            forget_us: until_us + request.remember_us,
            content,
            settled: request.at_once,
            at_once: request.at_once,
            passed,
            named: request.named,
        });
        for (key, places) in places {
            let lease = Lease { until: until_us, number: u64::from(number), places };
            holds.move_places(key, None, Some(lease));
        }
        if guard != home
            && let Some(location) = locked.locations.iter().find(|location| location.guard == guard)
        {
            others.push(Other { shard: location.shard_number as u16, number });
        }
    }
    id
}
