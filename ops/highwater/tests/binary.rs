//! The binary as a person meets it: exit codes, all faults at once, one node from nothing to ready and down again.
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn highwater(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater")).args(args).env_remove("RUST_LOG").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Three ports that were free a moment ago, in a `server.properties` for one node in `dir`.
fn write_config(dir: &Path) -> (String, u16) {
    let held: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = held.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    let file = dir.join("server.properties");
    let lines = format!(
        "node.id=7\nlisteners=PLAINTEXT://127.0.0.1:{},CONTROLLER://127.0.0.1:{}\nhttp.listeners=http://127.0.0.1:{}\n\
         log.dirs={}\n",
        ports[0],
        ports[1],
        ports[2],
        dir.join("data").display()
    );
    std::fs::write(&file, lines).unwrap();
    (file.display().to_string(), ports[2])
}

/// A process that is killed when the test ends early.
struct Running(Child);

impl Running {
    fn start(config: &str, log: &Path) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        command.args(["start", "-c", config, "--log-format", "json"]).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.env_remove("RUST_LOG").stderr(log).spawn().unwrap())
    }

    fn terminate(mut self) -> Option<i32> {
        kill_process(Pid::from_raw(self.0.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks `health` until it ends with `code`.
fn wait_for_health(url: &str, code: i32, log: &Path) -> Output {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let output = highwater(&["health", "--url", url]);
        if output.status.code() == Some(code) {
            return output;
        }
        let log = || std::fs::read_to_string(log).unwrap();
        assert!(Instant::now() < until, "{}{}\n{}", text(&output.stdout), text(&output.stderr), log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn check_tells_all_faults_at_once_and_ends_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.properties");
    std::fs::write(&file, "node.id=1\nmin.insync.replica=2\nnum.partitions=none\nlog.dirs=/a,/b\n").unwrap();
    for verb in ["check", "start"] {
        let output = highwater(&[verb, "--config", &file.display().to_string()]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for line in [
            "server.properties:2: unknown key \"min.insync.replica\"; did you mean \"min.insync.replicas\"?",
            "server.properties:3: num.partitions \"none\" is not a whole number",
            "server.properties:4: log.dirs names 2 directories",
        ] {
            assert!(said.contains(line), "{verb}: {line} is missing in\n{said}");
        }
    }
    let output = highwater(&["check", "--config", "/nowhere/server.properties"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot read /nowhere/server.properties"));
}

#[test]
fn directories_are_formatted_once_and_the_cluster_gets_the_name_they_were_given() {
    let dir = tempfile::tempdir().unwrap();
    let (config, http) = write_config(dir.path());
    let output = highwater(&["storage", "format", "-t", "my-cluster", "-c", &config]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(highwater(&["storage", "format", "-t", "other", "-c", &config]).status.code(), Some(1));
    let said = text(&highwater(&["storage", "info", "-c", &config]).stdout);
    assert!(said.contains("my-cluster") && said.contains("empty: the first start formats it"), "{said}");

    let log = dir.path().join("log");
    let running = Running::start(&config, &log);
    let url = format!("http://127.0.0.1:{http}");
    wait_for_health(&url, 0, &log);
    let output = highwater(&["partition", "state", "nothing:0", "--url", &url]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("there is no topic nothing"));

    let second =
        highwater(&["start", "-c", &config, "-X", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"]);
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("in use by process {}", running.0.id())), "{said}");

    assert_eq!(running.terminate(), Some(0));
    let logged = std::fs::read_to_string(&log).unwrap();
    assert!(logged.lines().all(|line| line.starts_with('{')), "every line is JSON:\n{logged}");
    assert!(logged.contains("\"cluster_id\":\"my-cluster\"") && logged.contains("\"message\":\"stopped\""), "{logged}");
    let said = text(&highwater(&["storage", "info", "-c", &config]).stdout);
    assert!(said.contains("cluster.id=my-cluster") && said.contains("node.id=7"), "{said}");
    let output = highwater(&["health", "--url", &url]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
}

#[test]
fn dev_says_when_it_is_ready_and_takes_orders_from_a_second_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("dev").display().to_string();
    let base = free_block();
    let out = dir.path().join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(["dev", "--nodes", "2", "--data", &data, "--base-port", &base.to_string()]);
    command.stdin(Stdio::null()).stdout(std::fs::File::create(&out).unwrap()).stderr(Stdio::inherit());
    let running = Running(command.spawn().unwrap());
    let said = || std::fs::read_to_string(&out).unwrap();
    let until = Instant::now() + Duration::from_secs(40);
    while !said().contains("ready after") {
        assert!(Instant::now() < until, "{}", said());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(said().contains(&format!("bootstrap  127.0.0.1:{base},127.0.0.1:{}", base + 100)), "{}", said());

    let order = |order: &str| highwater(&["dev", order, "2", "--data", &data]);
    let killed = order("kill");
    assert!(text(&killed.stdout).contains("killed with -9"), "{}", text(&killed.stderr));
    assert_eq!(order("kill").status.code(), Some(3), "it does not run any more");
    let started = order("start");
    assert_eq!(started.status.code(), Some(0), "{}", text(&started.stderr));
    assert_eq!(order("pause").status.code(), Some(0));
    assert_eq!(order("resume").status.code(), Some(0));
    assert_eq!(highwater(&["dev", "kill", "9", "--data", &data]).status.code(), Some(3), "there is no node 9");
    let again = highwater(&["dev", "--data", &data]);
    assert_eq!(again.status.code(), Some(4), "{}", text(&again.stderr));

    assert_eq!(running.terminate(), Some(0));
    assert!(said().contains("node 2 started again") && said().contains("stopped; the data stays in"), "{}", said());
}

/// A base port whose block of two nodes was free a moment ago.
fn free_block() -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let begin = 20_000 + u16::try_from(std::process::id() % 20_000).unwrap();
    (begin..).step_by(7).find(|base| [0, 1, 2, 100, 101, 102].into_iter().all(|more| free(base + more))).unwrap()
}

#[test]
fn topics_are_listed_created_grown_trimmed_and_deleted_from_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let (config, http) = write_config(dir.path());
    let log = dir.path().join("log");
    let running = Running::start(&config, &log);
    let url = format!("http://127.0.0.1:{http}");
    wait_for_health(&url, 0, &log);
    // What is said on stdout, or on stderr where it fails, with the exit code.
    let topic = |line: &str| {
        let words: Vec<&str> = ["topic"].into_iter().chain(line.split_whitespace()).chain(["--url", &url]).collect();
        let output = highwater(&words);
        let code = output.status.code().unwrap();
        (code, text(if code == 0 { &output.stdout } else { &output.stderr }))
    };
    let told = |line: &str, code: i32, words: &[&str]| {
        let (ended, said) = topic(line);
        assert_eq!(ended, code, "topic {line}: {said}");
        for word in words {
            assert!(said.contains(word), "topic {line}: \"{word}\" is missing in\n{said}");
        }
    };
    // A cluster is healthy before its broker has joined; topics need it.
    let until = Instant::now() + Duration::from_secs(20);
    while topic("create orders -p 2 -r 1 --dry-run").0 != 0 {
        assert!(Instant::now() < until, "no broker joined: {}", std::fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(50));
    }
    told("create orders -p 2 -r 1 -c retention.ms=60000 --dry-run", 0, &["would be created: 2 partitions"]);
    told("list", 0, &["NAME"]);
    assert!(!topic("list").1.contains("orders"), "a dry run creates nothing");
    told("create orders -p 2 -r 1 -c retention.ms=60000", 0, &["orders", "created: 2 partitions, 1 replicas"]);
    told("create orders", 2, &["exists already"]);
    told("create orders --if-not-exists", 0, &["exists already"]);
    told("create other -r 3", 2, &["replication factor 3"]);
    told("create two -r 1 --replica-assignment 7", 2, &["cannot be used with"]);
    told("create two --replica-assignment 7,7", 0, &["created: 2 partitions"]);
    told("create third orders", 8, &["orders", "exists already"]);
    told("list t*", 0, &["two", "third"]);
    assert!(!topic("list t*").1.contains("orders"));

    told("describe orders -a", 0, &["orders", "retention.ms", "60000", "HIGH-WATERMARK", "ONLINE"]);
    told("describe orders --unavailable-partitions", 0, &["PARTITION"]);
    assert!(!topic("describe orders --unavailable-partitions").1.contains("orders"), "all are available");
    told("describe nothing", 3, &["there is no topic nothing"]);
    told("describe nothing --if-exists", 0, &[]);

    told("add-partitions orders -n 1 --dry-run", 0, &["would have 3 partitions, 2 before"]);
    told("add-partitions orders -n 1", 0, &["has 3 partitions, 2 before"]);
    told("add-partitions orders --total 3", 2, &["has 3 partitions already"]);
    told("add-partitions orders --total 4 --replica-assignment 9", 2, &["broker 9"]);
    told("add-partitions nothing -n 1", 3, &["nothing"]);
    told("add-partitions nothing -n 1 --if-exists", 0, &["does not exist"]);

    told("trim orders --offset 0 --dry-run", 0, &["0 offsets of orders go"]);
    told("trim orders --offset end", 2, &["add --yes"]);
    told("trim orders --offset end -p 1 --yes", 0, &["NEW-START-OFFSET"]);
    told("trim orders --offset 5 --yes", 2, &["outside orders-0"]);
    told("trim orders --offset middle --yes", 2, &["first offset to keep"]);

    told("delete orders nothing", 2, &["nothing: does not exist", "add --yes"]);
    told("delete orders --dry-run", 0, &["orders: 3 partitions"]);
    told("delete nothing --yes", 3, &["there is no topic nothing"]);
    told("delete nothing --yes --if-exists", 0, &["does not exist"]);
    told("delete orders two third --yes", 0, &["orders", "deleted"]);
    assert!(!topic("list").1.contains("orders"));
    assert_eq!(running.terminate(), Some(0));
}
