//! Which Kafka APIs and versions are spoken here, and how each version is framed (R301).

use std::fmt;

/// An inclusive range of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    pub min: i16,
    pub max: i16,
}

impl Versions {
    pub const fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    pub fn iter(self) -> std::ops::RangeInclusive<i16> {
        self.min..=self.max
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.min, self.max)
    }
}

macro_rules! apis {
    ($($name:ident = $code:literal, $min:literal..=$max:literal, flexible $flexible:expr;)*) => {
        /// An API that is served. Any other key closes the connection.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ApiKey {
            $(#[doc = concat!("Key ", $code, ", versions ", $min, "–", $max)] $name,)*
        }

        impl ApiKey {
            /// In the order of their keys.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The key on the wire.
            pub const fn code(self) -> i16 {
                match self { $(Self::$name => $code,)* }
            }

            /// `None` for a key that is not served.
            pub const fn from_code(code: i16) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// Kafka's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The versions that are answered.
            pub const fn versions(self) -> Versions {
                match self { $(Self::$name => Versions { min: $min, max: $max },)* }
            }

            /// Whether a version writes compact lengths and tagged fields (KIP-482).
            pub const fn is_flexible(self, version: i16) -> bool {
                match self { $(Self::$name => version >= $flexible,)* }
            }
        }
    };
}

apis! {
    Produce = 0, 3..=13, flexible 9;
    Fetch = 1, 4..=18, flexible 12;
    ListOffsets = 2, 1..=10, flexible 6;
    Metadata = 3, 0..=13, flexible 9;
    OffsetCommit = 8, 2..=9, flexible 8;
    OffsetFetch = 9, 1..=9, flexible 6;
    FindCoordinator = 10, 0..=6, flexible 3;
    JoinGroup = 11, 0..=9, flexible 6;
    Heartbeat = 12, 0..=4, flexible 4;
    LeaveGroup = 13, 0..=5, flexible 4;
    SyncGroup = 14, 0..=5, flexible 4;
    DescribeGroups = 15, 0..=6, flexible 5;
    ListGroups = 16, 0..=5, flexible 3;
    ApiVersions = 18, 0..=4, flexible 3;
    CreateTopics = 19, 2..=7, flexible 5;
    DeleteTopics = 20, 1..=6, flexible 4;
    DeleteRecords = 21, 0..=2, flexible 2;
    InitProducerId = 22, 0..=5, flexible 2;
    OffsetForLeaderEpoch = 23, 2..=4, flexible 4;
    DescribeConfigs = 32, 1..=4, flexible 4;
    AlterConfigs = 33, 0..=2, flexible 2;
    DescribeLogDirs = 35, 1..=4, flexible 2;
    CreatePartitions = 37, 0..=3, flexible 2;
    DeleteGroups = 42, 0..=2, flexible 2;
    ElectLeaders = 43, 0..=2, flexible 2;
    IncrementalAlterConfigs = 44, 0..=1, flexible 1;
    OffsetDelete = 47, 0..=0, flexible i16::MAX;
    DescribeQuorum = 55, 0..=2, flexible 0;
    DescribeCluster = 60, 0..=2, flexible 0;
    DescribeProducers = 61, 0..=0, flexible 0;
    UnregisterBroker = 64, 0..=0, flexible 0;
    DescribeTopicPartitions = 75, 0..=0, flexible 0;
}

impl ApiKey {
    /// What ApiVersions says. Produce from 0 although 0–2 are refused: librdkafka before 2.10 otherwise takes it that
    /// gzip, snappy and lz4 are not understood (KAFKA-18659, R41).
    pub const fn advertised(self) -> Versions {
        let served = self.versions();
        match self {
            Self::Produce => Versions { min: 0, max: served.max },
            Self::Fetch
            | Self::ListOffsets
            | Self::Metadata
            | Self::FindCoordinator
            | Self::ApiVersions
            | Self::CreateTopics
            | Self::DeleteTopics
            | Self::InitProducerId
            | Self::OffsetForLeaderEpoch
            | Self::DescribeCluster
            | Self::DeleteRecords
            | Self::DescribeConfigs
            | Self::AlterConfigs
            | Self::DescribeLogDirs
            | Self::CreatePartitions
            | Self::ElectLeaders
            | Self::IncrementalAlterConfigs
            | Self::DescribeQuorum
            | Self::DescribeProducers
            | Self::UnregisterBroker
            | Self::DescribeTopicPartitions
            | Self::OffsetCommit
            | Self::OffsetFetch
            | Self::JoinGroup
            | Self::Heartbeat
            | Self::LeaveGroup
            | Self::SyncGroup
            | Self::DescribeGroups
            | Self::ListGroups
            | Self::DeleteGroups
            | Self::OffsetDelete => served,
        }
    }

    /// 2 for flexible versions (tagged fields behind the client id), else 1.
    pub const fn request_header_version(self, version: i16) -> i16 {
        if self.is_flexible(version) { 2 } else { 1 }
    }

    /// 1 for flexible versions (tagged fields behind the correlation id), else 0. ApiVersions always has 0, so that a
    /// client can read the answer to a version that the server does not know (KIP-511).
    pub const fn response_header_version(self, version: i16) -> i16 {
        match self {
            Self::ApiVersions => 0,
            _ => self.is_flexible(version) as i16,
        }
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_the_generated_messages() {
        for &api in ApiKey::ALL {
            assert_eq!(ApiKey::from_code(api.code()), Some(api));
            let known = kafka_wire::API_DESCRIPTORS.iter().find(|known| known.api_key.value() == api.code()).unwrap();
            for version in api.versions().iter() {
                let wire_version = kafka_wire_core::ApiVersion::new(version);
                assert!(known.supported_versions.contains(wire_version), "{api} {version}");
                let flexible = known.flexible_versions.is_some_and(|range| range.contains(wire_version));
                assert_eq!(api.is_flexible(version), flexible, "{api} {version}");
                assert_eq!(api.request_header_version(version), kafka_wire::request_header_version(flexible));
                let header = kafka_wire::response_header_version(known.api_key, wire_version, flexible);
                assert_eq!(api.response_header_version(version), header, "{api} {version}");
            }
        }
    }

    #[test]
    fn produce_is_advertised_from_zero_and_nothing_else_differs() {
        for &api in ApiKey::ALL {
            let expected = if api == ApiKey::Produce { Versions { min: 0, max: 13 } } else { api.versions() };
            assert_eq!(api.advertised(), expected);
        }
    }
}
