//! Rows against images: the golden log of the rules is applied, and after each entry the rows must say the same.

use std::collections::BTreeMap;

use super::rows::{ImageReader, RowSink, write_change, write_image};
use super::snapshot::{self, State};
use super::types::Membership;
use crate::controller::{Command, decide};
use crate::image::{ImageVersion, MetadataImage, state_hash};

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

/// Calls `each` after every entry with the image and the rows that its changes wrote.
fn replay(mut each: impl FnMut(&MetadataImage, &Rows)) {
    let entries: Vec<(u64, u16, Command)> = postcard::from_bytes(LOG).unwrap();
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
