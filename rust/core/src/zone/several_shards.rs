//! Charges of one decision in several shards of a zone: they take effect together, or not at all.
//!
//! The lowest shard leads, the others follow: its journal has the word that decides for all of them.

use crate::shard::backing::Backing;
use crate::table::storage::LockedShards;
use crate::zone::shards::Guard;

/// Begin writes that take effect together.
pub fn begin(locked: &mut LockedShards<Guard<'_>>) {
    let mut shard_numbers = vec![0; locked.guards.len()];
    for location in &locked.locations {
        shard_numbers[location.guard] = location.shard_number;
    }
    let followers = shard_numbers[1..].iter().fold(0, |bits, shard_number| bits | 1 << shard_number);
    let turn = locked.guards[0].backing.journal.lead(shard_numbers[0], followers);
    for guard in &mut locked.guards[1..] {
        guard.backing.journal.follow(shard_numbers[0], turn);
    }
}

/// Make the writes since `begin` take effect.
pub fn commit(locked: &mut LockedShards<Guard<'_>>) {
    let [leader, followers @ ..] = &mut locked.guards[..] else {
        return;
    };
    leader.backing.journal.decide();
    for follower in followers {
        follower.backing.commit();
    }
    leader.backing.commit();
}

/// Undo the writes since `begin`.
///
/// No turn was decided, so a follower whose charges are still recorded would undo them too: the leader is last.
pub fn roll_back(locked: &mut LockedShards<Guard<'_>>) {
    for guard in locked.guards.iter_mut().rev() {
        guard.backing.roll_back();
    }
}
