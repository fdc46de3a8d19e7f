//! Kafka's own Java tools, fetched once from Maven.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A command that runs `main` of Apache Kafka's tools. Panics when Java or Maven is missing: a test never skips.
pub fn kafka_tool(main: &str) -> Command {
    let mut java = Command::new("java");
    java.args(["-Xmx256m", "-cp", &format!("{}/*", libraries().display()), main]);
    java
}

/// Whether the jars are there, so that nothing has to be fetched.
pub fn are_there() -> bool {
    folder().join(".complete").exists()
}

fn folder() -> PathBuf {
    std::env::var_os("HIGHWATER_KAFKA_LIBS").map_or_else(beside_the_build, PathBuf::from)
}

/// The jars: `HIGHWATER_KAFKA_LIBS`, or a folder beside the build that is filled on first use.
pub fn libraries() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let dir = folder();
        let complete = dir.join(".complete");
        if !complete.exists() {
            let fetched = Command::new("mvn")
                .args(["-q", "-B", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/kafka-tools.pom.xml")])
                .args(["dependency:copy-dependencies", &format!("-DoutputDirectory={}", dir.display())])
                .status()
                .expect("Maven (mvn) fetches Kafka's tools; .ci/run installs it");
            assert!(fetched.success(), "Maven did not deliver Kafka's tools");
            std::fs::write(complete, "").expect("the folder is writable");
        }
        dir
    })
}

fn beside_the_build() -> PathBuf {
    let this = std::env::current_exe().expect("a process knows its own file");
    let folder = this.parent().expect("a file lies in a folder");
    let profile = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    profile.and_then(Path::parent).expect("cargo puts tests into <target>/<profile>/deps").join("kafka-libs")
}
