//! The addresses of controllers that were added to a living quorum.

use highwater_wire::{BrokerId, DirectoryId, Timestamp};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{Endpoint, MetadataImage};

fn register(node: i32, directory: u8, host: &str) -> Command {
    Command::RegisterController {
        node: BrokerId(node),
        directory: DirectoryId::from_bytes([directory; 16]),
        endpoint: Endpoint { host: host.to_owned(), port: 9093 },
        time: Timestamp(1),
    }
}

fn unregister(node: i32, directory: u8) -> Command {
    let (node, directory) = (BrokerId(node), DirectoryId::from_bytes([directory; 16]));
    Command::UnregisterController { node, directory, time: Timestamp(2) }
}

#[test]
fn a_controller_is_found_where_it_was_last_said_to_be() {
    let mut quorum = Quorum::new(1);
    quorum.run(register(4, 4, "a")).unwrap();
    quorum.run(register(4, 4, "b")).unwrap();
    let known = quorum.image.controllers.get(&BrokerId(4)).unwrap().clone();
    assert_eq!((known.endpoint.host.as_str(), known.directory), ("b", DirectoryId::from_bytes([4; 16])));
    let again = decide(&quorum.image, 99, RULE_VERSION, &register(4, 4, "b")).unwrap();
    assert!(again.changes.is_empty(), "a repeat changes nothing");
    quorum.run(unregister(4, 9)).unwrap();
    assert!(quorum.image.controllers.contains_key(&BrokerId(4)), "another disk's farewell");
    quorum.run(unregister(4, 4)).unwrap();
    quorum.run(unregister(4, 4)).unwrap();
    assert!(quorum.image.controllers.is_empty());
}

#[test]
fn an_address_that_cannot_be_dialled_is_refused_and_older_rules_know_no_controllers() {
    let mut quorum = Quorum::new(1);
    assert!(matches!(quorum.run(register(4, 4, "")), Err(Refusal::InvalidRegistration(_))));
    for command in [register(4, 4, "a"), unregister(4, 4)] {
        let refused = decide(&MetadataImage::default(), 1, 2, &command).unwrap_err();
        assert!(matches!(refused, Refusal::UnsupportedFeature { .. }), "{refused}");
    }
}
