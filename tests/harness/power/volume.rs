//! A file system of its own on a loop device, whose power can be cut.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The last calls of a killed process may still be on their way.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(60);

/// A mounted ext4. Dropped: unmounted.
pub struct Volume {
    image: PathBuf,
    mounted: PathBuf,
}

impl Volume {
    /// Makes one of `bytes` in the folder `home`.
    ///
    /// # Panics
    /// Without the right to mount (root), or without mkfs.ext4.
    pub fn make(home: &Path, bytes: u64) -> Self {
        let image = home.join("disk");
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("room for an image");
        must(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(&image));
        Self::mount(image, home.join("mounted"))
    }

    fn mount(image: PathBuf, mounted: PathBuf) -> Self {
        fs::create_dir_all(&mounted).expect("a folder to mount at");
        // No commit of the journal by the clock: what is not synced stays in memory until the cut.
        must(Command::new("mount").args(["-o", "loop,commit=300"]).arg(&image).arg(&mounted));
        Self { image, mounted }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mounted
    }

    /// The file that is its block device.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Takes what has reached the block device, to be mounted by [`Volume::after`]. Whoever writes must be stopped, so that
    /// the copy is of one moment.
    pub fn copy(&self) -> PathBuf {
        let copy = self.image.with_extension("copy");
        fs::copy(&self.image, &copy).expect("room for a copy");
        copy
    }

    /// From this moment on nothing reaches the block device any more, and every call fails: whatever was under way is cut
    /// in the middle.
    pub fn shut_down(&self) {
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH. An ioctl is unsafe in Rust; perl is part of every Debian.
        const SHUT_DOWN: &str =
            r#"open(F,"<",$ARGV[0]) or die $!; my $f=pack("L",2); ioctl(F,0x8004587d,$f) or die $!"#;
        must(Command::new("perl").args(["-e", SHUT_DOWN]).arg(&self.mounted));
    }

    /// The volume when power is back, from a copy of what had reached the device: the journal is replayed. Never the same image
    /// again: whoever still holds the old mount would share its memory.
    pub fn after(self, copy: PathBuf) -> Self {
        let (image, mounted) = (self.image.clone(), self.mounted.clone());
        drop(self);
        fs::rename(copy, &image).expect("a copy replaces its original");
        Self::mount(image, mounted)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let until = Instant::now() + UNMOUNT_PATIENCE;
        let unmounted = || Command::new("umount").arg(&self.mounted).status().is_ok_and(|status| status.success());
        while !unmounted() {
            // Mounted again as it is, it would be the same file system, still without power.
            assert!(Instant::now() < until, "{} cannot be unmounted", self.mounted.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn must(command: &mut Command) {
    let status = command.status();
    let done = status.as_ref().is_ok_and(std::process::ExitStatus::success);
    assert!(done, "{command:?}: {status:?}; power cuts mount loop devices: they need root and mkfs.ext4");
}
