//! What a group coordinator writes into `__consumer_offsets`: Kafka's keys and values (R286), so that its own tools read them.
//!
//! Keys: versions 0 and 1 name an offset, 2 a group; others belong to protocols that are not served and are left alone.
//! Values are written as version 3 and read from version 0 on. A key without a value takes back what was written before.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::offset::Offset;
use crate::time::Timestamp;

/// Which thing a record is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKey {
    Offset {
        group: String,
        topic: String,
        partition: i32,
    },
    Group {
        group: String,
    },
    /// Of a protocol that is not served here; its version.
    Unknown(i16),
}

/// A position that a group committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetValue {
    pub offset: i64,
    /// −1: not said.
    pub leader_epoch: i32,
    pub metadata: String,
    pub committed_at: Timestamp,
    /// Only version 1 has it: when whoever committed wanted it forgotten.
    pub expires_at: Option<Timestamp>,
}

/// A group as of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupValue {
    pub protocol_type: String,
    pub generation: i32,
    pub protocol: Option<String>,
    pub leader: Option<String>,
    /// When the group entered its state; −1 before version 2.
    pub state_since: Timestamp,
    pub members: Vec<MemberValue>,
}

/// One member of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberValue {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    pub subscription: Bytes,
    pub assignment: Bytes,
}

/// Why a record cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupRecordError {
    #[error("it ends within {0}")]
    Short(&'static str),
    #[error("{0} is no text")]
    NoText(&'static str),
    #[error("{0} has a negative length")]
    Negative(&'static str),
    #[error("version {0} of its value is not known")]
    Version(i16),
    #[error("{0} bytes are left over")]
    LeftOver(usize),
}

const OFFSET_KEY: i16 = 1;
const GROUP_KEY: i16 = 2;
const VALUE: i16 = 3;
/// The first version with compact lengths and tagged fields.
const FLEXIBLE_VALUE: i16 = 4;

impl GroupKey {
    /// As it is written; `None` for one that is not ours to write.
    pub fn encode(&self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        match self {
            Self::Offset { group, topic, partition } => {
                out.put_i16(OFFSET_KEY);
                put_string(&mut out, group);
                put_string(&mut out, topic);
                out.put_i32(*partition);
            }
            Self::Group { group } => {
                out.put_i16(GROUP_KEY);
                put_string(&mut out, group);
            }
            Self::Unknown(_) => return None,
        }
        Some(out.freeze())
    }

    /// # Errors
    /// It is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, GroupRecordError> {
        let mut read = Reader { bytes, flexible: false };
        match read.i16("the version of the key")? {
            0 | OFFSET_KEY => {
                let (group, topic) = (read.string("the group")?, read.string("the topic")?);
                let partition = read.i32("the partition")?;
                read.end()?;
                Ok(Self::Offset { group, topic, partition })
            }
            GROUP_KEY => {
                let group = read.string("the group")?;
                read.end()?;
                Ok(Self::Group { group })
            }
            other => Ok(Self::Unknown(other)),
        }
    }
}

impl OffsetValue {
    /// As it is written.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_i16(VALUE);
        out.put_i64(self.offset);
        out.put_i32(self.leader_epoch);
        put_string(&mut out, &self.metadata);
        out.put_i64(self.committed_at.0);
        out.freeze()
    }

    /// # Errors
    /// It is damaged, or of a version that did not exist when this was written.
    pub fn decode(bytes: &[u8]) -> Result<Self, GroupRecordError> {
        let mut read = Reader { bytes, flexible: false };
        let version = read.value_version()?;
        let offset = read.i64("the offset")?;
        let leader_epoch = if version >= 3 { read.i32("the leader epoch")? } else { -1 };
        let metadata = read.string("the metadata")?;
        let committed_at = Timestamp(read.i64("the time of the commit")?);
        let expires_at = if version == 1 { Some(Timestamp(read.i64("the time it expires")?)) } else { None };
        read.finish()?;
        Ok(Self { offset, leader_epoch, metadata, committed_at, expires_at: expires_at.filter(|at| at.0 >= 0) })
    }

    /// The offset, if it is one.
    pub fn position(&self) -> Option<Offset> {
        Offset::from_wire(self.offset)
    }
}

