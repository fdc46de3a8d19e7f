//! A directory of logs: lock, identity, marks and checkpoints.

use highwater_quorum::controller::DataClaim;
use highwater_wire::{BrokerId, ClusterId};

use super::*;
use crate::disk::FsDisk;
use crate::disk::sim::{Crash, SimDisk};

const DIR: &str = "/data";

fn opening() -> Opening {
    Opening {
        cluster: ClusterId("c".to_owned()),
        broker: BrokerId(1),
        boot_id: Some("b1".to_owned()),
        boot_time_ms: 10,
    }
}

fn open(disk: &SimDisk, opening: &Opening) -> (Arc<LogDir<SimDisk>>, Previous) {
    LogDir::open(disk.clone(), Path::new(DIR), opening).unwrap()
}

#[test]
fn a_new_directory_is_formatted_once_and_belongs_to_its_broker() {
    let disk = SimDisk::new();
    let (dir, previous) = open(&disk, &opening());
    assert!(previous.fresh);
    let id = dir.id();
    drop(dir);
    let (dir, previous) = open(&disk, &opening());
    assert!(!previous.fresh);
    assert_eq!(dir.id(), id);
    drop(dir);
    let other = Opening { broker: BrokerId(2), ..opening() };
    let Err(error) = LogDir::open(disk.clone(), Path::new(DIR), &other) else { panic!("opened another's directory") };
    let text = error.to_string();
    assert!(text.contains("node.id is 1") && text.contains("broker's is 2") && text.contains("/data/"), "{text}");
}

#[test]
fn a_second_process_is_refused_with_the_holders_id() {
    let root = tempfile::tempdir().unwrap();
    let _held = LogDir::open(FsDisk, root.path(), &opening()).unwrap();
    let Err(error) = LogDir::open(FsDisk, root.path(), &opening()) else { panic!("opened twice") };
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
}

#[test]
fn a_newer_format_is_refused_with_its_version() {
    let disk = SimDisk::new();
    drop(open(&disk, &opening()));
    checkpoint::write_atomically(&disk, &Path::new(DIR).join(STARTS), b"9\n0\n").unwrap();
    let Err(error) = LogDir::open(disk.clone(), Path::new(DIR), &opening()) else { panic!("read version 9") };
    assert!(error.to_string().contains("format version 9"), "{error}");
    checkpoint::write_atomically(&disk, &Path::new(DIR).join("meta.properties"), b"version=3\n").unwrap();
    let Err(error) = LogDir::open(disk, Path::new(DIR), &opening()) else { panic!("read version 3") };
    assert!(error.to_string().contains("format version 3"), "{error}");
}

#[test]
fn the_mark_of_a_clean_stop_counts_once() {
    let disk = SimDisk::new();
    let (dir, previous) = open(&disk, &opening());
    assert_eq!(previous.clean_stop, None);
    dir.close_cleanly(Some(BrokerEpoch(42))).unwrap();
    drop(dir);
    let (dir, previous) = open(&disk, &opening());
    assert_eq!(previous.clean_stop, Some(Some(BrokerEpoch(42))));
    drop(dir);
    disk.crash(Crash::PowerLoss);
    assert_eq!(open(&disk, &opening()).1.clean_stop, None, "removed before anything else, and durably");
}

#[test]
fn a_directory_with_logs_that_were_never_recovered_is_not_marked_clean() {
    let disk = SimDisk::new();
    drop(open(&disk, &opening()));
    disk.create_dir_all(&Path::new(DIR).join("t-0")).unwrap();
    let (dir, _) = open(&disk, &opening());
    assert!(dir.close_cleanly(None).unwrap_err().to_string().contains("t-0"));
    dir.opened(&LogName::new("t", 0), Offset(0)).unwrap();
    assert!(dir.close_cleanly(None).unwrap_err().to_string().contains("t-0"));
    dir.closed(&LogName::new("t", 0), None, Offset(0));
    dir.close_cleanly(None).unwrap();
}

#[test]
fn only_the_same_boot_and_directory_prove_that_the_cache_survived() {
    let disk = SimDisk::new();
    let incarnation = IncarnationId::random();
    let (dir, previous) = open(&disk, &opening());
    assert_eq!(previous.survived, []);
    dir.write_running_marker(incarnation).unwrap();
    drop(dir);
    let later = Opening { boot_time_ms: 11, ..opening() };
    let survived = |opening: &Opening| open(&disk, opening).1.survived;
    assert_eq!(survived(&later), [incarnation]);
    assert_eq!(survived(&Opening { boot_id: Some("b2".to_owned()), ..later.clone() }), [], "another boot");
    assert_eq!(survived(&Opening { boot_id: None, ..later.clone() }), [], "an unreadable boot id");
    assert_eq!(survived(&Opening { boot_time_ms: 9, ..later.clone() }), [], "a smaller boot time");
    disk.rename(Path::new(DIR), Path::new("/other")).unwrap();
    disk.create_dir_all(Path::new(DIR)).unwrap();
    for file in ["meta.properties", RUNNING] {
        let content = disk.read(&Path::new("/other").join(file)).unwrap();
        checkpoint::write_atomically(&disk, &Path::new(DIR).join(file), &content).unwrap();
    }
    let (_dir, previous) = open(&disk, &later);
    assert_eq!(previous.survived, []);
    assert!(previous.doubt.unwrap().contains("another directory"));
}

