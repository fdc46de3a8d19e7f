//! Faults of links, of processor time, and of somebody who starts a node twice.

use std::time::{Duration, Instant};

use super::super::fleet::{CONTROLLER_PORT, REPLICATION_PORT};
use super::super::history::Event;
use super::super::links::{Links, Mode};
use super::super::plan::{Fault, Step};
use super::{Nemesis, POLL, TURN_LIMIT};

/// The share of a core that a squeezed node gets, percent.
const SQUEEZED: u32 = 5;
/// How soon a process on files that are in use must have ended.
const REFUSE_LIMIT: Duration = Duration::from_secs(20);
/// Answered by every node that has opened its metadata.
const LIVE: &str = "/health/live";

impl Nemesis {
    pub(super) async fn links(&self, step: Step) {
        let node = self.targets(step.target).await[0];
        let (mode, how) = match step.fault {
            Fault::Delay => {
                let late = Duration::from_millis(50 + step.detail % 1_951);
                (Mode::Late(late), format!("{late:?} late "))
            }
            Fault::HalfOpen => (Mode::HalfOpen, String::new()),
            Fault::MidFrame => {
                let bytes = 1 + usize::try_from(step.detail % 4_096).expect("few bytes");
                (Mode::ResetAfter(bytes), format!("after {bytes} bytes "))
            }
            _ => (Mode::Refuse, String::new()),
        };
        let id = self.begin(&step, &[node], &how).await;
        let links = Links::around(node, &self.fleet().others(node), &[CONTROLLER_PORT, REPLICATION_PORT]);
        self.fleet().set_links(&links, mode);
        tokio::time::sleep(step.lasts).await;
        self.fleet().set_links(&links, Mode::Open);
        self.end(id);
    }

    pub(super) async fn squeeze(&self, step: Step) {
        let nodes = self.targets(step.target).await;
        let id = self.begin(&step, &nodes, &format!("{SQUEEZED} % of a core ")).await;
        nodes.iter().for_each(|node| self.fleet().limit_cpu(*node, Some(SQUEEZED)));
        tokio::time::sleep(step.lasts).await;
        nodes.iter().for_each(|node| self.fleet().limit_cpu(*node, None));
        self.end(id);
    }

    pub(super) async fn twin(&self, step: Step) {
        let node = self.targets(step.target).await[0];
        let Some(held) = self.hold(vec![node]).await else { return };
        if !self.has_its_files(node).await {
            return;
        }
        let id = self.begin(&step, &held.nodes, "").await;
        let broken = |what: &str| self.board.history.write(Event::Broken { node, what: what.to_owned() });
        let mut second = self.fleet().start_twin(node, false);
        let until = Instant::now() + REFUSE_LIMIT;
        let ended = loop {
            match second.try_wait().expect("a child can be waited for") {
                Some(status) => break Some(status),
                None if Instant::now() > until => break None,
                None => tokio::time::sleep(POLL).await,
            }
        };
        match ended {
            Some(status) if !status.success() => {}
            Some(_) => broken("a second process on the same files ended as if all were well"),
            None => broken("a second process on the same files does not end"),
        }
        let _ = (second.kill(), second.wait());
        // Another machine with an empty disk, while the first is well.
        let mut stranger = self.fleet().start_twin(node, true);
        let until = Instant::now() + step.lasts;
        while Instant::now() < until {
            if self.fleet().twin_is_ready().await {
                broken("a second process with an empty disk serves under the same id");
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        let _ = (stranger.kill(), stranger.wait());
        drop(held);
        self.end(id);
    }

    /// Starts a node that does not run, and waits until it has taken its files: a process that comes between its start and
    /// that would be the first, not the second. Its HTTP listener opens after them, and no fault cuts that.
    async fn has_its_files(&self, node: u8) -> bool {
        self.fleet().start(node);
        let until = Instant::now() + TURN_LIMIT;
        while Instant::now() < until {
            if self.fleet().get(node, LIVE).await.is_some() {
                return true;
            }
            tokio::time::sleep(POLL).await;
        }
        false
    }
}
