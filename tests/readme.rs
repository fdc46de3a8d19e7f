//! The README's lines work as printed: the test extracts exactly them and runs them.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use highwater_tests::process::without_cargos_variables;
use rustix::process::{Pid, Signal, kill_process};

/// The README's `sh` lines: the one that starts three nodes, and those of "Try it".
fn lines() -> (String, Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let start =
        readme.lines().find(|l| l.starts_with("cargo run --release -- dev --nodes 3")).expect("the first command");
    let start = start.split('#').next().unwrap().trim().to_owned();
    let part = readme.split("<!-- try: begin -->").nth(1).unwrap().split("<!-- try: end -->").next().unwrap();
    let mut inside = false;
    let mut found = Vec::new();
    for line in part.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => found.push(line.to_owned()),
            _ => {}
        }
    }
    assert!(found.len() >= 8, "the README shows too little: {found:?}");
    (start, found)
}

struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        let _ = kill_process(pid, Signal::INT);
        let _ = self.0.wait();
    }
}

#[test]
fn the_lines_of_the_readme_work_as_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let data = tempfile::tempdir().unwrap();
    let shell = |line: &str| {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", line]).current_dir(root).env("HIGHWATER_DATA", data.path());
        without_cargos_variables(&mut command);
        command
    };
    // The same build that the lines themselves ask for; compiling is not what is tested here.
    assert!(shell("cargo build --release").status().unwrap().success());
    let (start, lines) = lines();
    let child = shell(&format!("exec {start}")).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let dev = Dev(child);
    let until = Instant::now() + Duration::from_secs(30);
    while !(0..3).all(|n| {
        let url = format!("localhost:{}/health/ready", 8082 + n * 100);
        Command::new("curl").args(["-sf", "-o", "/dev/null", &url]).status().unwrap().success()
    }) {
        assert!(Instant::now() < until, "three nodes were not ready within 30 s");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut said = Vec::new();
    for line in &lines {
        let output = shell(line).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
        said.push((line.clone(), text));
    }
    let counts: Vec<&str> = said.iter().filter(|(l, _)| l.ends_with("wc -l")).map(|(_, t)| t.trim()).collect();
    assert_eq!(counts, ["1000", "2000"], "what the consumers counted");
    let told: Vec<&str> = said.iter().filter(|(l, _)| l.ends_with("/history")).map(|(_, t)| t.as_str()).collect();
    assert!(told[0].contains("ISR_SHRINK") && told[0].contains("BROKER_FENCED"), "{}", told[0]);
    assert!(told[1].contains("ISR_EXPAND"), "{}", told[1]);
    let state = said.iter().find(|(l, _)| l.ends_with("/state")).map(|(_, t)| t.as_str()).unwrap();
    assert!(state.contains("\"isr\":[1,3]") || state.contains("\"isr\":[3,1]"), "{state}");
    drop(dev);
}
