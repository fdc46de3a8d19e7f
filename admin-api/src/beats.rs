//! Whether each runtime of this process still runs its tasks: every one of them beats once a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The heartbeats of the runtimes, by name.
#[derive(Debug, Clone, Default)]
pub struct Beats(Arc<Mutex<Vec<(String, Instant)>>>);

impl Beats {
    /// Beats for ever on the runtime it is spawned on.
    pub async fn beat(self, runtime: &str) {
        let place = {
            let mut beats = self.0.lock();
            beats.push((runtime.to_owned(), Instant::now()));
            beats.len() - 1
        };
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            if let Some((_, last)) = self.0.lock().get_mut(place) {
                *last = Instant::now();
            }
        }
    }

    /// The runtimes that have not beaten for longer than `limit`.
    pub fn silent(&self, limit: Duration) -> Vec<String> {
        let beats = self.0.lock();
        beats.iter().filter(|(_, last)| last.elapsed() > limit).map(|(name, _)| name.clone()).collect()
    }
}
