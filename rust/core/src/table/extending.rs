//! Leases that are made longer, and more that is held on top: all of it, or nothing.

use smallvec::SmallVec;

use crate::algorithms::leases::Lease;
use crate::holding::record::{HoldId, Part, Record};
use crate::shard::backing::Backing;
use crate::shard::registered::Registered;
use crate::table::Table;
use crate::table::answer::{Answer, Check, Mode};
use crate::table::judgement::Judgement;
use crate::table::reserving::is_in_flight;
use crate::table::settling::{After, Asked, Extension, Misuse, Outcome};
use crate::table::shares::{Shares, registered};
use crate::table::storage::{Full, Storage};

impl<S: Storage> Table<S> {
    /// Let a lease end `lease_us` from now, never sooner than it did, and hold more: an amount for each group, or one
    /// for all.
    pub fn extend(
        &self,
        id: HoldId,
        shard_number: usize,
        lease_us: i64,
        more: &[i64],
        asked: &Asked<'_>,
        now_us: i64,
    ) -> Result<Result<Extension, Misuse>, S::Error> {
        let unknown = Extension { outcome: Outcome::Unknown, after: After::new(), answer: None };
        let Some(mut shares) = self.lock_shares(id, shard_number, now_us)? else {
            return Ok(Ok(unknown));
        };
        let Some((record, share)) = shares.record(0) else {
            return Ok(Ok(unknown));
        };
        let groups = share.amounts.len();
        let (mut outcome, mut answer) = (Outcome::AlreadySettled, None);
        if !record.settled && record.until_us <= now_us {
            outcome = Outcome::Lapsed;
        } else if !record.settled {
            let more: SmallVec<[i64; 2]> = match more {
                [one] => SmallVec::from_elem(*one, groups),
                more if more.len() == groups => more.into(),
                _ => return Ok(Err(Misuse::Amounts(groups))),
            };
            let until_us = record.until_us.max(now_us + lease_us);
            let (decided, is_same) = self.extend_hold(&mut shares, until_us, &more, asked, now_us)?;
            outcome = if decided.allowed { Outcome::Extended } else { Outcome::Refused };
            answer = Some(decided).filter(|_| is_same);
        }
        let after = self.after(&shares, asked, now_us);
        shares.transaction.check()?;
        Ok(Ok(Extension { outcome, after, answer }))
    }

    /// Decide about more of a hold, and remember it with a lease until `until_us`; whether the limits asked are its own.
    fn extend_hold<'table>(
        &'table self,
        shares: &mut Shares<'table, S>,
        until_us: i64,
        more: &[i64],
        asked: &Asked<'_>,
        now_us: i64,
    ) -> Result<(Answer, bool), S::Error> {
        let count = shares.limits.len();
        let salt = |limit: usize| shares.held(limit).map(|(_, key)| key.salt);
        let is_same = asked.len() == count && (0..count).all(|limit| salt(limit) == Some(asked[limit].salt));
        let mut own: SmallVec<[Registered; 2]> = SmallVec::new();
        for limit in 0..if is_same { 0 } else { count } {
            let held = shares.held(limit);
            let number = held.and_then(|(held, _)| Some(held.parts.last()?.number)).unwrap_or(0);
            if let Some(limits) = self.own_limit(number, asked) {
                own.push(registered(limits, number, held.map_or(0, |(_, key)| key.salt)));
            }
        }
        let mut checks: SmallVec<[Check<'_>; 4]> = SmallVec::new();
        for limit in 0..count {
            let Some((held, key)) = shares.held(limit) else {
                continue;
            };
            let cost = if held.parts.is_empty() { 0 } else { more[usize::from(held.group)] };
            let limit: &Registered = if is_same { asked[limit] } else { &own[limit] };
            let key = crate::hash::KeyHash { shard: 0, tag: key.tag ^ key.salt };
            checks.push(Check { limit, key, cost, shadow: held.shadow });
        }
        let guard_of = |shares: &Shares<'table, S>, limit: usize| shares.transaction.locked.locations[limit].guard;
        let growing: SmallVec<[usize; 4]> =
            (0..count).filter(|limit| checks[*limit].cost > 0).map(|limit| guard_of(shares, limit)).collect();
        let room = self.reserve_parts(&mut shares.transaction.locked, |guard| growing.contains(&guard), now_us);
        if let Err(Full { soonest_us }) = room {
            let answer = self.refuse_hold(&checks, &shares.transaction, soonest_us, now_us);
            self.settle_parts(&mut shares.transaction.locked);
            return Ok((answer, is_same));
        }
        let mut judgement = Judgement::new();
        judgement.until_us = Some(until_us);
        let mode = Mode { commit: true, max_delay_us: None };
        let decided = self.decide::<true>(&checks, &mut shares.transaction, &mut judgement, now_us, mode);
        shares.transaction.find_again();
        if let Ok(answer) = &decided
            && answer.allowed
        {
            for share in 0..shares.records.len() {
                let (guard, number) = shares.records[share];
                if let Some(record) = shares.record_mut(share) {
                    record.move_end(until_us);
                }
                if let Some(share) = shares.record_mut(share).and_then(Record::share_mut) {
                    share.amounts.iter_mut().zip(more).for_each(|(amount, more)| amount.held += more);
                }
                if growing.contains(&guard)
                    && let Some(holds) = shares.transaction.locked.guards[guard].backing.holds_mut()
                {
                    holds.grow(number);
                }
            }
            for (limit, check) in checks.iter().enumerate() {
                extend_limit(shares, limit, check, &judgement, until_us, now_us);
            }
        }
        self.settle_parts(&mut shares.transaction.locked);
        decided.map(|answer| (answer, is_same))
    }
}

/// Remember what was just charged on top of a hold, and let its places be in use until `until_us`.
fn extend_limit<S: Storage>(
    shares: &mut Shares<'_, S>,
    limit: usize,
    check: &Check,
    judgement: &Judgement,
    until_us: i64,
    now_us: i64,
) {
    let reading = judgement.readings[limit];
    let Some((holds, number, index)) = shares.holds_mut(limit) else {
        return;
    };
    let key = holds.get(number).and_then(|record| Some(record.share()?.limits[index].key));
    let refunds = key.and_then(|key| holds.key(key)).map_or(0, |key| key.refunds);
    let Some(held) = holds.get_mut(number).and_then(Record::share_mut).map(|share| &mut share.limits[index]) else {
        return;
    };
    if check.cost > 0 && reading.allowed() && (is_in_flight(check) || judgement.kept[limit].is_some()) {
        let part = Part { marked: judgement.marks[limit], refunds, cost: check.cost, number: check.limit.number() };
        held.parts.push(part);
    }
    let places = held.cost();
    if is_in_flight(check) && places > 0 {
        let lease = Lease { until: until_us, number: u64::from(number), places };
        shares.change_lease(limit, Some(lease), now_us);
    }
}
