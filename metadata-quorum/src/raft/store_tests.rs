//! openraft's own suite on our store, and what only our store promises.

use std::sync::Arc;

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;

use super::log_store::LogStore;
use super::state_machine::StateMachine;
use super::store::{MetaStore, OpenError, STORE_FORMAT};
use super::types::TypeConfig;

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let directory = TempDir::new().unwrap();
        let store = Arc::new(MetaStore::open(directory.path(), 0).unwrap());
        let log = LogStore::open(Arc::clone(&store)).unwrap();
        let (machine, _) = StateMachine::open(store).unwrap();
        Ok((directory, log, machine))
    }
}

#[test]
fn the_store_passes_the_suite_of_openraft() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Suite::test_all(Builder).await.unwrap() });
}

/// The store of the simulation.
#[cfg(feature = "sim")]
mod simulated {
    use super::super::store::in_memory::{Latency, SimDisk};
    use super::*;

    struct InMemory;

    fn disk() -> SimDisk {
        SimDisk::new(1, Latency { usual_ms: 0..1, slow_ms: 0..1 })
    }

    impl StoreBuilder<TypeConfig, LogStore, StateMachine, ()> for InMemory {
        async fn build(&self) -> Result<((), LogStore, StateMachine), StorageError<TypeConfig>> {
            let store = Arc::new(MetaStore::in_memory(&disk(), 0).await.unwrap());
            let log = LogStore::open(Arc::clone(&store)).unwrap();
            let (machine, _) = StateMachine::open(store).unwrap();
            Ok(((), log, machine))
        }
    }

    #[test]
    fn the_simulated_store_passes_the_suite_of_openraft() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { Suite::test_all(InMemory).await.unwrap() });
    }

    #[test]
    fn a_simulated_disk_keeps_what_was_synced_and_of_the_rest_a_prefix() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut kept = std::collections::BTreeSet::new();
            for seed in 0..40 {
                let disk = SimDisk::new(seed, Latency { usual_ms: 0..1, slow_ms: 0..1 });
                let store = MetaStore::in_memory(&disk, 0).await.unwrap();
                for key in 0..10u8 {
                    store.state.insert(&[key], &[key]).unwrap();
                    if key == 4 {
                        store.synced().await.unwrap();
                    }
                }
                let lost = disk.lose_power();
                let left: Vec<u8> = store.state.range::<&[u8]>(..).map(|row| row.unwrap().0[0]).collect();
                let expected: Vec<u8> = (0..10 - u8::try_from(lost).unwrap()).collect();
                assert_eq!(left, expected);
                assert!(left.len() >= 5, "what was synced is there");
                kept.insert(left.len());
            }
            assert!(kept.contains(&5) && kept.contains(&10) && kept.len() > 2, "nothing, all, and something between");
        });
    }
}

#[test]
fn a_directory_in_use_is_refused_with_its_holder() {
    let directory = TempDir::new().unwrap();
    let first = MetaStore::open(directory.path(), 1).unwrap();
    let Err(OpenError::Locked { holder, .. }) = MetaStore::open(directory.path(), 1) else { panic!("opened twice") };
    assert_eq!(holder, std::process::id().to_string());
    first.close();
    drop(first);
    MetaStore::open(directory.path(), 1).unwrap().close();
}

#[test]
fn another_node_and_a_newer_format_are_refused() {
    let directory = TempDir::new().unwrap();
    let store = MetaStore::open(directory.path(), 1).unwrap();
    let id = store.directory_id();
    store.close();
    drop(store);
    assert!(matches!(MetaStore::open(directory.path(), 2), Err(OpenError::OtherNode { found: 1, given: 2 })));

    let again = MetaStore::open(directory.path(), 1).unwrap();
    assert_eq!(again.directory_id(), id, "minted once");
    again.close();
    drop(again);

    let properties = directory.path().join("meta.properties");
    let text = std::fs::read_to_string(&properties).unwrap().replace(&format!("version={STORE_FORMAT}"), "version=7");
    std::fs::write(&properties, text).unwrap();
    let refused = MetaStore::open(directory.path(), 1).unwrap_err();
    let newest = format!("format 7 is newer than {STORE_FORMAT}");
    assert!(refused.to_string().contains(&newest), "{refused}");
}

#[test]
fn a_database_that_has_forgotten_a_sync_is_refused() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("store").join("db");
    let sync = || {
        let store = MetaStore::open(directory.path(), 1).unwrap();
        store.raft.insert(&[0x7f], b"acknowledged").unwrap();
        let (done, synced) = std::sync::mpsc::channel();
        store.sync(move |result| done.send(result).unwrap());
        synced.recv().unwrap().unwrap();
        store.close();
    };
    sync();
    let earlier = std::fs::read(&database).unwrap();
    sync();
    sync();
    std::fs::write(&database, earlier).unwrap();
    let refused = MetaStore::open(directory.path(), 1).unwrap_err();
    assert!(matches!(refused, OpenError::Forgot { found: 2, known: 4, .. }), "{refused}");

    std::fs::remove_file(directory.path().join("sync-count")).unwrap();
    sync();
    MetaStore::open(directory.path(), 1).unwrap().close();
}
