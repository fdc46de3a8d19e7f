//! Programs of people: with each client library what a program does with it, written from the library's own documentation,
//! against three real nodes – quiet, and with one of them killed every twenty seconds.
//!
//! The programs lie in `tests/interop/`; each prints one line a step. The libraries come from their registries, in the versions
//! that stand there.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a program is made ready and started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    Node,
    Go,
}

/// One client library.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// As people know it.
    pub name: &'static str,
    language: Language,
    /// Below `tests/interop/<language>/`, or for Go what the program is told.
    program: &'static str,
    /// Which line of the file of versions is about it.
    versioned_as: &'static str,
}

/// All of them, in the order of the page.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "confluent-kafka",
        language: Language::Python,
        program: "with_confluent.py",
        versioned_as: "confluent-kafka",
    },
    Family {
        name: "kafka-python",
        language: Language::Python,
        program: "with_kafka_python.py",
        versioned_as: "kafka-python",
    },
    Family { name: "aiokafka", language: Language::Python, program: "with_aiokafka.py", versioned_as: "aiokafka" },
    Family { name: "kafkajs", language: Language::Node, program: "with_kafkajs.js", versioned_as: "\"kafkajs\"" },
    Family {
        name: "@platformatic/kafka",
        language: Language::Node,
        program: "with_platformatic.mjs",
        versioned_as: "\"@platformatic/kafka\"",
    },
    Family { name: "franz-go", language: Language::Go, program: "franz-go", versioned_as: "twmb/franz-go " },
    Family { name: "sarama", language: Language::Go, program: "sarama", versioned_as: "IBM/sarama" },
    Family { name: "kafka-go", language: Language::Go, program: "kafka-go", versioned_as: "segmentio/kafka-go" },
];

/// What became of one step of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub name: String,
    pub works: bool,
    /// What it gave, or why not.
    pub detail: String,
}

/// What a program printed; a program that ends otherwise than it should is a step that fails.
#[derive(Debug, Clone)]
pub struct Told {
    pub family: Family,
    pub steps: Vec<Step>,
    pub took: Duration,
}

impl Told {
    pub fn works(&self) -> bool {
        self.steps.iter().all(|step| step.works)
    }
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("interop")
}

impl Language {
    const fn folder(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Go => "go",
        }
    }

    const fn versions(self) -> &'static str {
        match self {
            Self::Python => "requirements.txt",
            Self::Node => "package.json",
            Self::Go => "go.mod",
        }
    }

    /// Fetches the libraries, once; all that it makes lies below `cache`.
    fn prepare(self, cache: &Path) -> io::Result<()> {
        let (from, to) = (programs().join(self.folder()), cache.join(self.folder()));
        let versions = fs::read(from.join(self.versions()))?;
        if fs::read(to.join("ready")).is_ok_and(|ready| ready == versions) && self != Self::Go {
            return Ok(());
        }
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(&from)?.flatten().filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        match self {
            Self::Python => {
                succeeds(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(&to))?;
                let install = ["install", "--quiet", "--requirement", "requirements.txt"];
                succeeds(Command::new(to.join("venv/bin/pip")).args(install).current_dir(&to))?;
            }
            Self::Node => succeeds(Command::new("npm").args(["install", "--silent", "--no-audit"]).current_dir(&to))?,
            Self::Go => succeeds(Command::new("go").args(["build", "-o", "program", "."]).current_dir(&to))?,
        }
        fs::write(to.join("ready"), versions)
    }
}

fn succeeds(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("{command:?} failed: {said}")))
}

impl Family {
    /// The version that is tried.
    pub fn version(&self) -> String {
        let versions = programs().join(self.language.folder()).join(self.language.versions());
        let text = fs::read_to_string(versions).unwrap_or_default();
        let line = text.lines().find(|line| line.contains(self.versioned_as)).unwrap_or_default();
        let version = line.rsplit([' ', '=']).next().unwrap_or_default();
        version.trim_matches(['"', ',', 'v', ' ']).to_owned()
    }

