//! What the simulated disk forgets on a crash, tears and refuses.

use super::*;

fn write(disk: &SimDisk, path: &str, content: &[u8]) -> SimFile {
    let file = disk.create(Path::new(path)).unwrap();
    file.write_at(&[IoSlice::new(content)], 0).unwrap();
    file
}

fn read(disk: &SimDisk, path: &str) -> Vec<u8> {
    disk.read(Path::new(path)).unwrap()
}

#[test]
fn the_simulated_disk_passes_the_suite() {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new("/root")).unwrap();
    super::super::conformance::run(&disk, Path::new("/root"));
}

#[test]
fn a_killed_process_loses_nothing_and_a_power_loss_all_that_was_not_synced() {
    let disk = SimDisk::new();
    let file = write(&disk, "/a", b"synced");
    file.sync_data().unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    file.write_at(&[IoSlice::new(b"-not")], 6).unwrap();
    disk.crash(Crash::Killed);
    assert_eq!(read(&disk, "/a"), b"synced-not");
    assert!(file.len().is_err(), "a handle outlived its process");
    let file = disk.open(Path::new("/a")).unwrap();
    file.write_at(&[IoSlice::new(b"SY"), IoSlice::new(b"NC")], 0).unwrap();
    file.set_len(3).unwrap();
    disk.crash(Crash::PowerLoss);
    assert_eq!(read(&disk, "/a"), b"synced-not");
}

#[test]
fn names_survive_only_with_their_directory() {
    let disk = SimDisk::new();
    write(&disk, "/kept", b"1").sync_data().unwrap();
    write(&disk, "/replaced", b"2").sync_data().unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    write(&disk, "/new", b"3").sync_data().unwrap();
    disk.rename(Path::new("/new"), Path::new("/replaced")).unwrap();
    disk.remove(Path::new("/kept")).unwrap();
    disk.crash(Crash::PowerLoss);
    assert_eq!(read(&disk, "/kept"), b"1");
    assert_eq!(read(&disk, "/replaced"), b"2");
    assert!(!disk.exists(Path::new("/new")).unwrap());
}

#[test]
fn the_same_seed_keeps_the_same_bytes() {
    let after = |seed| {
        let disk = SimDisk::new();
        let file = write(&disk, "/a", b"0123456789");
        disk.sync_dir(Path::new("/")).unwrap();
        for at in 1..20 {
            file.write_at(&[IoSlice::new(&[at as u8; 7])], at * 7).unwrap();
        }
        disk.crash(Crash::PowerLossKeepingSome { seed });
        read(&disk, "/a")
    };
    assert_eq!(after(1), after(1));
    assert!((0..20).any(|seed| after(seed) != after(seed + 1)));
}

#[test]
fn a_failed_sync_is_never_made_good() {
    let disk = SimDisk::new();
    let file = write(&disk, "/a", b"1");
    disk.sync_dir(Path::new("/")).unwrap();
    disk.fail_sync_after(0);
    assert!(file.sync_data().is_err());
    assert!(file.sync_data().is_ok(), "the kernel forgets the error");
    disk.crash(Crash::PowerLoss);
    assert_eq!(read(&disk, "/a"), b"");
}

#[test]
fn a_full_disk_takes_what_fits() {
    let disk = SimDisk::new();
    let file = write(&disk, "/a", b"12345");
    disk.set_capacity(Some(8));
    assert_eq!(file.write_at(&[IoSlice::new(b"67890")], 5).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(read(&disk, "/a"), b"12345678");
    disk.remove(Path::new("/a")).unwrap();
    write(&disk, "/b", b"1234567");
}

#[test]
fn a_stopped_process_tears_its_last_write() {
    let disk = SimDisk::new();
    let file = write(&disk, "/a", b"");
    disk.stop_at(disk.changes(), 128);
    assert!(file.write_at(&[IoSlice::new(b"12345678")], 0).is_err());
    assert!(file.write_at(&[IoSlice::new(b"more")], 0).is_err());
    assert!(disk.create(Path::new("/b")).is_err());
    disk.crash(Crash::Killed);
    assert_eq!(read(&disk, "/a"), b"1234");
}
