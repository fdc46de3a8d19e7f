//! Builds the simulation of the quorum as it must be built, and runs it with the arguments given here.
//!
//! Only with `--cfg tokio_unstable` can the chance inside tokio be seeded. The flag belongs to that build alone (stack.md
//! §6), and so does its target directory: any other build would be compiled anew for it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Crates of ours that would take longer to optimise than 300 seeds take to run.
const FEWER_OPTIMISATIONS: [&str; 2] = ["highwater-quorum", "highwater-quorum-sim"];

fn main() -> ExitCode {
    let own = std::env::current_exe().expect("this program has a path");
    // <target>/<profile>/quorum-sim
    let target: PathBuf = own.ancestors().nth(2).map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg tokio_unstable");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--locked"])
        .args(
            FEWER_OPTIMISATIONS
                .iter()
                .flat_map(|package| ["--config".to_owned(), format!("profile.release.package.{package}.opt-level=1")]),
        )
        .args(["-p", "highwater-quorum-sim", "--"])
        .args(std::env::args_os().skip(1))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", flags.trim())
        .env("CARGO_TARGET_DIR", target.join("quorum-sim"))
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo cannot be started: {error}");
            ExitCode::from(2)
        }
    }
}
