//! Which clients take part: our own, librdkafka and a hostile one live in this process, the others are programs of their own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use crate::stock_tools;

/// A family of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Our own wire client.
    Own,
    Librdkafka,
    /// Apache Kafka's own.
    Java,
    /// franz-go.
    Franz,
    /// A stranger who sends what nobody should.
    Hostile,
}

impl Family {
    pub const ALL: [Self; 5] = [Self::Own, Self::Librdkafka, Self::Java, Self::Franz, Self::Hostile];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Librdkafka => "librdkafka",
            Self::Java => "java",
            Self::Franz => "franz-go",
            Self::Hostile => "hostile",
        }
    }

    /// What this machine lacks for it; `None`: nothing.
    pub fn lacks(self) -> Option<&'static str> {
        let has = |program: &str, asked: &str| {
            let mut command = Command::new(program);
            command.arg(asked).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        match self {
            Self::Own | Self::Librdkafka | Self::Hostile => None,
            Self::Java if !has("javac", "-version") => Some("javac"),
            Self::Java if !stock_tools::are_there() && !has("mvn", "-version") => Some("Kafka's jars, or mvn"),
            Self::Franz if !has("go", "version") => Some("go"),
            Self::Java | Self::Franz => None,
        }
    }

    /// Builds the program of a family below `dir`; how it is started, the addresses of the nodes excepted.
    ///
    /// # Panics
    /// It does not build.
    pub fn program(self, dir: &Path) -> Option<Vec<PathBuf>> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("stock");
        let must = |command: &mut Command| {
            let status = command.stdin(Stdio::null()).status();
            assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{command:?}: {status:?}");
        };
        match self {
            Self::Own | Self::Librdkafka | Self::Hostile => None,
            Self::Java => {
                let (jars, classes) = (stock_tools::libraries().join("*"), dir.join("java"));
                let mut javac = Command::new("javac");
                javac.arg("-cp").arg(&jars).arg("-d").arg(&classes).arg(sources.join("java/ChaosClient.java"));
                must(&mut javac);
                let path = format!("{}:{}", classes.display(), jars.display());
                let line =
                    ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &path, "ChaosClient"];
                Some(line.iter().map(PathBuf::from).collect())
            }
            Self::Franz => {
                let program = dir.join("franz-go");
                let mut go = Command::new("go");
                go.args(["build", "-o"]).arg(&program).arg(".").current_dir(sources.join("go"));
                must(&mut go);
                Some(vec![program])
            }
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|family| family.name() == text)
            .ok_or_else(|| format!("no family is called {text:?}; there are {names}"))
    }
}
