//! Keys as 128 bits under a secret seed: no client can aim for collisions, and no key is stored.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// A key, hashed. `shard` chooses the lock, `tag` the slot; they are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash {
    /// Chooses the shard.
    pub shard: u64,
    /// Orders and identifies the slot, together with a limit's salt.
    pub tag: u64,
}

impl KeyHash {
    /// The tag of this key under a limit's salt; never 0, which marks an empty slot.
    #[inline]
    pub fn tag_under(&self, salt: u64) -> u64 {
        (self.tag ^ salt).max(1)
    }
}

/// The bytes that suffice for the parts of most keys, with their lengths.
const SHORT: usize = 128;
/// No UTF-8 text ends with this byte, so no text runs into a list of parts.
const END_OF_PARTS: u8 = 0xff;

/// Write parts in the form that is hashed: each behind its length. Returns the size; None where `room` is too small.
#[inline]
fn write_parts<'a>(parts: impl Iterator<Item = &'a [u8]>, room: &mut [u8]) -> Option<usize> {
    let mut length = 0;
    for part in parts {
        let text = length + size_of::<u64>();
        room.get_mut(length..text)?.copy_from_slice(&(part.len() as u64).to_le_bytes());
        length = text + part.len();
        room.get_mut(text..length)?.copy_from_slice(part);
    }
    *room.get_mut(length)? = END_OF_PARTS;
    Some(length + 1)
}

/// The secret of a table.
#[derive(Clone, Copy)]
pub struct Seed {
    hasher: SipHasher13,
}

impl Seed {
    /// A seed of 128 random bits.
    pub fn new(seed: [u8; 16]) -> Self {
        Self { hasher: SipHasher13::new_with_key(&seed) }
    }

    /// Hash a key that is one text.
    #[inline]
    pub fn text(&self, text: &[u8]) -> KeyHash {
        let hash = self.hasher.hash(text);
        KeyHash { shard: hash.h1, tag: hash.h2 }
    }

    /// Hash a key of several parts; no two lists of parts are hashed alike, and none like a text.
    #[inline]
    pub fn parts<'a>(&self, parts: impl Iterator<Item = &'a [u8]> + Clone) -> KeyHash {
        let mut joined = [0; SHORT];
        match write_parts(parts.clone(), &mut joined) {
            Some(length) => self.text(&joined[..length]), // at once is cheaper than piece by piece
            None => self.long_parts(parts),
        }
    }

    /// `parts` of any length.
    #[cold]
    fn long_parts<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> KeyHash {
        let mut hasher = self.hasher;
        for part in parts {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        }
        hasher.write(&[END_OF_PARTS]);
        let hash = hasher.finish128();
        KeyHash { shard: hash.h1, tag: hash.h2 }
    }

    /// 128 bits derived from a number, which cannot be guessed without the seed.
    #[inline]
    pub fn numbered(&self, number: u64) -> [u64; 2] {
        let hash = self.hasher.hash(&number.to_le_bytes());
        [hash.h1, hash.h2]
    }

    /// Another seed, derived from this one.
    pub fn derived(&self) -> Self {
        Self::new(self.hasher.hash(b"\xffderived").as_bytes())
    }

    /// The salt of a limit's scope.
    pub fn salt(&self, scope: &str) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(scope.as_bytes());
        hasher.write(&[0xfe]);
        let hash = hasher.finish128();
        hash.h1 ^ hash.h2.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_hashed_alike_at_once_and_piece_by_piece() {
        let seed = Seed::new([7; 16]);
        for length in 0..=SHORT {
            let text = vec![b'a'; length];
            for parts in [vec![&text[..], b"42"], vec![b"", &text[..]], vec![&text[..]], vec![]] {
                let parts = parts.into_iter();
                assert_eq!(seed.parts(parts.clone()), seed.long_parts(parts), "a part of {length} bytes");
            }
        }
    }
}
