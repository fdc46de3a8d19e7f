//! `sim -- shrink` and `sim -- rerun`: failing seeds made short, and what is left of them run again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use highwater_tests::sim::run::{Plan, run_schedule};
use highwater_tests::sim::shrink::{Case, Regression, Shrunk, Worker, shrink_case};
use highwater_tests::sim::trace::Verbose;

/// One row of the table.
struct Row {
    name: String,
    before: usize,
    after: usize,
    seconds: f64,
}

/// Shrinks all of them, and prints a table and a line of JSON. Exit 1 unless each was found and made short.
pub fn shrink(cases: &[Case], to: &Path, threads: Option<usize>) -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1);
    let next = AtomicUsize::new(0);
    let rows: Mutex<BTreeMap<usize, Row>> = Mutex::default();
    println!("{:<10} {:>6} {:>6} {:>8} {:>6}  rule, file", "flaw", "before", "after", "seconds", "tried");
    thread::scope(|scope| {
        for _ in 0..threads.min(cases.len()) {
            scope.spawn(|| {
                let mut worker = Worker::new(program.clone(), vec!["worker".to_owned()]);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { return };
                    let name = case.flaw.clone().unwrap_or_else(|| format!("seed {}", case.seeds.start));
                    match shrink_case(&mut worker, case)
                        .and_then(|(found, shrunk)| Ok((keep(found, case, to)?, shrunk)))
                    {
                        Ok(((rule, path), Shrunk { schedule, events_before: before, tried, seconds })) => {
                            let after = schedule.size();
                            let path = path.display();
                            println!("{name:<10} {before:>6} {after:>6} {seconds:>8.1} {tried:>6}  {rule}, {path}");
                            let mut rows = rows.lock().expect("nobody panics with it");
                            rows.insert(index, Row { name, before, after, seconds });
                        }
                        Err(why) => println!("{name:<10} {why}"),
                    }
                }
            });
        }
    });
    let rows = rows.into_inner().expect("nobody panics with it");
    let mut sizes: Vec<usize> = rows.values().map(|row| row.after).collect();
    sizes.sort_unstable();
    let mut befores: Vec<usize> = rows.values().map(|row| row.before).collect();
    befores.sort_unstable();
    let longest = rows.values().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let line = serde_json::json!({
        "cases": cases.len(),
        "shrunk": rows.len(),
        "events_before_median": befores.get(befores.len() / 2),
        "events_median": sizes.get(sizes.len() / 2),
        "events_max": sizes.last(),
        "seconds_max": longest.map(|row| row.seconds.round()),
        "slowest": longest.map(|row| row.name.clone()),
    });
    println!("{line}");
    if rows.len() == cases.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the file; a story that somebody told stays.
fn keep(mut found: Regression, case: &Case, to: &Path) -> Result<(String, PathBuf), String> {
    let name = match &case.flaw {
        Some(rule) => format!("{rule}.json"),
        None => format!("seed-{}.json", case.seeds.start),
    };
    let path = to.join(name);
    if let Ok(before) = Regression::read(&path)
        && before.rule == found.rule
    {
        found.story = before.story;
    }
    let rule = found.rule.clone();
    std::fs::create_dir_all(to).map_err(|error| error.to_string())?;
    std::fs::write(&path, found.to_text()).map_err(|error| error.to_string())?;
    Ok((rule, path))
}

/// Prints the trace of a file. Exit 1 at a violation.
pub fn rerun(path: &Path, sound: bool) -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        println!("an assertion of the product failed: {info}");
        std::process::exit(1);
    }));
    let regression = match Regression::read(path) {
        Ok(regression) => regression,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let flaw = match regression.flaw() {
        Ok(flaw) => flaw.filter(|_| !sound),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let outcome = run_schedule(&regression.schedule, &Plan { flaw, verbose: Verbose::Print, ..Plan::usual() });
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}
