//! Where each key of the dirty part of a log stands last, in bounded memory. Pure.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use highwater_wire::Offset;

/// Bytes that the table takes for a key: 16 of its hash, 8 of its offset, one of the table's own.
const SLOT_BYTES: usize = 25;

/// Keys by their 128-bit hash, as in Kafka: two of 10⁹ keys are taken for the same with a probability of 10⁻²¹.
pub struct KeyMap {
    offsets: HashMap<Digest, i64, TheDigestIsAHash>,
    keys_max: usize,
    keyed: siphasher::sip128::SipHasher13,
}

#[derive(PartialEq, Eq)]
struct Digest(u64, u64);

impl std::hash::Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

/// The digest is as good as random already.
#[derive(Clone, Copy, Default)]
struct TheDigestIsAHash;

struct Taken(u64);

impl BuildHasher for TheDigestIsAHash {
    type Hasher = Taken;

    fn build_hasher(&self) -> Taken {
        Taken(0)
    }
}

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a digest is written as one number");
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }
}

impl KeyMap {
    /// At most `bytes_max` of memory (`log.cleaner.dedupe.buffer.size`), and no more than `keys` keys need.
    /// `secret`: so that nobody can make two keys of one hash.
    pub fn new(bytes_max: usize, keys: usize, secret: (u64, u64)) -> Self {
        // A table of 2ⁿ slots is filled to 7/8.
        let slots_max = 1_usize << (bytes_max / SLOT_BYTES).max(8).ilog2();
        let keys_max = (slots_max / 8 * 7).min(keys).max(1);
        Self {
            // At its full size at once: to grow it would need the old one and the new one side by side.
            offsets: HashMap::with_capacity_and_hasher(keys_max, TheDigestIsAHash),
            keys_max,
            keyed: siphasher::sip128::SipHasher13::new_with_keys(secret.0, secret.1),
        }
    }

    fn digest(&self, key: &[u8]) -> Digest {
        use siphasher::sip128::Hasher128 as _;
        let mut hasher = self.keyed;
        hasher.write(key);
        let hash = hasher.finish128();
        Digest(hash.h1, hash.h2)
    }

    /// Notes a key at an offset that is larger than any before. `false`: there is no room for another key.
    pub fn note(&mut self, key: &[u8], offset: Offset) -> bool {
        let full = self.offsets.len() >= self.keys_max;
        let digest = self.digest(key);
        match self.offsets.get_mut(&digest) {
            Some(known) => *known = offset.0,
            None if full => return false,
            None => {
                self.offsets.insert(digest, offset.0);
            }
        }
        true
    }

    /// Whether no record behind `offset` was noted for this key.
    pub fn is_latest(&self, key: &[u8], offset: Offset) -> bool {
        self.offsets.get(&self.digest(key)).is_none_or(|latest| *latest <= offset.0)
    }

    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_offset_of_a_key_counts_until_there_is_no_room() {
        let mut map = KeyMap::new(1 << 20, 2, (1, 2));
        assert!(map.is_empty() && map.is_latest(b"a", Offset(0)));
        assert!(map.note(b"a", Offset(1)) && map.note(b"b", Offset(2)) && map.note(b"a", Offset(3)));
        assert!(!map.note(b"c", Offset(4)), "it is full");
        assert!(map.note(b"b", Offset(5)), "what it knows it goes on with");
        assert_eq!((map.len(), map.is_latest(b"a", Offset(1)), map.is_latest(b"a", Offset(3))), (2, false, true));
        assert!(map.is_latest(b"c", Offset(0)), "of a key that was not noted nothing is taken");
    }

    #[test]
    fn it_stays_below_its_size() {
        for bytes in [1 << 10, 100_000, 1 << 20, 10 << 20] {
            let map = KeyMap::new(bytes, usize::MAX, (1, 2));
            let slots = (map.offsets.capacity() * 8).div_ceil(7).next_power_of_two();
            assert!(slots * SLOT_BYTES <= bytes, "{slots} slots in {bytes} bytes");
        }
    }
}
