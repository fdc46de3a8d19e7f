//! Ends a process in which no simulated time passes: somebody spins, or waits for himself.
//!
//! By the CPU it took, not by the clock on the wall: a machine with too much to do is no fault of the seed. To see who it
//! is, `replay` the seed and attach a debugger (`gdb -p … -batch -ex bt`) while its trace stands still.

use std::fs;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::run::STEPS;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// A millisecond of simulated time takes less CPU, unless somebody spins.
const STEP_CPU_MAX: Duration = Duration::from_secs(30);
/// And fewer looks, however busy the machine is, unless somebody waits for himself. Who is stopped does not look.
const LOOKS_MAX: u32 = 300;
/// A tick of `/proc/self/stat`.
const TICK_MS: u64 = 10;

/// What this process has spent in user and system mode, by the text of `/proc/self/stat`.
fn cpu_in(stat: &str) -> Option<Duration> {
    // The name in parentheses may hold anything; `utime` and `stime` are the 12th and 13th field behind it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some(Duration::from_millis((user + system) * TICK_MS))
}

fn cpu() -> Duration {
    fs::read_to_string("/proc/self/stat").ok().and_then(|stat| cpu_in(&stat)).unwrap_or_default()
}

/// Watches this process until it ends; says so and ends it with 1 when the steps of `seed` stand still.
pub fn start(seed: u64) {
    thread::spawn(move || {
        let (mut seen, mut looks, mut cpu_then) = (u64::MAX, 0, cpu());
        loop {
            thread::sleep(LOOK);
            let steps = STEPS.load(Ordering::Relaxed);
            if seen != steps {
                (seen, looks, cpu_then) = (steps, 0, cpu());
                continue;
            }
            looks += 1;
            let spent = cpu().saturating_sub(cpu_then);
            if spent > STEP_CPU_MAX || looks > LOOKS_MAX {
                let spent = spent.as_secs();
                eprintln!(
                    "seed {seed}: somebody spins: no simulated time passes after step {steps} ({looks} looks, {spent} s of CPU)"
                );
                std::process::exit(1);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_read_behind_the_name() {
        let stat = "7 (a b) c) R 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 2 0 100 1 1";
        assert_eq!(cpu_in(stat), Some(Duration::from_secs(3)));
        assert_eq!(cpu_in("7 (short) R 1"), None);
    }
}
