//! The programs of people from the command line. The last line is JSON; exit 1 when a step of one failed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use highwater_tests::interop::{FAMILIES, Family, Told, page};
use highwater_tests::process::Processes;
use serde_json::json;

/// Between two kills.
const KILL_EVERY: Duration = Duration::from_secs(20);

#[derive(Parser)]
#[command(about = "With each client library a program as people write them, against three nodes")]
struct Arguments {
    /// Only these clients, separated by commas.
    #[arg(long, value_delimiter = ',')]
    families: Vec<String>,
    /// Kill a node every twenty seconds, too; default with --write.
    #[arg(long)]
    kills: bool,
    /// Write docs/compatibility.md.
    #[arg(long)]
    write: bool,
    /// Where the libraries are kept.
    #[arg(long, env = "HIGHWATER_INTEROP", default_value = "/tmp/highwater-interop")]
    cache: PathBuf,
    /// Seconds that one program may take.
    #[arg(long, default_value_t = 600)]
    at_most: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted =
        |family: &&Family| arguments.families.is_empty() || arguments.families.iter().any(|name| name == family.name);
    let families: Vec<Family> = FAMILIES.iter().filter(wanted).copied().collect();
    if families.is_empty() {
        eprintln!(
            "no such client; there are {}",
            FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ")
        );
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let rounds: &[bool] = if arguments.kills || arguments.write { &[false, true] } else { &[false] };
    let mut told = Vec::new();
    for kills in rounds {
        match runtime.block_on(round(&arguments, &families, *kills)) {
            Ok(round) => told.push(round),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        }
    }
    let failed: Vec<String> = told
        .iter()
        .flatten()
        .flat_map(|told| {
            told.steps.iter().filter(|step| !step.works).map(|step| format!("{}: {}", told.family.name, step.name))
        })
        .collect();
    if arguments.write {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/compatibility.md");
        let page = page(&told[0], told.get(1).map_or(&[], Vec::as_slice));
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).expect("the folder can be made");
        std::fs::write(path, page).expect("the page can be written");
    }
    let steps = told.iter().flatten().map(|told| told.steps.len()).sum::<usize>();
    println!("{}", json!({ "clients": families.len(), "steps": steps, "failed": failed }));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn round(arguments: &Arguments, families: &[Family], kills: bool) -> std::io::Result<Vec<Told>> {
    let soon = [("group.initial.rebalance.delay.ms", "200")];
    let mut cluster = Processes::start(3, &soon);
    cluster.wait_ready().await;
    let (bootstrap, stop) = (cluster.bootstrap(), Arc::<AtomicBool>::default());
    // Whichever of the two has it, the cluster lives until the end.
    let (killer, held) = if kills {
        let stop = Arc::clone(&stop);
        let killer = tokio::spawn(async move {
            let mut victim = 0;
            while !stop.load(Ordering::Relaxed) {
                let until = Instant::now() + KILL_EVERY;
                while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                victim = victim % 3 + 1;
                cluster.kill(victim);
                cluster.start_node(victim);
            }
        });
        (Some(killer), None)
    } else {
        (None, Some(cluster))
    };
    let mut told = Vec::new();
    for family in families {
        let (family, cache, bootstrap) = (*family, arguments.cache.clone(), bootstrap.clone());
        let at_most = Duration::from_secs(arguments.at_most);
        let run = tokio::task::spawn_blocking(move || family.run(&cache, &bootstrap, at_most));
        let one = run.await.map_err(std::io::Error::other)??;
        let how = if kills { "under kills" } else { "quiet" };
        let word = if one.works() { "works" } else { "FAILS" };
        println!(
            "{} {} {how}: {word}, {} steps in {:.1} s",
            family.name,
            family.version(),
            one.steps.len(),
            one.took.as_secs_f64()
        );
        for step in one.steps.iter().filter(|step| !step.works) {
            println!("  FAIL {}: {}", step.name, step.detail);
        }
        told.push(one);
    }
    stop.store(true, Ordering::Relaxed);
    if let Some(killer) = killer {
        let _ = killer.await;
    }
    drop(held);
    Ok(told)
}
