//! What the operator of a seed does, and how often. Drawn from a stream of its own: without the operator a seed is what
//! it was before there was one.

use serde::{Deserialize, Serialize};

use super::super::rng::Rng;

/// Mean gaps (ms) between acts of a kind; 0: never.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acts {
    pub delete_records: u64,
    /// Elections where nobody leads, by the ordinary rules or by the word that records may be lost.
    pub elect_clean: u64,
    pub elect_unclean: u64,
    /// A leader is named.
    pub designate: u64,
    /// In 1,000 of these: with the word that records may be lost.
    pub designate_at_a_loss: u64,
    /// A broker that takes no part is forgotten.
    pub unregister: u64,
    pub add_partitions: u64,
    pub alter_config: u64,
    /// In 1,000 of these: min ISR is changed, up or down.
    pub alter_min_isr: u64,
    /// In 1,000 topics made: unclean elections are allowed from the beginning.
    pub unclean_topics: u64,
}

impl Acts {
    /// The operator of this seed; three in ten have none.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed).fork(7);
        if rng.chance(300) {
            return Self::default();
        }
        let mut gap = |per_mille: u64, low: u64, high: u64| {
            if rng.chance(per_mille) { rng.log_within(low, high) } else { 0 }
        };
        Self {
            delete_records: gap(600, 500, 15_000),
            elect_clean: gap(250, 1_000, 15_000),
            elect_unclean: gap(250, 2_000, 30_000),
            designate: gap(350, 1_000, 20_000),
            designate_at_a_loss: gap(400, 20, 300),
            unregister: gap(250, 3_000, 30_000),
            add_partitions: gap(300, 8_000, 60_000),
            alter_config: gap(500, 1_000, 20_000),
            alter_min_isr: gap(1_000, 100, 900),
            unclean_topics: gap(250, 100, 1_000),
        }
    }
}