impl GroupValue {
    /// As it is written.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_i16(VALUE);
        put_string(&mut out, &self.protocol_type);
        out.put_i32(self.generation);
        put_nullable(&mut out, self.protocol.as_deref());
        put_nullable(&mut out, self.leader.as_deref());
        out.put_i64(self.state_since.0);
        out.put_i32(i32::try_from(self.members.len()).unwrap_or(i32::MAX));
        for member in &self.members {
            put_string(&mut out, &member.member_id);
            put_nullable(&mut out, member.group_instance_id.as_deref());
            put_string(&mut out, &member.client_id);
            put_string(&mut out, &member.client_host);
            out.put_i32(member.rebalance_timeout_ms);
            out.put_i32(member.session_timeout_ms);
            for bytes in [&member.subscription, &member.assignment] {
                out.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
                out.put_slice(bytes);
            }
        }
        out.freeze()
    }

    /// # Errors
    /// It is damaged, or of a version that did not exist when this was written.
    pub fn decode(bytes: &[u8]) -> Result<Self, GroupRecordError> {
        let mut read = Reader { bytes, flexible: false };
        let version = read.value_version()?;
        let protocol_type = read.string("the protocol type")?;
        let generation = read.i32("the generation")?;
        let protocol = read.nullable("the protocol")?;
        let leader = read.nullable("the leader")?;
        let state_since = if version >= 2 { Timestamp(read.i64("the time of the state")?) } else { Timestamp(-1) };
        let mut members = Vec::new();
        for _ in 0..read.count("the members")? {
            members.push(read.member(version)?);
        }
        read.finish()?;
        Ok(Self { protocol_type, generation, protocol, leader, state_since, members })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    flexible: bool,
}

impl Reader<'_> {
    fn value_version(&mut self) -> Result<i16, GroupRecordError> {
        let version = self.i16("the version of the value")?;
        self.flexible = version >= FLEXIBLE_VALUE;
        if (0..=FLEXIBLE_VALUE).contains(&version) { Ok(version) } else { Err(GroupRecordError::Version(version)) }
    }

    fn i16(&mut self, what: &'static str) -> Result<i16, GroupRecordError> {
        self.bytes.try_get_i16().map_err(|_| GroupRecordError::Short(what))
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, GroupRecordError> {
        self.bytes.try_get_i32().map_err(|_| GroupRecordError::Short(what))
    }

    fn i64(&mut self, what: &'static str) -> Result<i64, GroupRecordError> {
        self.bytes.try_get_i64().map_err(|_| GroupRecordError::Short(what))
    }

    fn take(&mut self, length: usize, what: &'static str) -> Result<Bytes, GroupRecordError> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(GroupRecordError::Short(what))?;
        self.bytes = rest;
        Ok(Bytes::copy_from_slice(taken))
    }

    /// An unsigned varint minus one, where lengths are compact; `None`: null.
    fn compact(&mut self, what: &'static str) -> Result<Option<usize>, GroupRecordError> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let byte = self.bytes.try_get_u8().map_err(|_| GroupRecordError::Short(what))?;
            value |= u32::from(byte & 0x7f).wrapping_shl(shift);
            if byte & 0x80 == 0 {
                return Ok(value.checked_sub(1).map(|length| length as usize));
            }
        }
        Err(GroupRecordError::Short(what))
    }

    fn nullable(&mut self, what: &'static str) -> Result<Option<String>, GroupRecordError> {
        let length = if self.flexible {
            self.compact(what)?
        } else {
            match self.i16(what)? {
                -1 => None,
                length => Some(usize::try_from(length).map_err(|_| GroupRecordError::Negative(what))?),
            }
        };
        let Some(length) = length else { return Ok(None) };
        let text = String::from_utf8(self.take(length, what)?.into());
        text.map(Some).map_err(|_| GroupRecordError::NoText(what))
    }

    fn string(&mut self, what: &'static str) -> Result<String, GroupRecordError> {
        self.nullable(what)?.ok_or(GroupRecordError::Negative(what))
    }

    fn data(&mut self, what: &'static str) -> Result<Bytes, GroupRecordError> {
        let length = self.count(what)?;
        self.take(length, what)
    }

    fn count(&mut self, what: &'static str) -> Result<usize, GroupRecordError> {
        if self.flexible {
            return self.compact(what)?.ok_or(GroupRecordError::Negative(what));
        }
        usize::try_from(self.i32(what)?).map_err(|_| GroupRecordError::Negative(what))
    }

    fn member(&mut self, version: i16) -> Result<MemberValue, GroupRecordError> {
        let member_id = self.string("a member's id")?;
        let group_instance_id = if version >= 3 { self.nullable("a member's instance id")? } else { None };
        let client_id = self.string("a member's client id")?;
        let client_host = self.string("a member's host")?;
        let known = if version >= 1 { Some(self.i32("a member's rebalance timeout")?) } else { None };
        let session_timeout_ms = self.i32("a member's session timeout")?;
        let subscription = self.data("a member's subscription")?;
        let assignment = self.data("a member's assignment")?;
        if self.flexible {
            self.tags()?;
        }
        Ok(MemberValue {
            member_id,
            group_instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms: known.unwrap_or(session_timeout_ms),
            session_timeout_ms,
            subscription,
            assignment,
        })
    }

    /// Tagged fields are skipped.
    fn tags(&mut self) -> Result<(), GroupRecordError> {
        const TAGS: &str = "the tagged fields";
        // Counted without the one that stands for null elsewhere.
        let number = |read: &mut Self| read.compact(TAGS).map(|value| value.map_or(0, |less_one| less_one + 1));
        for _ in 0..number(self)? {
            number(self)?;
            let length = number(self)?;
            self.take(length, TAGS)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), GroupRecordError> {
        if self.flexible {
            self.tags()?;
        }
        self.end()
    }

    fn end(&self) -> Result<(), GroupRecordError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(GroupRecordError::LeftOver(self.bytes.len())) }
    }
}

