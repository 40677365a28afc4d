//! A bounded cache that many threads read at a time, without a lock as far as its table has room.
//!
//! Entries of the table never change and are never removed: a reader hashes a key, and compares. An entry that finds no
//! room there is kept behind a lock, as long as it is used: clients that make up keys fill the table once, and from
//! then on evict each other, not the entries that are used again and again.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::FxHashMap;

/// Places that a key may be in.
const PROBES: usize = 8;

/// A key and its value.
pub type Entry<K, V> = Arc<(K, V)>;

/// A key and its value, or room for one.
type Place<K, V> = OnceLock<Entry<K, V>>;

/// Values by key.
pub struct Cache<K, V> {
    places: Box<[Place<K, V>]>,
    recent: Mutex<Recent<K, V>>,
}

/// Entries that were used of late, by the hash of their key: between once and twice as many as `most`.
struct Recent<K, V> {
    most: usize,
    newer: FxHashMap<u64, Entry<K, V>>,
    /// Entries that were used before `newer` was begun. One that is used again moves there; the rest is dropped when
    /// `newer` is full.
    older: FxHashMap<u64, Entry<K, V>>,
}

impl<K: PartialEq, V> Cache<K, V> {
    /// Room for `most` permanent values, if their keys are spread well, and for `recent` ones as long as they are used.
    pub fn new(most: usize, recent: usize) -> Self {
        let places = (2 * most).max(PROBES).next_power_of_two();
        Self {
            places: (0..places).map(|_| OnceLock::new()).collect(),
            recent: Mutex::new(Recent { most: recent, newer: FxHashMap::default(), older: FxHashMap::default() }),
        }
    }

    /// The value of the key of this hash that `matches`, if it has a permanent place.
    #[inline]
    pub fn find(&self, hash: u64, matches: impl Fn(&K) -> bool) -> Option<&V> {
        for place in self.places_of(hash) {
            let (key, value) = &**place.get()?;
            if matches(key) {
                return Some(value);
            }
        }
        None
    }

    /// The entry of the key of this hash that `matches`, if it has no permanent place and was used of late.
    #[cold]
    pub fn find_recent(&self, hash: u64, matches: impl Fn(&K) -> bool) -> Option<Entry<K, V>> {
        let (found, dropped) = self.recent().find(hash, |entry| matches(&entry.0));
        drop(dropped); // after the lock is released: dropping an entry may take it
        found
    }

    /// Store a value, unless its key has one already, and give the entry that is in force.
    #[cold]
    pub fn get_or_insert(&self, hash: u64, key: K, value: V) -> Entry<K, V> {
        let entry = Arc::new((key, value));
        for place in self.places_of(hash) {
            let stored = place.get_or_init(|| Arc::clone(&entry));
            if stored.0 == entry.0 {
                return Arc::clone(stored);
            }
        }
        let dropped = self.recent().insert(hash, Arc::clone(&entry));
        drop(dropped);
        entry
    }

    /// Visit all stored values; but not those behind the lock, while another thread holds it.
    pub fn visit<E>(&self, mut visit: impl FnMut(&V) -> Result<(), E>) -> Result<(), E> {
        for entry in self.places.iter().filter_map(OnceLock::get) {
            visit(&entry.1)?;
        }
        let Ok(recent) = self.recent.try_lock() else {
            return Ok(());
        };
        recent.newer.values().chain(recent.older.values()).try_for_each(|entry| visit(&entry.1))
    }

    #[inline]
    fn places_of(&self, hash: u64) -> impl Iterator<Item = &Place<K, V>> {
        // The hasher has put the high bits of its product, which depend on all that was hashed, lowest.
        let last = self.places.len() - 1;
        let first = hash as usize & last;
        (first..first + PROBES).map(move |place| &self.places[place & last])
    }

