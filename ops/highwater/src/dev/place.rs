//! Where the nodes of `highwater dev` live: `DATA/node-N` with its configuration, data, log and pid file.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{CliError, DevArgs, Exit};

/// The three ports of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) kafka: u16,
    pub(super) controller: u16,
    pub(super) http: u16,
}

impl Ports {
    /// Of node `node` (from 1). `None`: beyond 65535.
    fn of(node: u16, base: Option<u16>) -> Option<Self> {
        let further = node.checked_sub(1)?.checked_mul(100)?;
        let at = |port: u16| port.checked_add(further);
        Some(match base {
            None => Self { kafka: at(9092)?, controller: at(9093)?, http: at(8082)? },
            Some(base) => {
                Self { kafka: at(base)?, controller: at(base.checked_add(1)?)?, http: at(base.checked_add(2)?)? }
            }
        })
    }

    fn all(self) -> [u16; 3] {
        [self.kafka, self.controller, self.http]
    }
}

/// One node's folder.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) node: u16,
    pub(super) ports: Ports,
    dir: PathBuf,
}

/// Held while `highwater dev` runs on a data directory.
pub(super) struct Owned(#[expect(dead_code, reason = "its lock ends with it")] File);

/// Checks and writes everything that nodes need before they start.
pub(super) fn prepare(args: &DevArgs) -> Result<(Vec<Place>, Owned), CliError> {
    let data = &args.data;
    let failed = |error: io::Error| CliError::new(Exit::Failed, format!("{}: {error}", data.display()));
    fs::create_dir_all(data).map_err(failed)?;
    let data = data.canonicalize().map_err(failed)?;
    let lock = File::options().create(true).truncate(false).write(true).open(data.join("lock")).map_err(failed)?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let message = format!("{} is in use by another highwater dev; name another with --data", data.display());
        return Err(CliError::new(Exit::Conflict, message));
    }
    let there = nodes_in(&data);
    let count = match (args.nodes, there) {
        (Some(0), _) => return Err(CliError::new(Exit::Usage, "--nodes must be 1 or more")),
        (Some(asked), there) if there > 0 && asked != there => {
            let message = format!(
                "{} holds a cluster of {there} nodes, not {asked}: use --nodes {there}, or another --data",
                data.display()
            );
            return Err(CliError::new(Exit::Usage, message));
        }
        (Some(asked), _) => asked,
        (None, 0) => 1,
        (None, there) => there,
    };
    let mut places = Vec::new();
    for node in 1..=count {
        let ports = Ports::of(node, args.base_port)
            .ok_or_else(|| CliError::new(Exit::Usage, "the ports go beyond 65535: choose a smaller --base-port"))?;
        places.push(Place { node, ports, dir: data.join(format!("node-{node}")) });
    }
    for place in &places {
        // A node of an earlier run that outlived it.
        if let Some(pid) = place.running_pid() {
            signal(pid, Signal::KILL);
            while runs(pid) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        for port in place.ports.all() {
            if TcpListener::bind(("127.0.0.1", port)).is_err() {
                let message = format!(
                    "port {port}, which node {} needs, is in use: stop whoever uses it, or move all with --base-port",
                    place.node
                );
                return Err(CliError::new(Exit::Conflict, message));
            }
        }
    }
    for place in &places {
        place.write_config(&places, &args.set).map_err(failed)?;
    }
    Ok((places, Owned(lock)))
}

/// How many nodes a data directory holds.
fn nodes_in(data: &Path) -> u16 {
    (1..).take_while(|node| data.join(format!("node-{node}")).is_dir()).last().unwrap_or(0)
}

/// Whether a `highwater dev` runs on a data directory.
pub(super) fn is_owned(data: &Path) -> bool {
    let Ok(lock) = File::open(data.join("lock")) else { return false };
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
}

/// Sends a signal; a process that is gone needs none.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Whether a process is there and no zombie.
pub(super) fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    !state.is_empty() && !state.starts_with('Z') && !state.starts_with('X')
}

impl Place {
    /// An existing node's folder.
    pub(super) fn find(data: &Path, node: u16) -> Result<Self, CliError> {
        let none = || {
            let message =
                format!("there is no node {node} in {}: start some with highwater dev, or name --data", data.display());
            CliError::new(Exit::NotFound, message)
        };
        let dir = data.canonicalize().map_err(|_| none())?.join(format!("node-{node}"));
        let text = fs::read_to_string(dir.join("ports")).map_err(|_| none())?;
        let ports: Vec<u16> = text.split_whitespace().filter_map(|port| port.parse().ok()).collect();
        let [kafka, controller, http] = ports[..] else { return Err(none()) };
        Ok(Self { node, ports: Ports { kafka, controller, http }, dir })
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.dir.join("server.properties")
    }

    pub(super) fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(super) fn open_log(&self) -> io::Result<File> {
        File::options().create(true).append(true).open(self.log_file())
    }

