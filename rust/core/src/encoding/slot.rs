//! One key's state under one limit, in 32 bytes.
//!
//! Four words: the tag, then three integers of 54 bits. The ten bits under each integer hold the
//! number of the limit that wrote the state (20 bits) and a mark. Half a cache line, never across
//! two, and free of addresses.

/// Fields are in [-2**53, 2**53): more than any transition computes.
const FIELD_SHIFT: u32 = 10;
const LOW_MASK: i64 = (1 << FIELD_SHIFT) - 1;

/// Bits of a limit's number.
pub const NUMBER_BITS: u32 = 2 * FIELD_SHIFT;
/// How many limits a table can know.
pub const MOST_LIMITS: usize = 1 << NUMBER_BITS;

/// A slot of the table; tag 0 marks an empty one.
#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct Slot {
    /// 64 bits of the keyed hash of key and limit; never 0 in use.
    pub tag: u64,
    words: [i64; 3],
}

impl Slot {
    /// A state that limit number `limit` wrote.
    #[inline]
    pub fn new(tag: u64, fields: [i64; 3], limit: u32) -> Self {
        let limit = i64::from(limit);
        let [a, b, c] = fields;
        Self {
            tag,
            words: [
                a << FIELD_SHIFT | limit & LOW_MASK,
                b << FIELD_SHIFT | limit >> FIELD_SHIFT & LOW_MASK,
                c << FIELD_SHIFT,
            ],
        }
    }

    /// The integers of the state.
    #[inline]
    pub fn fields(&self) -> [i64; 3] {
        self.words.map(|word| word >> FIELD_SHIFT)
    }

    /// The number of the limit that wrote the state.
    #[inline]
    pub fn limit(&self) -> u32 {
        (self.words[0] & LOW_MASK | (self.words[1] & LOW_MASK) << FIELD_SHIFT) as u32
    }

    /// Whether the limit of this number wrote the state: `limit() == number`, computed on both words at once.
    #[inline]
    pub fn is_of(&self, number: u32) -> bool {
        let number = i64::from(number);
        (self.words[0] ^ number | self.words[1] ^ number >> FIELD_SHIFT) & LOW_MASK == 0
    }

    /// The words beside the tag, as they are.
    #[inline]
    pub fn words(&self) -> [i64; 3] {
        self.words
    }

    /// A slot of the words of another one.
    #[inline]
    pub fn of_words(tag: u64, words: [i64; 3]) -> Self {
        Self { tag, words }
    }

    /// Whether the last decision on this state was a refusal: such a key is never forgotten early.
    #[inline]
    pub fn refused(&self) -> bool {
        self.words[2] & 1 != 0
    }

    /// Record that the last decision on this state was a refusal.
    #[inline]
    pub fn mark_refused(&mut self) {
        self.words[2] |= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_of_the_limit_whose_number_it_holds_and_of_no_other() {
        for number in [0, 1, 1023, 1024, 0xabcde, MOST_LIMITS as u32 - 1] {
            let mut slot = Slot::new(7, [-1, 1 << 52, -(1 << 53)], number);
            slot.mark_refused();
            assert!(slot.is_of(number) && slot.limit() == number);
            assert!((0..NUMBER_BITS).all(|bit| !slot.is_of(number ^ 1 << bit)));
        }
    }
}