/// A broker that is killed again while it starts has lost nothing, and the quorum knows only the process before
/// (simulation, seed 123: leaderless for ever).
#[test]
fn a_process_killed_before_it_registered_hands_on_what_it_found() {
    let disk = SimDisk::new();
    let ids: Vec<_> = (0..3).map(|_| IncarnationId::random()).collect();
    let (dir, _) = open(&disk, &opening());
    dir.write_running_marker(ids[0]).unwrap();
    dir.registered(ids[0]).unwrap();
    drop(dir);
    let (dir, _) = open(&disk, &opening());
    dir.write_running_marker(ids[1]).unwrap();
    drop(dir);
    let (dir, previous) = open(&disk, &opening());
    assert_eq!(previous.survived, [ids[1], ids[0]]);
    let survivors = DataClaim::Survivors { incarnations: vec![ids[1], ids[0]], clean_epoch: None };
    assert_eq!(previous.claim(), survivors);
    dir.write_running_marker(ids[2]).unwrap();
    dir.registered(ids[2]).unwrap();
    drop(dir);
    let (_dir, previous) = open(&disk, &opening());
    assert_eq!(
        previous.claim(),
        DataClaim::SameBoot { incarnation: ids[2] },
        "it has registered: the others count no more"
    );
}

#[test]
fn a_clean_stop_is_handed_on_until_a_process_has_registered() {
    let disk = SimDisk::new();
    let (dir, _) = open(&disk, &opening());
    dir.close_cleanly(Some(BrokerEpoch(5))).unwrap();
    drop(dir);
    let reboot = Opening { boot_id: Some("b2".to_owned()), ..opening() };
    let (dir, _) = open(&disk, &reboot);
    let started = IncarnationId::random();
    dir.write_running_marker(started).unwrap();
    drop(dir);
    let (_dir, previous) = open(&disk, &reboot);
    let clean_epoch = Some(BrokerEpoch(5));
    assert_eq!((previous.clean_stop, previous.clean_before), (None, clean_epoch));
    assert_eq!(previous.claim(), DataClaim::Survivors { incarnations: vec![started], clean_epoch });
}

#[test]
fn watermarks_of_logs_not_named_are_kept() {
    let disk = SimDisk::new();
    let (a, b) = (LogName::new("a", 0), LogName::new("b", 3));
    let (dir, _) = open(&disk, &opening());
    dir.checkpoint_watermarks([(a.clone(), Offset(5)), (b.clone(), Offset(7))]).unwrap();
    dir.checkpoint_watermarks([(a.clone(), Offset(6))]).unwrap();
    drop(dir);
    disk.crash(Crash::PowerLoss);
    let (dir, _) = open(&disk, &opening());
    assert_eq!((dir.watermark(&a), dir.watermark(&b)), (Offset(6), Offset(7)));
}

/// Simulation, seed 688: the topic was deleted and made again under the same name around a kill.
#[test]
fn a_log_deleted_just_before_a_kill_leaves_no_marks_either() {
    let disk = SimDisk::new();
    let name = LogName::new("t", 0);
    let (dir, _) = open(&disk, &opening());
    disk.create_dir_all(&dir.log_path(&name)).unwrap();
    dir.checkpoint_watermarks([(name.clone(), Offset(335))]).unwrap();
    dir.delete_log(&name).unwrap();
    drop(dir);
    disk.crash(Crash::Killed);
    let (dir, _) = open(&disk, &opening());
    assert_eq!(dir.watermark(&name), Offset(0));
}

/// Simulation, seed 5460: the topic was deleted while the broker was away, and made again after it was killed once more.
#[test]
fn a_log_set_aside_just_before_a_kill_leaves_no_marks_either() {
    let disk = SimDisk::new();
    let name = LogName::new("t", 0);
    let (dir, _) = open(&disk, &opening());
    disk.create_dir_all(&dir.log_path(&name)).unwrap();
    dir.checkpoint_watermarks([(name.clone(), Offset(335))]).unwrap();
    dir.checkpoint_starts([(name.clone(), Offset(7))]).unwrap();
    dir.set_aside(&name).unwrap();
    drop(dir);
    disk.crash(Crash::PowerLoss);
    let (dir, _) = open(&disk, &opening());
    assert_eq!((dir.watermark(&name), dir.marks(&name).start), (Offset(0), Offset(0)));
}

#[test]
fn a_deleted_log_leaves_the_checkpoints_and_can_be_erased_later() {
    let disk = SimDisk::new();
    let name = LogName::new("t", 0);
    let (dir, _) = open(&disk, &opening());
    disk.create_dir_all(&dir.log_path(&name)).unwrap();
    dir.checkpoint_watermarks([(name.clone(), Offset(5))]).unwrap();
    let path = dir.delete_log(&name).unwrap();
    assert_eq!(dir.watermark(&name), Offset(0));
    assert_eq!(dir.found().unwrap(), []);
    assert_eq!(dir.left_over().unwrap(), std::slice::from_ref(&path));
    dir.erase(&[path.clone(), path]).unwrap();
    assert_eq!(dir.left_over().unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn a_lowered_recovery_point_is_durable_at_once_and_a_raised_one_later() {
    let disk = SimDisk::new();
    let name = LogName::new("t", 0);
    let (dir, _) = open(&disk, &opening());
    let durable = |disk: &SimDisk| {
        let table = Table::load(disk, Path::new(DIR), RECOVERY_POINTS, &mut Vec::new()).unwrap();
        table.now.get(&name).copied()
    };
    dir.note_recovery_point(&name, Offset(50)).unwrap();
    assert_eq!(durable(&disk), None);
    dir.checkpoint_recovery_points().unwrap();
    dir.note_recovery_point(&name, Offset(20)).unwrap();
    assert_eq!(durable(&disk), Some(Offset(20)));
}
