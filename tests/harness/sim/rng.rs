//! The one source of chance of a run: small, seeded, the same on every machine.
//!
//! Each part of the world forks its own stream, so that drawing once more in one part does not shift all the others.

/// xoshiro256**, seeded by splitmix64.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
    /// Nothing varies: times are their means, and what happens seldom does not happen.
    still: bool,
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self::of(seed ^ 0x4869_6768_7761_7465, false)
    }

    fn of(mut seed: u64, still: bool) -> Self {
        let state = [splitmix(&mut seed), splitmix(&mut seed), splitmix(&mut seed), splitmix(&mut seed)];
        Self { state, still }
    }

    /// The same without variation: for schedules that do not need any.
    pub fn hold_still(&mut self) {
        self.still = true;
    }

    /// A stream of its own for the part of the world that `label` names.
    pub fn fork(&self, label: u64) -> Self {
        Self::of(self.state[0] ^ label.wrapping_mul(0xD134_2543_DE82_EF95), self.still)
    }

    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// In `[0, n)`; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "nothing to draw from");
        // The bias of the multiplication is below 2^-40 for the small ranges drawn here.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// In `[low, high]`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        if self.still { u64::midpoint(low, high) } else { low + self.below(high - low + 1) }
    }

    /// True with `per_mille` in 1,000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        if self.still { per_mille > 500 } else { self.below(1_000) < per_mille }
    }

    /// One of them; `None` of nothing.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { Some(&of[self.below(of.len() as u64) as usize]) }
    }

    /// Log-uniform in `[low, high]`: as often between 1 and 10 as between 10 and 100.
    pub fn log_within(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = (low.max(1), high.max(1));
        let octaves = (high / low).max(1).ilog2() as u64;
        let base = low << self.below(octaves + 1);
        self.within(base, (base * 2 - 1).min(high).max(base))
    }

    /// A waiting time with this mean (µs), between a tenth and three times of it.
    pub fn around(&mut self, mean: u64) -> u64 {
        if self.still {
            return mean;
        }
        let third = mean.max(3) / 3;
        (self.below(3 * third) + self.below(2 * third) + self.below(third)).max(mean / 10)
    }

    /// 16 bytes for an id.
    pub fn bytes16(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&self.next_u64().to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers_and_forks_differ() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert_eq!(a.next_u64(), b.next_u64());
        assert_ne!(a.fork(1).next_u64(), a.fork(2).next_u64());
        assert!((0..1_000).all(|_| (3..=9).contains(&a.within(3, 9))));
        assert!((0..1_000).all(|_| (3..=9).contains(&a.log_within(3, 9))));
    }
}
