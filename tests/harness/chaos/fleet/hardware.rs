//! What the nodes of a fleet stand on, and what can be done to that: disks, links, processor time, a second machine.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::super::links::{LinkId, Links, Mode};
use super::{CONTROLLER_PORT, Fleet, HTTP_PORT, REPLICATION_PORT};
use crate::power::volume::Volume;

/// What a node's own disk holds.
const DISK_BYTES: u64 = 160 << 20;
/// What it may have of the machine's memory.
const MEMORY_BYTES: u64 = 512 << 20;
const CPU_PERIOD_US: u32 = 100_000;
/// What fills a disk.
const BALLAST: &str = "ballast";
/// Puts another boot id in the place of the machine's, for this process only, whose mounts are its own.
const BOOT: &str = r#"mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@""#;

impl Fleet {
    pub(super) fn make_links(&self) -> Links {
        let nodes: Vec<_> = self.nodes().map(|node| (self.networks.namespace(node), self.address_v4(node))).collect();
        Links::make(&nodes, &[CONTROLLER_PORT, REPLICATION_PORT])
    }

    pub(super) fn make_disk(&self, node: u8) -> Volume {
        let volume = Volume::make(&self.home(node), DISK_BYTES);
        self.boot_anew(node);
        volume
    }

    fn boot_file(&self, node: u8) -> PathBuf {
        self.home(node).join("boot_id")
    }

    fn boot_anew(&self, node: u8) {
        let id = rand::random::<u128>();
        fs::write(self.boot_file(node), format!("{id:032x}\n")).expect("a file for the boot id");
    }

    /// The binary in the namespace of a node, on the boot of that node if it has one of its own.
    pub(super) fn command(&self, node: u8, namespace: u8) -> Command {
        if !self.build.disks {
            return self.networks.command(namespace, &self.build.binary);
        }
        let mut command = self.networks.command(namespace, Path::new("sh"));
        command.args(["-c", BOOT]).arg(self.boot_file(node)).arg(&self.build.binary);
        command
    }

    /// # Panics
    /// The fleet was built without proxies.
    pub fn set_links(&self, links: &[LinkId], mode: Mode) {
        self.links.as_ref().expect("a fleet with proxies").set(links, mode);
    }

    /// What was not synced is gone, and the next start is on another boot. The node must be stopped.
    pub fn cut_power(&self, node: u8) {
        let mut disk = self.disks[usize::from(node) - 1].lock();
        let volume = disk.take().expect("a fleet with disks");
        let copy = volume.copy();
        self.kill(node);
        *disk = Some(volume.after(copy));
        self.boot_anew(node);
    }

    /// Not one byte more fits the disk of a node.
    pub fn fill_disk(&self, node: u8) {
        let mut ballast = File::create(self.disk(node).join(BALLAST)).expect("a file");
        let mut bytes = vec![0; 1 << 20];
        while !bytes.is_empty() {
            // A refusal of many bytes leaves room for fewer.
            if ballast.write_all(&bytes).is_err() {
                bytes.truncate(bytes.len() / 16);
            }
        }
    }

    pub fn free_disk(&self, node: u8) {
        fs::remove_file(self.disk(node).join(BALLAST)).expect("the ballast is there");
    }

    /// Turns a bit of a segment of a node that does not run; says where. `None`: there is nothing to turn.
    pub fn turn_a_bit(&self, node: u8, chance: u64) -> Option<String> {
        let logs = fs::read_dir(self.data_dir(node)).ok()?.flatten().filter(|dir| dir.path().is_dir());
        let mut segments: Vec<(PathBuf, u64)> = logs
            .flat_map(|dir| fs::read_dir(dir.path()).into_iter().flatten().flatten())
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
            .filter_map(|path| Some((path.clone(), fs::metadata(path).ok()?.len())))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        segments.sort();
        let (path, bytes) = segments.get(usize::try_from(chance % segments.len().max(1) as u64).ok()?)?;
        let bit = (chance >> 16) % (bytes * 8);
        turn(path, bit).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name: PathBuf = path.iter().rev().take(2).collect::<Vec<_>>().into_iter().rev().collect();
        Some(format!("bit {bit} of {}", name.display()))
    }

