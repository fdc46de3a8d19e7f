//! Leaders whose followers do not hear them: one that is replaced and comes back while records wait, as an impatient operator
//! would have it, and one that dies when it is alone.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::fleet::{Cut, REPLICATION_PORT};
use super::super::plan::{Step, Target};
use super::{Nemesis, TURN_LIMIT};

/// So long a produce is on its way before it waits for the other replicas.
const ON_ITS_WAY: Duration = Duration::from_millis(15);
/// `replica.lag.time.max.ms`, and what an eviction and some records after it take.
const ALONE: Duration = Duration::from_millis(5_000 + 2_000);
/// An election that takes longer is none that a waiting produce can see.
const ELECTION: Duration = Duration::from_secs(1);

impl Nemesis {
    pub(super) async fn hand_over(&self, step: Step) {
        let Target::LeaderOf(slot) = step.target else { return };
        let place = self.board.slot(slot);
        let Some(known) = self.board.known(&place) else { return };
        let Some((leader, _)) = self.board.leader(&place) else { return };
        let others: Vec<u8> = self.fleet().others(leader).into_iter().filter(|node| known.is_replica(*node)).collect();
        let other = others[usize::try_from(step.detail % others.len() as u64).expect("few replicas")];
        let fleet = self.fleet();
        let id = self.begin(&step, &[leader], &format!("and back from node {other} ")).await;
        fleet.cut(id, self.unheard(leader));
        let produce = self.board.produces[usize::from(slot)].notified();
        let _ = tokio::time::timeout(TURN_LIMIT, produce).await;
        tokio::time::sleep(ON_ITS_WAY).await;
        self.elect(&place.topic, place.partition, other, leader).await;
        fleet.mend(id);
        // Within the patience of a produce.
        tokio::time::sleep(step.lasts).await;
        self.elect(&place.topic, place.partition, leader, other).await;
        self.end(id);
    }

    pub(super) async fn forsaken(&self, step: Step) {
        let leader = self.targets(step.target).await[0];
        let Some(held) = self.hold(vec![leader]).await else { return };
        let id = self.begin(&step, &held.nodes, "").await;
        self.fleet().cut(id, self.unheard(leader));
        tokio::time::sleep(ALONE).await;
        self.fleet().kill(leader);
        self.fleet().mend(id);
        tokio::time::sleep(step.lasts).await;
        self.fleet().start(leader);
        drop(held);
        self.end(id);
    }

    /// Nobody fetches from a node.
    fn unheard(&self, node: u8) -> Vec<Cut> {
        let (fleet, others) = (self.fleet(), self.fleet().others(node));
        let mut cuts = vec![fleet.deaf(node, &others, &[REPLICATION_PORT])];
        cuts.extend(others.iter().map(|other| fleet.deaf(*other, &[node], &[REPLICATION_PORT])));
        cuts
    }

    /// Makes `node` lead, if it may; asks `witness`.
    async fn elect(&self, topic: &str, partition: i32, node: u8, witness: u8) {
        let partitions = [json!({ "topic_name": topic, "partition_id": partition, "leader_id": node })];
        let body = json!({ "election_type": "DESIGNATED", "partitions": partitions });
        let until = Instant::now() + ELECTION;
        for asked in [witness, node].into_iter().cycle() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let answer = self.fleet().post(asked, "/v3/clusters/-/elections", &body, left).await;
            if answer.is_some_and(|(status, _)| status < 300) {
                return;
            }
        }
    }
}
