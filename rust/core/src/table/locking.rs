//! The shards of a decision are locked in one order, so that no two decisions deadlock.

use smallvec::SmallVec;

use crate::table::answer::Check;
use crate::table::storage::{Location, Storage};
use crate::table::transaction::Transaction;

impl<S: Storage> Transaction<'_, S> {
    /// Lock the shards of all checks, in ascending order, and find their states.
    #[inline(always)]
    pub fn lock(&mut self, checks: &[Check]) -> Result<(), S::Error> {
        match checks.len() {
            2 => self.lock_few::<2>(checks),
            3 => self.lock_few::<3>(checks),
            4 => self.lock_few::<4>(checks),
            _ => self.lock_many(checks),
        }
    }

    /// `lock` of `N` checks: their shards are sorted without branches, which would be mispredicted.
    #[inline(always)]
    fn lock_few<const N: usize>(&mut self, checks: &[Check]) -> Result<(), S::Error> {
        let Some(checks) = checks.first_chunk::<N>() else {
            return Ok(());
        };
        // Each with the place of its check below it.
        let mut order = [0; N];
        for ((place, check), entry) in (0..).zip(checks).zip(&mut order) {
            *entry = self.storage.shard_of(check.key) << 2 | place;
        }
        for turn in 0..N {
            for place in (turn % 2..N - 1).step_by(2) {
                let (one, other) = (order[place], order[place + 1]);
                (order[place], order[place + 1]) = (one.min(other), one.max(other));
            }
        }
        let (mut shard_numbers, mut guard_of, mut count) = ([0; N], [0; N], 0);
        for entry in order {
            let (shard_number, place) = (entry >> 2, entry & 3);
            if count == 0 || shard_numbers[count - 1] != shard_number {
                shard_numbers[count] = shard_number;
                count += 1;
            }
            guard_of[place] = count - 1;
        }
        self.storage.lock_all(&shard_numbers[..count], &mut self.locked.guards)?;
        let guards = &self.locked.guards[..];
        for (check, guard) in checks.iter().zip(guard_of) {
            let (tag, shard_number) = (check.tag(), shard_numbers[guard]);
            let place = guards[guard].find(tag);
            self.locked.locations.push(Location { shard_number, guard, tag, place });
        }
        Ok(())
    }

    #[inline(always)]
    fn lock_many(&mut self, checks: &[Check]) -> Result<(), S::Error> {
        let mut shard_numbers: SmallVec<[usize; 8]> = SmallVec::new();
        for check in checks {
            let shard_number = self.storage.shard_of(check.key);
            if shard_numbers.last() != Some(&shard_number) {
                shard_numbers.push(shard_number);
            }
        }
        if shard_numbers.len() > 1 {
            shard_numbers.sort_unstable();
            shard_numbers.dedup();
        }
        let shard_numbers = &shard_numbers[..];
        self.storage.lock_all(shard_numbers, &mut self.locked.guards)?;
        let guards = &self.locked.guards[..];
        for check in checks {
            let (shard_number, tag) = (self.storage.shard_of(check.key), check.tag());
            // There are few: a linear search is shorter than a binary one.
            let guard = shard_numbers.iter().position(|other| *other == shard_number).unwrap_or_default();
            let place = guards[guard].find(tag);
            self.locked.locations.push(Location { shard_number, guard, tag, place });
        }
        Ok(())
    }
}
