//! Who and what: brokers, topics, partitions, processes, directories, producers.
//!
//! Ids are never interchangeable; the random ones are printed as Kafka prints them (URL-safe base64 of 16 bytes).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The `node.id` of a broker: 0 or greater. −1 on the wire means "none" ([`BrokerId::from_wire`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BrokerId(pub i32);

impl BrokerId {
    /// `None` for every negative number (Kafka uses −1 for "no leader", "no replica").
    pub fn from_wire(id: i32) -> Option<Self> {
        (id >= 0).then_some(Self(id))
    }

    /// −1 for `None`.
    pub fn to_wire(id: Option<Self>) -> i32 {
        id.map_or(-1, |broker| broker.0)
    }
}

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of an idempotent producer, minted by the quorum in blocks (KIP-98). −1 on the wire: not idempotent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProducerId(pub i64);

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no id of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not 16 bytes in URL-safe base64 (22 characters)")]
pub struct BadId(pub String);

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Uuid);

        impl $name {
            /// A fresh random id (version 4), never zero.
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }

            /// From 16 bytes, in the order of the wire.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// 16 bytes, in the order of the wire.
            pub const fn to_bytes(self) -> [u8; 16] {
                *self.0.as_bytes()
            }

            /// All zero: "none" on the wire.
            pub const fn is_zero(self) -> bool {
                self.0.is_nil()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&URL_SAFE_NO_PAD.encode(self.0.as_bytes()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| BadId(text.to_owned()))?;
                Uuid::from_slice(&bytes).map(Self).map_err(|_| BadId(text.to_owned()))
            }
        }
    };
}

random_id! {
    /// One creation of a topic. A name that is created again gets another id (R180).
    TopicId
}
impl From<kafka_wire_core::Uuid> for TopicId {
    fn from(id: kafka_wire_core::Uuid) -> Self {
        Self::from_bytes(id.to_bytes())
    }
}

impl From<TopicId> for kafka_wire_core::Uuid {
    fn from(id: TopicId) -> Self {
        Self::from_bytes(id.to_bytes())
    }
}

random_id! {
    /// One process of a broker, fresh at every start (R166).
    IncarnationId
}
random_id! {
    /// One formatting of a data or metadata directory (D1).
    DirectoryId
}

/// The cluster's name for itself: 22 characters of base64 unless an operator chose another text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub String);

impl ClusterId {
    /// A fresh random id.
    pub fn random() -> Self {
        Self(URL_SAFE_NO_PAD.encode(Uuid::new_v4().as_bytes()))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One partition of one creation of a topic; the key of all state that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    pub topic: TopicId,
    /// 0 or greater.
    pub partition: i32,
}

impl TopicPartition {
    pub const fn new(topic: TopicId, partition: i32) -> Self {
        Self { topic, partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_read_back_what_they_print() {
        let id = TopicId::random();
        assert_eq!(id.to_string().parse::<TopicId>().unwrap(), id);
        assert_eq!(id.to_string().len(), 22);
        assert!("short".parse::<TopicId>().is_err());
    }
}
