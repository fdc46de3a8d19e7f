//! `highwater dev`: one or more real nodes on this machine, zero configuration, data kept.
//!
//! The first terminal owns the processes. A second one hurts them: signals go straight to a node's pid; a node that is
//! to be started again is asked for through a file, so that it is a child of the first terminal and stops with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{CliError, DevArgs, DevVerb, Exit};

mod place;

use place::{Place, Ports};

/// How often the first terminal looks at its processes and at what the second one asks for.
const LOOK: Duration = Duration::from_millis(50);
/// How long nodes may take to become ready before the last log lines are shown.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long a controlled shutdown of all nodes may take.
const STOP_MAX: Duration = Duration::from_secs(20);

/// # Errors
/// Ports in use, a data directory of another shape, a node that cannot be found or does not start.
pub async fn run(args: DevArgs) -> Result<Exit, CliError> {
    match args.verb {
        None => nodes(&args).await,
        Some(verb) => {
            let (node, signal) = match verb {
                DevVerb::Start { node } => return start_again(&args.data, node).await,
                DevVerb::Kill { node } => (node, Signal::KILL),
                DevVerb::Pause { node } => (node, Signal::STOP),
                DevVerb::Resume { node } => (node, Signal::CONT),
            };
            hurt(&args.data, node, signal).await
        }
    }
}

/// The nodes of this terminal.
struct Nodes {
    /// This program, as it was found at the start: a new build may take its place meanwhile.
    binary: PathBuf,
    places: Vec<Place>,
    children: Vec<Option<Child>>,
}

impl Nodes {
    fn start(&mut self, i: usize) -> Result<(), CliError> {
        let place = &self.places[i];
        let failed = |what: &str, error: std::io::Error| {
            CliError::new(Exit::Failed, format!("node {}: cannot {what}: {error}", place.node))
        };
        let log = place.open_log().map_err(|error| failed("open its log", error))?;
        let errors = log.try_clone().map_err(|error| failed("open its log", error))?;
        let mut command = Command::new(&self.binary);
        command.args(["start", "--with-parent", "--config"]).arg(place.config_file());
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        // Ctrl-C in this terminal reaches the nodes through us, once and in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        for (variable, _) in std::env::vars_os() {
            // Zero configuration: what is meant for a real node must not leak into three.
            if variable.to_string_lossy().starts_with("KAFKA_") || variable == "CLUSTER_ID" {
                command.env_remove(variable);
            }
        }
        let child = command.spawn().map_err(|error| failed("start", error))?;
        place.write_pid(child.id()).map_err(|error| failed("write its pid file", error))?;
        self.children[i] = Some(child);
        Ok(())
    }

    /// Reaps what has ended and starts what the second terminal asked for.
    fn look(&mut self) -> Result<(), CliError> {
        for i in 0..self.places.len() {
            let node = self.places[i].node;
            if let Some(child) = &mut self.children[i]
                && let Ok(Some(status)) = child.try_wait()
            {
                self.children[i] = None;
                self.places[i].remove_pid();
                println!("node {node} ended ({status}); start it again with: highwater dev start {node}");
            }
            if self.children[i].is_none() && self.places[i].take_request() {
                self.start(i)?;
                println!("node {node} started again");
            }
        }
        Ok(())
    }

    fn signal_all(&self, signal: Signal) {
        for child in self.children.iter().flatten() {
            place::signal(child.id(), signal);
        }
    }

    /// SIGTERM to all, then waits; what does not end in time is killed.
    async fn stop(&mut self) {
        // A paused node could not stop.
        self.signal_all(Signal::CONT);
        self.signal_all(Signal::TERM);
        let until = Instant::now() + STOP_MAX;
        while self.children.iter().any(Option::is_some) {
            for (child, place) in self.children.iter_mut().zip(&self.places) {
                if child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
                    *child = None;
                    place.remove_pid();
                }
            }
            if Instant::now() > until {
                println!("some nodes did not stop within {} s: killing them", STOP_MAX.as_secs());
                self.signal_all(Signal::KILL);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn nodes(args: &DevArgs) -> Result<Exit, CliError> {
    let (places, lock) = place::prepare(args)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let binary = std::env::current_exe()
        .map_err(|error| CliError::new(Exit::Failed, format!("cannot find this program: {error}")))?;
    let mut nodes = Nodes { binary, children: places.iter().map(|_| None).collect(), places };
    let begun = Instant::now();
    let mut result = Ok(());
    for i in 0..nodes.places.len() {
        result = nodes.start(i);
        if result.is_err() {
            break;
        }
    }
    if let Err(error) = result {
        nodes.stop().await;
        return Err(error);
    }
    print!("{}", addresses(&nodes.places, &args.data));
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(1)).build();
    let client = client.map_err(|error| CliError::new(Exit::Failed, format!("no HTTP client: {error}")))?;
    let mut ready = false;
    let mut told = false;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = tokio::time::sleep(LOOK) => {}
        }
        nodes.look()?;
        if !ready && all_ready(&client, &nodes.places).await {
            ready = true;
            println!("ready after {:.1} s\n", begun.elapsed().as_secs_f64());
            print!("{}", next_steps(&nodes.places, &args.data));
        }
        if !ready && !told && begun.elapsed() > READY_MAX {
            told = true;
            println!("not ready after {} s; the last lines of the logs:", READY_MAX.as_secs());
            nodes.places.iter().for_each(|place| print!("{}", place.log_tail(5)));
        }
    }
    println!("stopping");
    nodes.stop().await;
    drop(lock);
    println!("stopped; the data stays in {}", args.data.display());
    Ok(Exit::Done)
}