    /// Runs its program to the end, at most so long.
    ///
    /// # Errors
    /// The library cannot be fetched, or the program not be started.
    pub fn run(&self, cache: &Path, bootstrap: &str, at_most: Duration) -> io::Result<Told> {
        self.language.prepare(cache)?;
        let folder = cache.join(self.language.folder());
        let mut command = match self.language {
            Language::Python => Command::new(folder.join("venv/bin/python")),
            Language::Node => Command::new("node"),
            Language::Go => Command::new(folder.join("program")),
        };
        // The programs of today, whatever was copied when the libraries were fetched.
        let program = programs().join(self.language.folder()).join(self.program);
        match self.language {
            Language::Go => command.arg(self.program),
            Language::Python => command.arg(program),
            Language::Node => {
                fs::copy(program, folder.join(self.program))?;
                command.arg(self.program)
            }
        };
        let began = Instant::now();
        let mut child = command
            .arg(bootstrap)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let reader =
            std::thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).collect::<Vec<_>>());
        let ended = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if began.elapsed() > at_most => break None,
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        if ended.is_none() {
            child.kill()?;
            child.wait()?;
        }
        let lines = reader.join().unwrap_or_default();
        let mut steps: Vec<Step> = lines.iter().filter_map(|line| parse(line)).collect();
        let fault = match ended {
            None => Some(format!("it did not end within {} s", at_most.as_secs())),
            Some(status) if !status.success() => Some(status.to_string()),
            Some(_) if steps.is_empty() => Some("it printed nothing".to_owned()),
            Some(_) => None,
        };
        steps.extend(fault.map(|detail| Step { name: "the program as a whole".to_owned(), works: false, detail }));
        Ok(Told { family: *self, steps, took: began.elapsed() })
    }
}

/// `ok`, a tab, the step, a tab, what came of it. Other lines are the library's own.
fn parse(line: &str) -> Option<Step> {
    let mut parts = line.splitn(3, '\t');
    let works = match parts.next()? {
        "ok" => true,
        "FAIL" => false,
        _ => return None,
    };
    let name = parts.next()?.to_owned();
    Some(Step { name, works, detail: parts.next().unwrap_or_default().to_owned() })
}

/// The page: each client with each of its steps, quiet and under kills.
pub fn page(quiet: &[Told], under_kills: &[Told]) -> String {
    let mut out = "# Compatibility\n\nWritten by `cargo run --release -p highwater-tests --bin interop -- --write`: programs as people \
        write them, one for each client library, against three nodes; once quiet, once with one node killed (`kill -9`) every \
        twenty seconds and started again.\n\n| client | version | steps | quiet | under kills |\n|---|---|---|---|---|\n"
        .to_owned();
    let under = |family: &Family| under_kills.iter().find(|told| told.family.name == family.name);
    let verdict = |told: &Told| {
        let failed = told.steps.iter().filter(|step| !step.works).count();
        if failed == 0 { "works".to_owned() } else { format!("{failed} fail") }
    };
    for told in quiet {
        let killed = under(&told.family).map_or_else(|| "not run".to_owned(), verdict);
        let (name, version, steps) = (told.family.name, told.family.version(), told.steps.len());
        let _ = writeln!(out, "| {name} | {version} | {steps} | {} | {killed} |", verdict(told));
    }
    for told in quiet {
        let _ = write!(out, "\n## {}\n\n| step | quiet | under kills |\n|---|---|---|\n", told.family.name);
        for step in &told.steps {
            let other = under(&told.family).and_then(|told| told.steps.iter().find(|other| other.name == step.name));
            let word = |step: &Step| if step.works { "works".to_owned() } else { format!("fails: {}", step.detail) };
            let killed = other.map_or_else(|| "–".to_owned(), word);
            let _ = writeln!(out, "| {} | {} | {killed} |", step.name, word(step));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_programs_are_read_and_those_of_their_libraries_passed_over() {
        let step =
            |name: &str, works, detail: &str| Some(Step { name: name.to_owned(), works, detail: detail.to_owned() });
        assert_eq!(parse("ok\tcreate topic\t"), step("create topic", true, ""));
        assert_eq!(parse("FAIL\tproduce, gzip\ta\tb"), step("produce, gzip", false, "a\tb"));
        assert_eq!(parse("%4|1234|FAIL|rdkafka#producer-1|"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn every_family_has_a_program_and_a_version() {
        for family in FAMILIES {
            assert!(
                family.version().starts_with(|c: char| c.is_ascii_digit()),
                "{}: {:?}",
                family.name,
                family.version()
            );
            if family.language != Language::Go {
                assert!(programs().join(family.language.folder()).join(family.program).is_file(), "{}", family.name);
            }
        }
    }

    #[test]
    fn the_page_says_what_fails_and_why() {
        let step = |name: &str, works| Step { name: name.to_owned(), works, detail: "late".to_owned() };
        let told =
            |works| Told { family: FAMILIES[0], steps: vec![step("a", true), step("b", works)], took: Duration::ZERO };
        let page = page(&[told(true)], &[told(false)]);
        assert!(page.contains("| 2 | works | 1 fail |"), "{page}");
        assert!(page.contains("| b | works | fails: late |"), "{page}");
    }
}
