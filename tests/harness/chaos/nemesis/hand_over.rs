//! Leadership that goes away and comes back while records wait: what a network cut and an impatient operator do together.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::fleet::REPLICATION_PORT;
use super::super::plan::{Step, Target};
use super::{Nemesis, TURN_LIMIT};

/// So long a produce is on its way before it waits for the other replicas.
const ON_ITS_WAY: Duration = Duration::from_millis(15);
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
        let mut cuts = vec![fleet.deaf(leader, &others, &[REPLICATION_PORT])];
        cuts.extend(others.iter().map(|other| fleet.deaf(*other, &[leader], &[REPLICATION_PORT])));
        fleet.cut(id, cuts);
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
