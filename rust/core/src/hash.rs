//! Keys as 128 bits under a secret seed: no client can aim for collisions, and no key is kept.

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
    pub fn parts<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> KeyHash {
        let mut hasher = self.hasher;
        for part in parts {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        }
        // No UTF-8 text ends with this byte, so no text runs into a list of parts.
        hasher.write(&[0xff]);
        let hash = hasher.finish128();
        KeyHash { shard: hash.h1, tag: hash.h2 }
    }

    /// 128 bits of a number, which nobody can guess who has not the seed.
    #[inline]
    pub fn numbered(&self, number: u64) -> [u64; 2] {
        let hash = self.hasher.hash(&number.to_le_bytes());
        [hash.h1, hash.h2]
    }

    /// Another secret that follows from this one.
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
