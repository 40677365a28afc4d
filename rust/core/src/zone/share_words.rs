//! Encoding a hold's share of many limits as words, and decoding it.

use crate::algorithms::transition::Reading;
use crate::holding::share::{Amount, HeldLimit, Other, Part, Share, UNNUMBERED};

const WORDS_OF_AMOUNT: usize = 3;
const WORDS_OF_LIMIT: usize = 7;
const WORDS_OF_PART: usize = 5;

/// The words of a share.
pub fn words_of_share(share: &Share) -> Vec<u64> {
    let counts = [usize::from(share.limits_of_all), share.amounts.len(), share.others.len(), share.limits.len()];
    let of_limits = share.limits.iter().map(|held| WORDS_OF_LIMIT + held.parts.len() * WORDS_OF_PART);
    let [_, amounts, others, _] = counts;
    let mut words = Vec::with_capacity(1 + amounts * WORDS_OF_AMOUNT + others + of_limits.sum::<usize>());
    words.push(counts.iter().rev().fold(0, |word, count| word << 16 | *count as u64));
    words.extend(
        share.amounts.iter().flat_map(|amount| [amount.cost, amount.held, amount.actual]).map(|word| word as u64),
    );
    words.extend(share.others.iter().map(|other| u64::from(other.shard)));
    for held in &share.limits {
        let reading = &held.reading;
        words.push(u64::from(held.key) | u64::from(held.index) << 32 | u64::from(held.group) << 48);
        words.push(u64::from(held.shadow) | u64::from(held.in_flight) << 1 | (held.parts.len() as u64) << 8);
        words.extend([reading.remaining as u64, reading.reset_after_us as u64, reading.retry_after_us as u64]);
        words.extend([reading.next_after_us as u64, reading.delay_us as u64]);
        for part in &held.parts {
            let [a, b] = part.marked;
            words.extend([a, b, part.refunds, part.cost, i64::from(part.number)].map(|word| word as u64));
        }
    }
    words
}

/// The inverse of `words_of_share`; None for words that no share has.
pub fn share_of_words(words: &[u64], weight: u32) -> Option<Share> {
    let mut rest = words;
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(taken)
    };
    let counts = take(1)?[0];
    let [limits_of_all, amounts, others, limits] = [0, 16, 32, 48].map(|shift| (counts >> shift) as u16);
    let mut share = Share { weight, limits_of_all, ..Share::default() };
    for words in take(usize::from(amounts) * WORDS_OF_AMOUNT)?.chunks_exact(WORDS_OF_AMOUNT) {
        let [cost, held, actual] = [0, 1, 2].map(|word| words[word] as i64);
        share.amounts.push(Amount { cost, held, actual });
    }
    let other = |word: &u64| Other { shard: *word as u16, number: UNNUMBERED };
    share.others.extend(take(usize::from(others))?.iter().map(other));
    for _ in 0..limits {
        let own = take(WORDS_OF_LIMIT)?;
        let [remaining, reset_after_us, retry_after_us, next_after_us, delay_us] =
            std::array::from_fn(|word| own[word + 2] as i64);
        let parts = (own[1] >> 8) as usize;
        let parts = take(parts.checked_mul(WORDS_OF_PART)?)?.chunks_exact(WORDS_OF_PART).map(|words| Part {
            marked: [words[0] as i64, words[1] as i64],
            refunds: words[2] as i64,
            cost: words[3] as i64,
            number: words[4] as u32,
        });
        share.limits.push(HeldLimit {
            parts: parts.collect(),
            key: own[0] as u32,
            index: (own[0] >> 32) as u16,
            group: (own[0] >> 48) as u16,
            shadow: own[1] & 1 != 0,
            in_flight: own[1] & 2 != 0,
            reading: Reading { remaining, reset_after_us, retry_after_us, next_after_us, delay_us },
        });
    }
    let fits = |held: &HeldLimit| held.group < amounts || amounts == 0;
    (rest.is_empty() && share.limits.iter().all(fits)).then_some(share)
}