    /// A second process of a node's id: on the same files, or on a machine of its own with none.
    pub fn start_twin(&self, node: u8, stranger: bool) -> Child {
        let home = if stranger { self.build.dir.join("twin") } else { self.home(node) };
        if stranger {
            let _ = fs::remove_dir_all(&home);
            fs::create_dir_all(&home).expect("a folder for the twin");
            let (own, other) = (self.ip(node).to_string(), self.ip(self.spare()).to_string());
            let text = fs::read_to_string(self.home(node).join("server.properties")).expect("a configuration");
            let is_address = |line: &str| line.starts_with("advertised.") || line.starts_with("http.");
            let text: Vec<String> = text
                .lines()
                .map(|line| if is_address(line) { line.replace(&own, &other) } else { line.to_owned() })
                .map(|line| line.replace(&self.home(node).display().to_string(), &home.display().to_string()))
                .collect();
            fs::write(home.join("server.properties"), text.join("\n")).expect("a configuration file");
        }
        let log = File::options().create(true).append(true).open(self.build.dir.join("twin.log")).expect("a log file");
        let mut command = self.command(node, if stranger { self.spare() } else { node });
        command.args(["start", "--config"]).arg(home.join("server.properties")).current_dir(&home);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        command.spawn().expect("the binary starts")
    }

    /// Whether the stranger serves.
    pub async fn twin_is_ready(&self) -> bool {
        let url = format!("http://{}:{HTTP_PORT}/health/ready", self.ip(self.spare()));
        let answer = self.http.get(url).timeout(Duration::from_secs(1)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// The namespace in which no node lives.
    const fn spare(&self) -> u8 {
        self.build.nodes + 1
    }

    /// So many percent of a core, or as much as there is.
    pub fn limit_cpu(&self, node: u8, percent: Option<u32>) {
        let cgroup = Cgroup { name: self.networks.namespace(node) };
        cgroup.limit_cpu(percent).unwrap_or_else(|error| panic!("processor time cannot be limited: {error}"));
    }
}

fn turn(path: &Path, bit: u64) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.seek(SeekFrom::Start(bit / 8))?;
    file.read_exact(&mut byte)?;
    byte[0] ^= 1 << (bit % 8);
    file.seek(SeekFrom::Start(bit / 8))?;
    file.write_all(&byte)
}

/// Limits of one node, in either kind of hierarchy.
pub(super) struct Cgroup {
    pub name: String,
}

impl Cgroup {
    const ROOT: &str = "/sys/fs/cgroup";

    fn is_v2() -> bool {
        Path::new(Self::ROOT).join("cgroup.controllers").exists()
    }

    fn folder(&self, controller: &str) -> PathBuf {
        let root = Path::new(Self::ROOT);
        if Self::is_v2() { root.join(&self.name) } else { root.join(controller).join(&self.name) }
    }

    /// # Errors
    /// This machine has none, or does not let us.
    pub fn make(&self) -> io::Result<()> {
        if Self::is_v2() {
            fs::write(Path::new(Self::ROOT).join("cgroup.subtree_control"), "+cpu +memory")?;
            fs::create_dir_all(self.folder("cpu"))?;
            return fs::write(self.folder("memory").join("memory.max"), MEMORY_BYTES.to_string());
        }
        for controller in ["cpu", "memory"] {
            fs::create_dir_all(self.folder(controller))?;
        }
        fs::write(self.folder("memory").join("memory.limit_in_bytes"), MEMORY_BYTES.to_string())
    }

    pub fn enter(&self, pid: u32) -> io::Result<()> {
        for controller in ["cpu", "memory"] {
            fs::write(self.folder(controller).join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    fn limit_cpu(&self, percent: Option<u32>) -> io::Result<()> {
        let quota = percent.map(|percent| percent * CPU_PERIOD_US / 100);
        let (file, text) = if Self::is_v2() {
            ("cpu.max", format!("{} {CPU_PERIOD_US}", quota.map_or("max".to_owned(), |us| us.to_string())))
        } else {
            ("cpu.cfs_quota_us", quota.map_or("-1".to_owned(), |us| us.to_string()))
        };
        fs::write(self.folder("cpu").join(file), text)
    }

    pub fn remove(&self) {
        for controller in ["cpu", "memory"] {
            let _ = fs::remove_dir(self.folder(controller));
        }
    }
}

/// Why this machine cannot limit a node's processor time; `None`: it can.
pub fn lacks_cgroups() -> Option<io::Error> {
    let trial = Cgroup { name: format!("hwt{}trial", std::process::id()) };
    let made = trial.make();
    trial.remove();
    made.err()
}
