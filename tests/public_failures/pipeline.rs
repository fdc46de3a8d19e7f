//! An idempotent producer with several requests in flight that lives through whatever happens to the leader of `t-0`.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use highwater_tests::client::{Client, idempotent_batch, produce_request};
use highwater_tests::cluster::PATIENCE;
use highwater_wire::Response;
use highwater_wire::api::ApiKey;

use crate::{ALL, NOW};

/// Between two looks at something that is waited for.
pub const POLL: Duration = Duration::from_millis(10);

/// A producer that keeps five batches in flight and begins again at the first one that was not acknowledged.
pub struct Pipeline {
    /// Of the nodes 1, 2, ….
    pub addresses: Vec<SocketAddr>,
    pub name: usize,
    /// Batches that were refused, as a leader that moved refuses them.
    pub refused: Arc<AtomicUsize>,
    /// Batches that were acknowledged.
    pub acked: Arc<AtomicUsize>,
    /// Nothing new is to be sent any more.
    pub enough: Arc<AtomicBool>,
}

impl Pipeline {
    /// A connection to whom the metadata call the leader.
    async fn leader(&self) -> Option<Client> {
        for address in &self.addresses {
            let Ok(mut client) = Client::connect(*address).await else { continue };
            let Ok(metadata) = client.metadata("t").await else { continue };
            let leader = metadata.topics.first()?.partitions.first()?.leader_id;
            let Some(address) = usize::try_from(leader - 1).ok().and_then(|at| self.addresses.get(at)) else {
                continue;
            };
            if let Ok(client) = Client::connect(*address).await {
                return Some(client);
            }
        }
        None
    }

    /// How many batches were sent, all acknowledged in the end.
    pub async fn run(self) -> i32 {
        let until = Instant::now() + 4 * PATIENCE;
        let producer = loop {
            if let Some(mut client) = self.leader().await
                && let Ok(producer) = client.init_producer_id().await
            {
                break producer;
            }
            tokio::time::sleep(POLL).await;
        };
        let (mut acked, mut sent, mut offsets) = (0, 0, BTreeMap::new());
        while acked < sent || !self.enough.load(Ordering::Relaxed) {
            assert!(Instant::now() < until, "producer {}: {acked} of {sent} acknowledged", self.name);
            if let Some(client) = self.leader().await {
                self.pipelined(client, producer, &mut acked, &mut sent, &mut offsets).await;
            }
            tokio::time::sleep(POLL).await;
        }
        acked
    }

    /// Sends from `acked` on, until something is refused or the connection breaks.
    ///
    /// What comes after a refused batch may be taken only where that one is in the log already: a leader that has just been
    /// elected refuses one that it held as a follower, and then takes the next. So `offsets`, of all batches ever
    /// acknowledged, must rise with the batches, and stay what they were when one is acknowledged again.
    async fn pipelined(
        &self,
        mut client: Client,
        producer: (highwater_wire::ProducerId, highwater_wire::ProducerEpoch),
        acked: &mut i32,
        sent: &mut i32,
        offsets: &mut BTreeMap<i32, i64>,
    ) {
        let mut next = *acked;
        let mut flying = VecDeque::new();
        let mut refused_at = None;
        loop {
            while refused_at.is_none() && flying.len() < 5 && (next < *sent || !self.enough.load(Ordering::Relaxed)) {
                let value = format!("{}-{next}", self.name);
                let records = idempotent_batch(producer, next, NOW, &[&value]);
                // Whether it arrives or not, it may have.
                *sent = (next + 1).max(*sent);
                if client.send(9, &produce_request("t", 0, ALL, Some(records)).into()).await.is_err() {
                    return;
                }
                flying.push_back(next);
                next += 1;
            }
            let Some(sequence) = flying.pop_front() else { return };
            let Ok((_, Response::Produce(answer))) = client.receive(ApiKey::Produce, 9).await else { return };
            let answer = &answer.responses[0].partition_responses[0];
            if answer.error_code == 0 {
                let (name, offset) = (self.name, answer.base_offset);
                if let Some(before) = offsets.insert(sequence, offset) {
                    assert_eq!(before, offset, "batch {sequence} of producer {name} is at two offsets");
                }
                let earlier = offsets.range(..sequence).next_back();
                let later = offsets.range(sequence + 1..).next();
                assert!(
                    earlier.is_none_or(|(_, at)| *at < offset) && later.is_none_or(|(_, at)| offset < *at),
                    "batch {sequence} of producer {name} is at {offset}, beside {earlier:?} and {later:?}"
                );
                if refused_at.is_none() {
                    assert_eq!(*acked, sequence);
                    *acked += 1;
                    self.acked.fetch_add(1, Ordering::Relaxed);
                }
            } else {
                refused_at = refused_at.or(Some(sequence));
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// That every one of `0..count` of a producer is there, once and in order.
pub fn check_values(values: &[String], name: usize, count: i32) {
    let own: Vec<&str> = values
        .iter()
        .filter_map(|value| value.split_once('-').filter(|(producer, _)| *producer == name.to_string()))
        .map(|value| value.1)
        .collect();
    let expected: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    assert_eq!(own, expected, "producer {name}: a gap, a double or another order");
}