fn no_signals(error: std::io::Error) -> CliError {
    CliError::new(Exit::Failed, format!("cannot listen for signals: {error}"))
}

async fn all_ready(client: &reqwest::Client, places: &[Place]) -> bool {
    for place in places {
        let url = format!("http://127.0.0.1:{}/health/ready", place.ports.http);
        if !client.get(url).send().await.is_ok_and(|answer| answer.status().is_success()) {
            return false;
        }
    }
    true
}

fn addresses(places: &[Place], data: &Path) -> String {
    let list = |port: fn(&Ports) -> u16, before: &str, after: &str| -> String {
        let texts: Vec<String> = places.iter().map(|place| format!("{before}{}{after}", port(&place.ports))).collect();
        texts.join(if after.is_empty() && before.starts_with("127") { "," } else { "  " })
    };
    format!(
        "Highwater {}, {} in {}\n  bootstrap  {}\n  REST       {}\n  logs       {}\n",
        env!("CARGO_PKG_VERSION"),
        if places.len() == 1 { "one node".to_owned() } else { format!("{} nodes", places.len()) },
        data.display(),
        list(|ports| ports.kafka, "127.0.0.1:", ""),
        list(|ports| ports.http, "http://127.0.0.1:", "/v3"),
        places.iter().map(|place| place.log_file().display().to_string()).collect::<Vec<_>>().join("  "),
    )
}

fn next_steps(places: &[Place], data: &Path) -> String {
    let first = &places[0].ports;
    let bootstrap: Vec<String> = places.iter().map(|place| format!("127.0.0.1:{}", place.ports.kafka)).collect();
    let url = format!("http://127.0.0.1:{}", first.http);
    let third = if places.len() > 1 {
        let flag =
            if data == Path::new("./highwater-data") { String::new() } else { format!(" --data {}", data.display()) };
        format!("highwater dev kill 2{flag}; curl -s {url}/v3/clusters/-/topics/orders/partitions/0/history")
    } else {
        format!("curl -s {url}/v3/clusters/-/topics/orders/partitions/0/state")
    };
    format!(
        "Try next, in another terminal:\n  curl -s -X POST {url}/v3/clusters/-/topics -H 'content-type: application/json' -d \
         '{{\"topic_name\":\"orders\",\"partitions_count\":3}}'\n  seq 1 1000 | kcat -P -b {} -t orders -X acks=all\n  \
         {third}\nCtrl-C stops {}.\n",
        bootstrap.join(","),
        if places.len() == 1 { "it" } else { "all" }
    )
}

/// A signal to a node of another terminal.
async fn hurt(data: &Path, node: u16, signal: Signal) -> Result<Exit, CliError> {
    let place = Place::find(data, node)?;
    let Some(pid) = place.running_pid() else {
        let message = format!("node {node} does not run; start it with: highwater dev start {node}");
        return Err(CliError::new(Exit::NotFound, message));
    };
    place::signal(pid, signal);
    let done = match signal {
        Signal::KILL => {
            while place::runs(pid) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            "killed with -9"
        }
        Signal::STOP => "frozen; let it go on with: highwater dev resume",
        _ => "goes on",
    };
    println!("node {node} (pid {pid}) {done}");
    Ok(Exit::Done)
}

/// Asks the first terminal to start a node, and waits until it answers.
async fn start_again(data: &Path, node: u16) -> Result<Exit, CliError> {
    let place = Place::find(data, node)?;
    if let Some(pid) = place.running_pid() {
        println!("node {node} runs already (pid {pid})");
        return Ok(Exit::Done);
    }
    if !place::is_owned(data) {
        let message = format!("nobody runs the nodes of {}: start them all with: highwater dev", data.display());
        return Err(CliError::new(Exit::NotFound, message));
    }
    let failed = |error: std::io::Error| CliError::new(Exit::Failed, format!("cannot ask for node {node}: {error}"));
    place.request().map_err(failed)?;
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(1)).build();
    let client = client.map_err(|error| CliError::new(Exit::Failed, format!("no HTTP client: {error}")))?;
    let url = format!("http://127.0.0.1:{}/health/live", place.ports.http);
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        if client.get(&url).send().await.is_ok_and(|answer| answer.status().is_success()) {
            let pid = place.running_pid().unwrap_or_default();
            println!("node {node} runs (pid {pid})");
            return Ok(Exit::Done);
        }
        tokio::time::sleep(LOOK).await;
    }
    let message = format!("node {node} did not come up; the end of its log:\n{}", place.log_tail(5));
    Err(CliError::new(Exit::Unreachable, message))
}
