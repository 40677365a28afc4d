//! What was made once and is read by many threads at a time, without any lock.
//!
//! A bounded table whose entries never change and never go: a reader hashes a name, and compares. What finds no room
//! is made anew each time.

use std::sync::{Arc, OnceLock};

/// Places that a name may be in.
const PROBES: usize = 8;

/// A name and its value, or room for one.
type Place<K, V> = OnceLock<Arc<(K, V)>>;

/// Values by name.
pub struct Remembered<K, V> {
    places: Box<[Place<K, V>]>,
}

impl<K: PartialEq, V> Remembered<K, V> {
    /// Room for `most` values if their names are spread well.
    pub fn new(most: usize) -> Self {
        let places = (2 * most).max(PROBES).next_power_of_two();
        Self { places: (0..places).map(|_| OnceLock::new()).collect() }
    }

    /// The value of the name of this hash that `is_it`.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<&V> {
        for place in self.places_of(hash) {
            let (name, value) = &**place.get()?;
            if is_it(name) {
                return Some(value);
            }
        }
        None
    }

    /// Keep a value, unless its name has one already or there is no room, and give the entry that counts.
    #[cold]
    pub fn keep(&self, hash: u64, name: K, value: V) -> Arc<(K, V)> {
        let own = Arc::new((name, value));
        for place in self.places_of(hash) {
            let there = place.get_or_init(|| Arc::clone(&own));
            if there.0 == own.0 {
                return Arc::clone(there);
            }
        }
        own
    }

    /// All values that are kept.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.places.iter().filter_map(OnceLock::get).map(|kept| &kept.1)
    }

    #[inline]
    fn places_of(&self, hash: u64) -> impl Iterator<Item = &Place<K, V>> {
        // The hasher has put the high bits of its product, which depend on all that was hashed, lowest.
        let last = self.places.len() - 1;
        let first = hash as usize & last;
        (first..first + PROBES).map(move |place| &self.places[place & last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_found_and_what_has_no_room_is_not() {
        let table: Remembered<u32, &str> = Remembered::new(1);
        for name in 0..8 {
            assert_eq!(table.keep(0, name, "kept").1, "kept");
        }
        assert_eq!(table.keep(0, 3, "another").1, "kept", "the first stays");
        assert_eq!(table.keep(0, 8, "too many").1, "too many");
        assert_eq!(table.find(0, |name| *name == 7), Some(&"kept"));
        assert_eq!(table.find(0, |name| *name == 8), None);
    }

    #[test]
    fn threads_that_keep_the_same_name_agree_on_one_value() {
        let table: Remembered<u32, usize> = Remembered::new(4);
        let keep = |own: usize| table.keep(9, 1, own).1;
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|own| scope.spawn(move || keep(own))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        assert_eq!(seen, vec![seen[0]; 8]);
    }
}
