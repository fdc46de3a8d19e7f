//! Rows against images: the golden log of the rules is applied, and after each entry the rows must say the same.

use std::collections::BTreeMap;

use highwater_wire::{BrokerId, DirectoryId, Timestamp};

use super::rows::{ImageReader, RowSink, write_change, write_image};
use super::snapshot::{self, State};
use super::types::Membership;
use crate::controller::testing::{creation, topic_id};
use crate::controller::{AlterConfigs, Command, ConfigAction, ConfigOperation, ConfigResource, RULE_VERSION, decide};
use crate::image::{Endpoint, ImageVersion, Inherited, MetadataImage, state_hash};

/// Every kind of command, see `controller/tests/golden.rs`.
const LOG: &[u8] = include_bytes!("../controller/tests/golden_rules_1.bin");

#[derive(Debug, Default, PartialEq, Eq)]
struct Rows(BTreeMap<Vec<u8>, Vec<u8>>);

impl RowSink for Rows {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.0.insert(key, value);
    }

    fn remove(&mut self, key: Vec<u8>) {
        self.0.remove(&key);
    }
}

/// What rules 3 added: two controllers, one of which moves and one of which goes.
fn controllers(first: u64) -> impl Iterator<Item = (u64, u16, Command)> {
    let (time, directory) = (Timestamp(1), DirectoryId::from_bytes([7; 16]));
    let at = |host: &str| Endpoint { host: host.to_owned(), port: 9093 };
    let register = |node, host: &str| {
        let (node, endpoint) = (BrokerId(node), at(host));
        Command::RegisterController { node, directory, endpoint, time }
    };
    let commands = [
        register(4, "a"),
        register(5, "b"),
        register(4, "c"),
        Command::UnregisterController { node: BrokerId(5), directory, time },
    ];
    (first..).zip(commands).map(|(index, command)| (index, 3, command))
}

/// Configurations set and taken back, and a topic that inherited some.
fn configured() -> Vec<Command> {
    let alter = |resource, key: &str, value: Option<&str>| {
        let action = value.map_or(ConfigAction::Delete, |value| ConfigAction::Set(value.to_owned()));
        let operations = vec![ConfigOperation { key: key.to_owned(), action }];
        Command::AlterConfigs(AlterConfigs { resource, replace: false, operations, expected: None, time: Timestamp(1) })
    };
    let one = ConfigResource::Broker(BrokerId(2));
    let inherited = Inherited { value: "3600000".to_owned(), set: true };
    vec![
        alter(ConfigResource::Topic(topic_id(1)), "retention.ms", Some("1000")),
        alter(ConfigResource::Brokers, "log.retention.ms", Some("5000")),
        Command::CreateTopicInheriting {
            part: creation(7, &[2], &[("flush.messages", "1")]),
            inherited: BTreeMap::from([("segment.ms".to_owned(), inherited)]),
        },
        alter(one, "max.connections", Some("100")),
        alter(one, "fetch.max.bytes", Some("100000")),
        alter(one, "max.connections", None),
        alter(ConfigResource::Brokers, "log.retention.ms", None),
        Command::DeleteTopic { id: topic_id(7), time: Timestamp(2) },
        alter(one, "fetch.max.bytes", None),
        Command::CreateTopicInheriting {
            part: creation(8, &[2], &[]),
            inherited: BTreeMap::from([("flush.ms".to_owned(), Inherited { value: "5".to_owned(), set: false })]),
        },
        alter(ConfigResource::Brokers, "log.roll.ms", Some("7000")),
    ]
}

/// Calls `each` after every entry with the image and the rows that its changes wrote.
fn replay(mut each: impl FnMut(&MetadataImage, &Rows)) {
    let mut entries: Vec<(u64, u16, Command)> = postcard::from_bytes(LOG).unwrap();
    let next = entries.last().map_or(1, |(index, ..)| index + 1);
    entries.extend(controllers(next));
    let next = entries.last().map_or(1, |(index, ..)| index + 1);
    entries.extend((next..).zip(configured()).map(|(index, command)| (index, RULE_VERSION, command)));
    let (mut image, mut rows) = (MetadataImage::default(), Rows::default());
    write_image(&mut rows, &image);
    for (index, rules, command) in entries {
        for change in decide(&image, index, rules, &command).map(|decision| decision.changes).unwrap_or_default() {
            write_change(&mut rows, &image, &change);
            image.apply(&change);
        }
        image.version = ImageVersion(index);
        each(&image, &rows);
    }
}

#[test]
fn rows_written_change_by_change_are_those_of_the_whole_image() {
    replay(|image, rows| {
        let mut whole = Rows::default();
        write_image(&mut whole, image);
        assert_eq!(*rows, whole, "after entry {}", image.version.0);
    });
}

#[test]
fn an_image_read_back_from_its_rows_is_the_same() {
    replay(|image, rows| {
        let mut reader = ImageReader::default();
        for (key, value) in &rows.0 {
            reader.row(key, value).unwrap();
        }
        let mut read = reader.finish().unwrap();
        // These two stand in the head of the state.
        read.cluster_id.clone_from(&image.cluster_id);
        read.feature_level = image.feature_level;
        assert_eq!(state_hash(&read), state_hash(image), "after entry {}", image.version.0);
        read.check_invariants();
    });
}

#[test]
fn a_snapshot_is_the_image_and_damage_to_it_is_noticed() {
    let mut last = None;
    replay(|image, _| last = Some(image.clone()));
    let state = State { applied: None, membership: Membership::default(), image: last.unwrap() };
    let bytes = snapshot::encode(&state);
    let read = snapshot::decode(&bytes).unwrap();
    assert_eq!(state_hash(&read.image), state_hash(&state.image));
    for at in (0..bytes.len()).step_by(bytes.len() / 50) {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 0x10;
        assert!(snapshot::decode(&damaged).is_err(), "byte {at}");
        assert!(snapshot::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
}