/// Texts come from requests, whose strings these records can hold: longer ones are refused before (12, 24).
fn put_string(out: &mut BytesMut, text: &str) {
    let length = i16::try_from(text.len()).unwrap_or(i16::MAX);
    out.put_i16(length);
    out.put_slice(&text.as_bytes()[..usize::try_from(length).unwrap_or(0)]);
}

fn put_nullable(out: &mut BytesMut, text: Option<&str>) {
    match text {
        Some(text) => put_string(out, text),
        None => out.put_i16(-1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member() -> MemberValue {
        MemberValue {
            member_id: "c-1".to_owned(),
            group_instance_id: Some("i".to_owned()),
            client_id: "c".to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            rebalance_timeout_ms: 300_000,
            session_timeout_ms: 45_000,
            subscription: Bytes::from_static(&[0, 1]),
            assignment: Bytes::from_static(&[2]),
        }
    }

    fn group() -> GroupValue {
        GroupValue {
            protocol_type: "consumer".to_owned(),
            generation: 7,
            protocol: Some("range".to_owned()),
            leader: Some("c-1".to_owned()),
            state_since: Timestamp(1_700_000_000_000),
            members: vec![member()],
        }
    }

    #[test]
    fn the_bytes_are_kafkas() {
        let key = GroupKey::Offset { group: "g".to_owned(), topic: "t".to_owned(), partition: 3 };
        assert_eq!(key.encode().unwrap(), &[0, 1, 0, 1, b'g', 0, 1, b't', 0, 0, 0, 3][..]);
        assert_eq!(GroupKey::Group { group: "g".to_owned() }.encode().unwrap(), &[0, 2, 0, 1, b'g'][..]);
        let value = OffsetValue {
            offset: 5,
            leader_epoch: 2,
            metadata: "m".to_owned(),
            committed_at: Timestamp(6),
            expires_at: None,
        };
        let bytes = [0, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 1, b'm', 0, 0, 0, 0, 0, 0, 0, 6];
        assert_eq!(value.encode(), &bytes[..]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        for key in [
            GroupKey::Offset { group: "g".to_owned(), topic: "t".to_owned(), partition: 3 },
            GroupKey::Group { group: String::new() },
        ] {
            assert_eq!(GroupKey::decode(&key.encode().unwrap()), Ok(key));
        }
        assert_eq!(GroupKey::decode(&[0, 9, 1, 2, 3]), Ok(GroupKey::Unknown(9)));
        assert_eq!(GroupKey::Unknown(9).encode(), None);
        for value in [group(), GroupValue { protocol: None, leader: None, members: vec![], ..group() }] {
            assert_eq!(GroupValue::decode(&value.encode()), Ok(value));
        }
    }

    #[test]
    fn older_and_newer_values_are_read() {
        // Version 1 of an offset: with the time it expires.
        let v1 = [0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 9];
        let read = OffsetValue::decode(&v1).unwrap();
        assert_eq!((read.offset, read.leader_epoch, read.expires_at), (5, -1, Some(Timestamp(9))));
        // Version 4: compact, with tagged fields (a topic id is one).
        let mut v4 = vec![0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 2, b'm', 0, 0, 0, 0, 0, 0, 0, 6];
        v4.extend([1, 0, 3, 7, 7, 7]);
        let read = OffsetValue::decode(&v4).unwrap();
        assert_eq!((read.offset, read.leader_epoch, read.metadata.as_str()), (5, 2, "m"));
        // Version 0 of a group: no times, no instance ids.
        let mut v0 = vec![0, 0, 0, 1, b'c', 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1];
        v0.extend([0, 1, b'm', 0, 1, b'c', 0, 1, b'h', 0, 0, 0, 9, 0, 0, 0, 1, 8, 0, 0, 0, 0]);
        let read = GroupValue::decode(&v0).unwrap();
        assert_eq!((read.members[0].rebalance_timeout_ms, read.state_since), (9, Timestamp(-1)));
        assert_eq!(OffsetValue::decode(&[0, 5]), Err(GroupRecordError::Version(5)));
    }

    proptest! {
        #[test]
        fn damage_is_told_and_costs_nothing(cut in 0usize..80, at in 0usize..80, bits in 1u8..) {
            let whole = group().encode();
            let cut = cut.min(whole.len() - 1);
            prop_assert!(GroupValue::decode(&whole[..cut]).is_err());
            let mut bent = whole.to_vec();
            let at = at.min(bent.len() - 1);
            bent[at] ^= bits;
            let _ = GroupValue::decode(&bent);
            let _ = GroupKey::decode(&bent);
            let _ = OffsetValue::decode(&bent);
        }
    }
}
