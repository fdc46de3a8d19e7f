//! Faults of disks: one that is full, one that has lost what was not synced, one with a bit turned.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::OwnedSemaphorePermit;

use super::super::plan::Step;
use super::{Held, Nemesis, TURN_LIMIT, give_back};

/// How long a node that is told to write into a full disk may take to end, if it ends.
const POLL: Duration = Duration::from_millis(50);

impl Nemesis {
    /// A node that may lose what it holds: the budget for it, and the node.
    async fn lossy_node(&self, step: &Step) -> Option<(OwnedSemaphorePermit, Held<'_>)> {
        let budget = tokio::time::timeout(TURN_LIMIT, self.lossy.clone().acquire_owned()).await.ok()?.ok()?;
        let node = self.targets(step.target).await[0];
        let held = self.hold(vec![node]).await?;
        Some((budget, held))
    }

    pub(super) async fn power_cut(&self, step: Step) {
        let Some((budget, held)) = self.lossy_node(&step).await else { return };
        let node = held.nodes[0];
        let id = self.begin(&step, &held.nodes, "").await;
        self.fleet().signal(node, Signal::STOP);
        let board = self.board.clone();
        let cut = tokio::task::spawn_blocking(move || board.fleet.cut_power(node)).await;
        cut.expect("a disk can be copied");
        tokio::time::sleep(step.lasts).await;
        self.fleet().start(node);
        drop(held);
        self.end(id);
        tokio::spawn(give_back(self.board.clone(), node, budget));
    }

    pub(super) async fn full_disk(&self, step: Step) {
        let Some((budget, held)) = self.lossy_node(&step).await else { return };
        let node = held.nodes[0];
        let id = self.begin(&step, &held.nodes, "").await;
        self.fleet().fill_disk(node);
        let until = Instant::now() + step.lasts;
        while Instant::now() < until {
            // A node that cannot keep its metadata ends, and says why.
            let _ = self.fleet().ended_by_itself(node);
            tokio::time::sleep(POLL).await;
        }
        // The operator: room first, then a start, for a log that failed stays so until the process ends.
        self.fleet().free_disk(node);
        self.fleet().kill(node);
        self.fleet().start(node);
        drop(held);
        self.end(id);
        tokio::spawn(give_back(Arc::clone(&self.board), node, budget));
    }

    pub(super) async fn rot(&self, step: Step) {
        let Some((budget, held)) = self.lossy_node(&step).await else { return };
        let node = held.nodes[0];
        self.fleet().kill(node);
        let turned = self.fleet().turn_a_bit(node, step.detail);
        let how = turned.unwrap_or_else(|| "no segment holds anything".to_owned());
        let id = self.begin(&step, &held.nodes, &format!("{how} ")).await;
        self.fleet().start(node);
        tokio::time::sleep(step.lasts).await;
        // The operator, whom the log told which replica is damaged.
        self.fleet().kill(node);
        self.fleet().wipe(node, false);
        self.fleet().start(node);
        drop(held);
        self.end(id);
        tokio::spawn(give_back(self.board.clone(), node, budget));
    }
}
