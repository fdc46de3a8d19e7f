//! What every disk must do, as one suite. Run it on an empty directory.

use std::io::{ErrorKind, IoSlice};
use std::path::Path;

use super::{DirEntry, Disk, DiskFile, LockAttempt};

/// Runs the whole suite below `root`. Panics at the first difference.
pub fn run<D: Disk>(disk: &D, root: &Path) {
    reads_stop_at_the_end(disk, root);
    vectored_writes_land_in_order(disk, root);
    lengths_change_with_zeros(disk, root);
    renames_replace_and_removals_spare_open_files(disk, root);
    directories_are_listed_in_order(disk, root);
    what_is_missing_is_not_found(disk, root);
    locks_exclude(disk, root);
}

fn reads_stop_at_the_end<D: Disk>(disk: &D, root: &Path) {
    let file = disk.create(&root.join("reads")).expect("create");
    file.write_at(&[IoSlice::new(b"0123456789")], 0).expect("write");
    let mut buffer = [0xFF; 4];
    assert_eq!(file.read_at(&mut buffer, 8).expect("read at the end"), 2);
    assert_eq!(&buffer[..2], b"89");
    assert_eq!(file.read_at(&mut buffer, 10).expect("read behind the end"), 0);
    assert_eq!(file.read_at(&mut buffer, 3).expect("read inside"), 4);
    assert_eq!(&buffer, b"3456");
    let mut appended = b"ab".to_vec();
    assert_eq!(file.read_into(&mut appended, 100, 7).expect("read into"), 3);
    assert_eq!(appended, b"ab789");
    assert_eq!(file.read_into(&mut appended, 2, 0).expect("read into"), 2);
    assert_eq!(appended, b"ab78901");
    assert_eq!(disk.read(&root.join("reads")).expect("read whole"), b"0123456789");
}

fn vectored_writes_land_in_order<D: Disk>(disk: &D, root: &Path) {
    let file = disk.create(&root.join("writes")).expect("create");
    file.write_at(&[IoSlice::new(b"head"), IoSlice::new(b""), IoSlice::new(b"-rest")], 3).expect("write past the end");
    assert_eq!(disk.read(&root.join("writes")).expect("read"), b"\0\0\0head-rest");
    file.write_at(&[IoSlice::new(b"HE"), IoSlice::new(b"AD")], 3).expect("overwrite");
    assert_eq!(disk.read(&root.join("writes")).expect("read"), b"\0\0\0HEAD-rest");
    file.sync_data().expect("sync");
    file.preallocate(1 << 16).expect("preallocate");
    assert_eq!(file.len().expect("length"), 12, "reserved room is no length");
    let again = disk.create(&root.join("writes")).expect("create again");
    assert_eq!(again.len().expect("length"), 0, "creating empties");
}

fn lengths_change_with_zeros<D: Disk>(disk: &D, root: &Path) {
    let file = disk.create(&root.join("lengths")).expect("create");
    file.write_at(&[IoSlice::new(b"abcdef")], 0).expect("write");
    file.set_len(2).expect("cut");
    file.set_len(5).expect("lengthen");
    assert_eq!(disk.read(&root.join("lengths")).expect("read"), b"ab\0\0\0", "what was cut does not come back");
}

fn renames_replace_and_removals_spare_open_files<D: Disk>(disk: &D, root: &Path) {
    let (from, to) = (root.join("from"), root.join("to"));
    disk.create(&from).expect("create").write_at(&[IoSlice::new(b"new")], 0).expect("write");
    disk.create(&to).expect("create").write_at(&[IoSlice::new(b"older")], 0).expect("write");
    let old = disk.open(&to).expect("open");
    disk.rename(&from, &to).expect("rename");
    assert!(!disk.exists(&from).expect("exists"));
    assert_eq!(disk.read(&to).expect("read"), b"new");
    assert_eq!(old.len().expect("length"), 5, "an open file outlives its name");
    let open = disk.open(&to).expect("open");
    disk.remove(&to).expect("remove");
    let mut buffer = [0; 3];
    assert_eq!(open.read_at(&mut buffer, 0).expect("read"), 3);
    assert_eq!(&buffer, b"new");
    disk.create_dir_all(&root.join("d1/inner")).expect("make directories");
    disk.create(&root.join("d1/inner/file")).expect("create");
    disk.rename(&root.join("d1"), &root.join("d2")).expect("rename a directory");
    assert!(disk.exists(&root.join("d2/inner/file")).expect("exists"));
    disk.sync_dir(root).expect("sync the directory");
    disk.remove_dir_all(&root.join("d2")).expect("remove the tree");
    assert!(!disk.exists(&root.join("d2/inner/file")).expect("exists"));
}

fn directories_are_listed_in_order<D: Disk>(disk: &D, root: &Path) {
    let dir = root.join("listed");
    disk.create_dir_all(&dir.join("b")).expect("make directories");
    disk.create_dir_all(&dir).expect("making one that exists is nothing");
    for name in ["c", "a"] {
        disk.create(&dir.join(name)).expect("create");
    }
    disk.create(&dir.join("b/hidden")).expect("create");
    let entry = |name: &str, is_dir| DirEntry { name: name.to_owned(), is_dir };
    assert_eq!(disk.list(&dir).expect("list"), [entry("a", false), entry("b", true), entry("c", false)]);
    let identity = disk.identity(&dir).expect("identity");
    assert_eq!(disk.identity(&dir).expect("identity"), identity);
    assert_ne!(disk.identity(&dir.join("b")).expect("identity").inode, identity.inode);
}

fn what_is_missing_is_not_found<D: Disk>(disk: &D, root: &Path) {
    let missing = root.join("missing");
    assert_eq!(disk.open(&missing).err().expect("no file").kind(), ErrorKind::NotFound);
    assert_eq!(disk.read(&missing).expect_err("no file").kind(), ErrorKind::NotFound);
    assert_eq!(disk.remove(&missing).expect_err("no file").kind(), ErrorKind::NotFound);
    assert_eq!(disk.remove_dir_all(&missing).expect_err("no directory").kind(), ErrorKind::NotFound);
    assert_eq!(disk.list(&missing).expect_err("no directory").kind(), ErrorKind::NotFound);
    assert_eq!(disk.rename(&missing, &root.join("x")).expect_err("no file").kind(), ErrorKind::NotFound);
    assert_eq!(disk.create(&missing.join("file")).err().expect("no directory").kind(), ErrorKind::NotFound);
    assert!(!disk.exists(&missing).expect("exists"));
}

fn locks_exclude<D: Disk>(disk: &D, root: &Path) {
    let path = root.join(".lock");
    let LockAttempt::Held(held) = disk.lock(&path).expect("lock") else { panic!("a free lock was refused") };
    assert!(matches!(disk.lock(&path).expect("lock"), LockAttempt::HeldBy(_)), "locked twice");
    drop(held);
    assert!(matches!(disk.lock(&path).expect("lock"), LockAttempt::Held(_)), "a released lock was refused");
}
