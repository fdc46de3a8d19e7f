//! What a log of groups says, record by record, until a shard can be made of it (R287).

use std::collections::BTreeMap;

use highwater_wire::group_records::{GroupKey, GroupRecordError, GroupValue, OffsetValue};

use super::offsets::Offsets;

/// Later records count, records without a value take back.
#[derive(Debug, Default)]
pub struct Loading {
    pub(super) groups: BTreeMap<String, GroupValue>,
    pub(super) offsets: BTreeMap<String, Offsets>,
}

impl Loading {
    /// The next record of the log. Those of protocols that are not served here are left alone.
    ///
    /// # Errors
    /// It cannot be read; what it was about stays as it was.
    pub fn record(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), GroupRecordError> {
        match GroupKey::decode(key)? {
            GroupKey::Offset { group, topic, partition } => {
                let value = value.map(OffsetValue::decode).transpose()?;
                let offsets = self.offsets.entry(group).or_default();
                offsets.apply(topic, partition, value);
            }
            GroupKey::Group { group } => match value.map(GroupValue::decode).transpose()? {
                Some(value) => {
                    self.groups.insert(group, value);
                }
                None => {
                    self.groups.remove(&group);
                }
            },
            GroupKey::Unknown(_) => {}
        }
        Ok(())
    }
}