    /// The last lines of its log.
    pub(super) fn log_tail(&self, lines: usize) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let all: Vec<&str> = log.lines().collect();
        let tail = &all[all.len().saturating_sub(lines)..];
        tail.iter().map(|line| format!("node {}: {line}\n", self.node)).collect()
    }

    pub(super) fn write_pid(&self, pid: u32) -> io::Result<()> {
        fs::write(self.dir.join("pid"), format!("{pid}\n"))
    }

    pub(super) fn remove_pid(&self) {
        let _ = fs::remove_file(self.dir.join("pid"));
    }

    /// The pid of its process, if that runs and really is this node.
    pub(super) fn running_pid(&self) -> Option<u32> {
        let pid: u32 = fs::read_to_string(self.dir.join("pid")).ok()?.trim().parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let config = self.config_file();
        let ours = command.split(|byte| *byte == 0).any(|part| part == config.as_os_str().as_encoded_bytes());
        (ours && runs(pid)).then_some(pid)
    }

    /// Leaves a note for the first terminal: start this node.
    pub(super) fn request(&self) -> io::Result<()> {
        fs::write(self.dir.join("start.request"), "")
    }

    /// Takes the note away; whether there was one.
    pub(super) fn take_request(&self) -> bool {
        fs::remove_file(self.dir.join("start.request")).is_ok()
    }

    fn write_config(&self, all: &[Self], set: &[String]) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let _ = self.take_request();
        let Ports { kafka, controller, http } = self.ports;
        fs::write(self.dir.join("ports"), format!("{kafka} {controller} {http}\n"))?;
        fs::write(self.config_file(), self.config(all, set))
    }

    fn config(&self, all: &[Self], set: &[String]) -> String {
        let Ports { kafka, controller, http } = self.ports;
        let voters: Vec<String> =
            all.iter().map(|place| format!("{}@127.0.0.1:{}", place.node, place.ports.controller)).collect();
        let mut lines = vec![
            "# Written by highwater dev at every start: change it with -X key=value".to_owned(),
            format!("node.id={}", self.node),
            "process.roles=broker,controller".to_owned(),
            format!("controller.quorum.voters={}", voters.join(",")),
            format!("listeners=PLAINTEXT://127.0.0.1:{kafka},CONTROLLER://127.0.0.1:{controller}"),
            "controller.listener.names=CONTROLLER".to_owned(),
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
            format!("http.listeners=http://127.0.0.1:{http}"),
            format!("log.dirs={}", self.dir.join("data").display()),
            format!("metadata.log.dir={}", self.dir.join("metadata").display()),
            format!("default.replication.factor={}", all.len().min(3)),
            "auto.create.topics.enable=true".to_owned(),
            // The first consumer of a group waits for nobody.
            "group.initial.rebalance.delay.ms=0".to_owned(),
        ];
        lines.extend(set.iter().cloned());
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{self, Surroundings};

    #[test]
    fn ports_are_kafkas_and_each_node_is_a_hundred_further() {
        assert_eq!(Ports::of(1, None), Some(Ports { kafka: 9092, controller: 9093, http: 8082 }));
        assert_eq!(Ports::of(3, None), Some(Ports { kafka: 9292, controller: 9293, http: 8282 }));
        assert_eq!(Ports::of(2, Some(20_000)), Some(Ports { kafka: 20_100, controller: 20_101, http: 20_102 }));
        assert_eq!(Ports::of(600, Some(20_000)), None);
    }

    #[test]
    fn what_dev_writes_is_a_configuration_without_a_single_finding() {
        let dir = tempfile::tempdir().unwrap();
        let places: Vec<Place> = (1..=3)
            .map(|node| Place {
                node,
                ports: Ports::of(node, None).unwrap(),
                dir: dir.path().join(format!("node-{node}")),
            })
            .collect();
        let text = places[1].config(&places, &["replica.lag.time.max.ms=5000".to_owned()]);
        let environment = BTreeMap::new();
        let report = config::read(
            Some((Path::new("server.properties"), &text)),
            &[],
            &Surroundings { environment: &environment },
        );
        assert_eq!(report.findings, []);
        let config = report.config.unwrap();
        assert_eq!(config.quorum.voters.len(), 3);
        assert_eq!(config.topics.replication_factor, 3);
        assert_eq!(config.data.replica_lag_max.as_millis(), 5000);
    }

    #[test]
    fn a_data_directory_of_another_size_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for node in 1..=3 {
            fs::create_dir_all(dir.path().join(format!("node-{node}"))).unwrap();
        }
        let args = DevArgs {
            verb: None,
            nodes: Some(1),
            data: dir.path().to_owned(),
            base_port: Some(31_000),
            set: Vec::new(),
        };
        let error = prepare(&args).map(|_| ()).unwrap_err();
        assert_eq!(error.exit, Exit::Usage);
        assert!(error.message.contains("holds a cluster of 3 nodes, not 1"), "{error}");
    }

    #[test]
    fn this_process_runs_and_no_process_has_pid_zero() {
        assert!(runs(std::process::id()));
        assert!(!runs(0));
    }
}
