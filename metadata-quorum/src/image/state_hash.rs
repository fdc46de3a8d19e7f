//! A number for a whole image: equal on two nodes exactly when they decided the same.

use serde::Serialize;

use super::MetadataImage;

/// FNV-1a over the rows of the image, each as postcard writes it. `version` and whatever is derived are left out.
///
/// The function is fixed for ever: golden files compare its value (D14, R212). Costs a walk over everything.
pub fn state_hash(image: &MetadataImage) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    hash.row(&("cluster", image.cluster_id.as_deref(), image.feature_level, image.next_producer_id));
    for broker in image.brokers.values() {
        hash.row(&("broker", broker.as_ref()));
    }
    for topic in image.topics.values() {
        hash.row(&("topic", topic.id, topic.name.as_ref(), topic.created, topic.config.as_ref()));
        if !topic.inherited.is_empty() {
            hash.row(&("inherited", topic.id, topic.inherited.as_ref()));
        }
        for partition in &topic.partitions {
            hash.row(&("partition", partition.as_ref()));
        }
    }
    for (at, changes) in &image.history {
        for change in changes.iter() {
            hash.row(&("history", at, change.as_ref()));
        }
    }
    for (id, parts) in &image.staged {
        hash.row(&("staged", id, parts.as_ref()));
    }
    for controller in image.controllers.values() {
        hash.row(&("controller", controller.as_ref()));
    }
    for (of, configs) in &image.broker_configs {
        hash.row(&("broker configs", of, configs.as_ref()));
    }
    hash.0
}

struct Fnv(u64);

impl Fnv {
    fn row(&mut self, row: &impl Serialize) {
        let bytes = postcard::to_stdvec(row).expect("rows are plain data, which postcard always writes");
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