    fn recent(&self) -> MutexGuard<'_, Recent<K, V>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Entries that can no longer be found.
type Dropped<K, V> = FxHashMap<u64, Entry<K, V>>;

impl<K, V> Recent<K, V> {
    fn find(&mut self, hash: u64, matches: impl Fn(&(K, V)) -> bool) -> (Option<Entry<K, V>>, Dropped<K, V>) {
        if let Some(entry) = self.newer.get(&hash) {
            return (matches(entry).then(|| Arc::clone(entry)), Dropped::default());
        }
        match self.older.remove(&hash) {
            Some(entry) if matches(&entry) => (Some(Arc::clone(&entry)), self.insert(hash, entry)),
            Some(other) => (None, Dropped::from_iter([(hash, other)])),
            None => (None, Dropped::default()),
        }
    }

    /// Store an entry in place of another one of its hash, and give the entries that are dropped for it.
    fn insert(&mut self, hash: u64, entry: Entry<K, V>) -> Dropped<K, V> {
        let mut dropped = Dropped::default();
        if self.newer.len() >= self.most {
            dropped = std::mem::replace(&mut self.older, std::mem::take(&mut self.newer));
        }
        if let Some(former) = self.newer.insert(hash, entry) {
            dropped.insert(hash, former);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_entries_are_found_and_those_without_a_permanent_place_among_the_recent() {
        let table: Cache<u32, &str> = Cache::new(1, 2);
        for key in 0..8 {
            assert_eq!(table.get_or_insert(0, key, "kept").1, "kept");
        }
        assert_eq!(table.get_or_insert(0, 3, "another").1, "kept", "the first stays");
        assert_eq!(table.get_or_insert(0, 8, "no room").1, "no room");
        assert_eq!(table.find(0, |key| *key == 7), Some(&"kept"));
        assert_eq!(table.find(0, |key| *key == 8), None);
        assert_eq!(table.find_recent(0, |key| *key == 8).map(|entry| entry.1), Some("no room"));
        assert_eq!(table.find_recent(0, |key| *key == 9), None, "of the same hash, and another one");
    }

    /// A table that has no room for good for names of this hash.
    fn full(recent: usize) -> Cache<u64, u64> {
        let table = Cache::new(1, recent);
        (1000..1000 + PROBES as u64).for_each(|key| drop(table.get_or_insert(0, key, key)));
        table
    }

    #[test]
    fn a_flood_of_keys_evicts_itself_and_not_the_keys_that_are_used_again_and_again() {
        let table = full(32);
        let honest = |key: u64| table.find_recent(key * 64, |entry| *entry == key).is_some();
        (1..=8).for_each(|key| drop(table.get_or_insert(key * 64, key, key)));
        for number in 1_u64..10_000 {
            table.get_or_insert((100 + number) * 64, 100 + number, 0);
            assert!(number % 2 > 0 || honest(1 + number / 2 % 8), "after {number} others");
        }
        let mut count = 0;
        assert_eq!(
            table.visit(|_| {
                count += 1;
                Ok::<_, ()>(())
            }),
            Ok(())
        );
        assert!(count <= PROBES + 2 * 32, "{count} are kept");
    }

    #[test]
    fn a_dropped_value_may_read_the_cache_that_drops_it() {
        struct Reader(std::sync::Weak<Cache<u64, Reader>>);
        impl Drop for Reader {
            fn drop(&mut self) {
                let found = self.0.upgrade().and_then(|table| table.find_recent(1, |_| true));
                assert!(found.is_none());
            }
        }
        let table = Arc::new(Cache::new(1, 1));
        for key in 0..20 {
            table.get_or_insert(0, key, Reader(Arc::downgrade(&table)));
        }
    }

    #[test]
    fn threads_that_keep_the_same_name_agree_on_one_value() {
        let table: Cache<u32, usize> = Cache::new(4, 4);
        let insert = |entry: usize| table.get_or_insert(9, 1, entry).1;
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|entry| scope.spawn(move || insert(entry))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        assert_eq!(seen, vec![seen[0]; 8]);
    }
}
