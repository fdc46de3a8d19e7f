//! `sim -- worlds`: every schedule of small worlds.

use std::process::ExitCode;
use std::time::Instant;

use highwater_tests::sim::flaws::Flaw;
use highwater_tests::sim::worlds::{Explored, Setting, Wrong, explore, usual, variants};

/// What ships must break no rule, and every mistake must be found. Exit 1 otherwise.
pub fn search(deeper: isize, only: Option<&str>, all_flaws: bool) -> ExitCode {
    if all_flaws {
        return search_flaws(deeper);
    }
    let began = Instant::now();
    let named =
        |setting: &Setting| only.is_none_or(|only| format!("{} {}", setting.name, setting.wrong.name()).contains(only));
    let deep = |setting: Setting| Setting { depth: setting.depth.saturating_add_signed(deeper), ..setting };
    let right: Vec<Explored> = usual().into_iter().filter(named).map(deep).map(|setting| shown(&setting)).collect();
    let wrong: Vec<Explored> = variants().into_iter().filter(named).map(|setting| shown(&setting)).collect();
    let violations = right.iter().filter(|explored| explored.counterexample.is_some()).count();
    let missed = wrong.iter().filter(|explored| explored.counterexample.is_none()).count();
    let line = serde_json::json!({
        "worlds": right.len(),
        "depth": right.iter().map(|e| (e.setting.name, e.setting.depth)).collect::<std::collections::BTreeMap<_, _>>(),
        "states": right.iter().map(|explored| explored.states).sum::<usize>(),
        "transitions": right.iter().map(|explored| explored.transitions).sum::<usize>(),
        "schedules": right.iter().map(|explored| explored.schedules).fold(0.0, |sum, one| sum + one),
        "seconds": began.elapsed().as_secs_f64().round(),
        "violations": violations,
        "variants": wrong.iter().map(|e| (e.setting.wrong.name(), steps(e))).collect::<std::collections::BTreeMap<_, _>>(),
    });
    println!("{line}");
    if violations + missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Steps of the counterexample.
fn steps(explored: &Explored) -> Option<usize> {
    explored.counterexample.as_ref().map(|(steps, _)| steps.len())
}

fn shown(setting: &Setting) -> Explored {
    let explored = explore(setting);
    let Explored { states, transitions, schedules, seconds, exhausted, .. } = &explored;
    let whole = if *exhausted { ", all there is" } else { "" };
    println!(
        "{}, {}: depth {}{whole}, {states} states, {transitions} transitions, {schedules:.3e} schedules, {seconds:.1} s",
        setting.name,
        setting.wrong.name(),
        setting.depth
    );
    if let Some((steps, violation)) = &explored.counterexample {
        for (number, step) in (1..).zip(steps) {
            println!("  {number:>2} {step}");
        }
        println!("  {violation}");
    }
    explored
}

fn search_flaws(deeper: isize) -> ExitCode {
    let mut found = 0;
    for flaw in Flaw::ALL {
        let caught = usual().into_iter().find_map(|setting| {
            let depth = setting.depth.saturating_add_signed(deeper);
            let explored = explore(&Setting { wrong: Wrong::Planted(flaw), depth, ..setting });
            explored.counterexample.as_ref().map(|(steps, violation)| {
                format!("{}: {} steps, {:.1} s: {violation}", setting.name, steps.len(), explored.seconds)
            })
        });
        found += usize::from(caught.is_some());
        println!("{} {flaw:?}: {}", flaw.rule(), caught.unwrap_or_else(|| "not found".to_owned()));
    }
    println!("{}", serde_json::json!({ "flaws": Flaw::ALL.len(), "found": found }));
    ExitCode::SUCCESS
}
