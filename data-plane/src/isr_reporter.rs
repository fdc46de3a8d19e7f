//! Carries ISR proposals to the quorum, all that wait in one request, and the answers back (R126–R128).
//!
//! One request is in flight at a time; what failed as a whole is sent again, unchanged, until it is answered. No state
//! beyond what waits: whether a proposal still matters is for the replica to say when the answer comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::controller::{AlterPartition, Answer, Command, IsrProposal, Refusal};
use highwater_quorum::{QuorumClient, controller};
use highwater_wire::{ErrorCode, TopicPartition};
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::debug;

use crate::identity::Identity;
use crate::partitions::{Deliveries, Partitions};
use crate::replica::message::{IsrAnswered, ReplicaRequest};

/// R128
const RETRY: Duration = Duration::from_millis(50);
/// How long one attempt may take before it counts as unanswered.
const ATTEMPT: Duration = Duration::from_secs(3);

/// Runs until the sender of proposals is gone.
pub async fn run(
    mut proposals: UnboundedReceiver<IsrProposal>,
    partitions: Arc<Partitions>,
    quorum: QuorumClient,
    identity: Arc<Identity>,
) {
    let mut waiting: BTreeMap<TopicPartition, IsrProposal> = BTreeMap::new();
    loop {
        if waiting.is_empty() {
            let Some(proposal) = proposals.recv().await else { return };
            waiting.insert(proposal.partition, proposal);
        }
        while let Ok(proposal) = proposals.try_recv() {
            waiting.insert(proposal.partition, proposal);
        }
        let epoch = identity.until_registered().await;
        let changes = AlterPartition::fitting(waiting.values());
        let time = partitions.clock.wall();
        let command =
            Command::AlterPartition(AlterPartition { broker: identity.broker, epoch, changes: changes.clone(), time });
        match quorum.propose(command, ATTEMPT).await {
            Ok((Answer::PartitionsAltered(results), _)) if results.len() == changes.len() => {
                answer(&partitions, &mut waiting, changes, results);
            }
            other => {
                let why = match other {
                    Ok((answer, _)) => format!("an answer of another kind: {answer:?}"),
                    Err(error) => error.to_string(),
                };
                debug!(changes = changes.len(), why, "ISR changes not answered; sending them again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn answer(
    partitions: &Arc<Partitions>,
    waiting: &mut BTreeMap<TopicPartition, IsrProposal>,
    changes: Vec<IsrProposal>,
    results: Vec<Result<controller::AlteredPartition, Refusal>>,
) {
    let now = partitions.clock.now();
    let mut deliveries = Deliveries::new();
    for (proposal, result) in changes.into_iter().zip(results) {
        // A newer proposal that came meanwhile stays: it replaced this one.
        if waiting.get(&proposal.partition) == Some(&proposal) {
            waiting.remove(&proposal.partition);
        }
        if let Err(refusal) = &result {
            let code = ErrorCode::from(refusal);
            metrics::counter!("highwater_isr_change_failures_total", "error" => code.name()).increment(1);
        }
        let at = proposal.partition;
        let result = result.map_err(|refusal| ErrorCode::from(&refusal));
        let answered = ReplicaRequest::IsrAnswered(Box::new(IsrAnswered { proposal, result }));
        partitions.enter_with(at, answered, now, &mut deliveries);
    }
    partitions.deliver(&mut deliveries);
}
