//! Random commands: whatever is proposed, in whatever order, S2–S4 and T1 hold after each entry.

use highwater_wire::{BrokerId, IncarnationId, Timestamp};
use proptest::prelude::*;

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{BrokerState, LeaderRecovery, state_hash};

#[derive(Debug, Clone)]
enum Step {
    Register {
        broker: i32,
        claim: u8,
        dead: bool,
    },
    Unfence {
        broker: i32,
        lost: Vec<u8>,
    },
    Fence {
        brokers: Vec<i32>,
    },
    ShutDown {
        broker: i32,
    },
    Unregister {
        broker: i32,
    },
    Create {
        topic: u8,
        replicas: Vec<i32>,
        min_isr: u8,
        unclean: bool,
    },
    Delete {
        topic: u8,
    },
    Grow {
        topic: u8,
        first: i32,
        replicas: Vec<i32>,
    },
    /// `skew` bends one of the epochs.
    Alter {
        topic: u8,
        sender: Option<i32>,
        isr: Vec<i32>,
        recovering: bool,
        skew: u8,
    },
    Elect {
        topic: u8,
        kind: u8,
    },
    Choose {
        topic: u8,
        leader: i32,
        accept_loss: bool,
    },
    /// On the topic, or with 0 on all brokers; `min_isr` 0 takes both keys back.
    Configure {
        topic: u8,
        min_isr: u8,
        unclean: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let broker = || 1..=4i32;
    let brokers = || prop::collection::vec(1..=4i32, 0..4);
    let topic = || 1..=3u8;
    prop_oneof![
        2 => (broker(), 0..4u8, any::<bool>()).prop_map(|(broker, claim, dead)| Step::Register { broker, claim, dead }),
        4 => (broker(), prop::collection::vec(topic(), 0..2)).prop_map(|(broker, lost)| Step::Unfence { broker, lost }),
        2 => brokers().prop_map(|brokers| Step::Fence { brokers }),
        1 => broker().prop_map(|broker| Step::ShutDown { broker }),
        1 => broker().prop_map(|broker| Step::Unregister { broker }),
        2 => (topic(), brokers(), 1..4u8, any::<bool>())
            .prop_map(|(topic, replicas, min_isr, unclean)| Step::Create { topic, replicas, min_isr, unclean }),
        1 => topic().prop_map(|topic| Step::Delete { topic }),
        2 => (topic(), 0..3i32, brokers()).prop_map(|(topic, first, replicas)| Step::Grow { topic, first, replicas }),
        6 => (topic(), prop::option::weighted(0.1, broker()), brokers(), prop::bool::weighted(0.1), 0..12u8)
            .prop_map(|(topic, sender, isr, recovering, skew)| Step::Alter { topic, sender, isr, recovering, skew }),
        2 => (topic(), 0..3u8).prop_map(|(topic, kind)| Step::Elect { topic, kind }),
        2 => (topic(), broker(), any::<bool>())
            .prop_map(|(topic, leader, accept_loss)| Step::Choose { topic, leader, accept_loss }),
        3 => (0..=3u8, 0..4u8, any::<bool>())
            .prop_map(|(topic, min_isr, unclean)| Step::Configure { topic, min_isr, unclean }),
    ]
}

fn take(quorum: &mut Quorum, step: &Step, fresh: u8) {
    let time = Timestamp(i64::from(fresh));
    let epoch = |quorum: &Quorum, id: i32| {
        quorum.image.broker(BrokerId(id)).map_or(highwater_wire::BrokerEpoch(0), |broker| broker.epoch)
    };
    let command = match step.clone() {
        Step::Register { broker, claim, dead } => {
            let former = quorum.image.broker(BrokerId(broker));
            let claim = match (claim, former) {
                (0, Some(former)) => DataClaim::SameBoot { incarnation: former.incarnation },
                (1, Some(former)) => DataClaim::CleanStop { epoch: former.epoch },
                _ => DataClaim::Nothing,
            };
            let incarnation = IncarnationId::from_bytes([fresh; 16]);
            Command::RegisterBroker(RegisterBroker {
                incarnation,
                claim,
                previous_is_dead: dead,
                ..registration(broker)
            })
        }
        Step::Unfence { broker, lost } => {
            let lost = lost.into_iter().map(at).collect();
            Command::UnfenceBroker { broker: BrokerId(broker), epoch: epoch(quorum, broker), lost, time }
        }
        Step::Fence { brokers } => {
            let fenced =
                |id| FencedBroker { broker: BrokerId(id), epoch: epoch(quorum, id), note: "silent".to_owned() };
            Command::FenceBrokers { brokers: brokers.into_iter().map(fenced).collect(), watermarks: vec![], time }
        }
        Step::ShutDown { broker } => {
            Command::ShutDownBroker { broker: BrokerId(broker), epoch: epoch(quorum, broker), time }
        }
        Step::Unregister { broker } => Command::UnregisterBroker { broker: BrokerId(broker), time },
        Step::Create { topic, replicas, min_isr, unclean } => {
            let (min_isr, unclean) = (min_isr.to_string(), unclean.to_string());
            let configs = [("min.insync.replicas", min_isr.as_str()), ("unclean.leader.election.enable", &unclean)];
            Command::CreateTopic(creation(topic, &replicas, &configs))
        }
        Step::Delete { topic } => Command::DeleteTopic { id: topic_id(topic), time },
        Step::Grow { topic, first, replicas } => Command::AddPartitions(AddPartitions {
            topic: topic_id(topic),
            first_partition: first,
            assignments: vec![ids(&replicas)],
            manual: true,
            time,
        }),
        Step::Alter { topic, sender, mut isr, recovering, skew } => {
            let Some(state) = quorum.image.partition(at(topic)).cloned() else { return };
            let Some(sender) = sender.or(state.leader.map(|id| id.0)) else { return };
            if skew < 10 && !isr.contains(&sender) {
                isr.push(sender);
            }
            isr.retain(|id| quorum.image.broker(BrokerId(*id)).is_some());
            let mut proposal = quorum.proposal(topic, &isr);
            proposal.partition_epoch.0 += i32::from(skew == 1) - i32::from(skew == 2);
            proposal.leader_epoch.0 += i32::from(skew == 3) - i32::from(skew == 4);
            if recovering {
                proposal.recovery = LeaderRecovery::Recovering;
            }
            let (broker, epoch) = (BrokerId(sender), epoch(quorum, sender));
            Command::AlterPartition(AlterPartition { broker, epoch, changes: vec![proposal], time })
        }
        Step::Elect { topic, kind } => {
            let kind = [ElectionKind::Clean, ElectionKind::Preferred, ElectionKind::Unclean][usize::from(kind)];
            Command::ElectLeaders { kind, partitions: vec![at(topic)], time }
        }
        Step::Choose { topic, leader, accept_loss } => {
            let (expected_leader_epoch, expected_partition_epoch, watermark) = (None, None, None);
            let (partition, leader) = (at(topic), BrokerId(leader));
            let election = ChosenElection {
                partition,
                leader,
                accept_loss,
                expected_leader_epoch,
                expected_partition_epoch,
                watermark,
            };
            Command::ElectChosen { elections: vec![election], time }
        }
        Step::Configure { topic, min_isr, unclean } => {
            let resource = if topic == 0 { ConfigResource::Brokers } else { ConfigResource::Topic(topic_id(topic)) };
            let (min_isr, unclean) = match min_isr {
                0 => (ConfigAction::Delete, ConfigAction::Delete),
                min_isr => (ConfigAction::Set(min_isr.to_string()), ConfigAction::Set(unclean.to_string())),
            };
            let operations = [("min.insync.replicas", min_isr), ("unclean.leader.election.enable", unclean)]
                .map(|(key, action)| ConfigOperation { key: key.to_owned(), action });
            Command::AlterConfigs(AlterConfigs {
                resource,
                replace: false,
                operations: operations.to_vec(),
                expected: None,
                time,
            })
        }
    };
    // `run` checks the invariants and the epochs.
    let answer = quorum.run(command.clone());
    // R216: once more changes nothing that matters: refused, idempotent, or the same state under higher epochs.
    if answer.is_ok()
        && matches!(
            command,
            Command::FenceBrokers { .. }
                | Command::UnfenceBroker { .. }
                | Command::AddPartitions(_)
                | Command::AlterConfigs(_)
        )
    {
        let before = state_hash(&quorum.image);
        let _ = quorum.run(command);
        assert_eq!(state_hash(&quorum.image), before, "{step:?} twice");
    }
}

/// Where a leader could be elected cleanly, there is one (L1); the last leader is known where there is none.
fn check_liveness(quorum: &Quorum) {
    for (at, _, state) in quorum.image.partitions() {
        let is_active = |id: &BrokerId| quorum.image.broker(*id).is_some_and(|b| b.state == BrokerState::Active);
        let electable = state.isr.iter().chain(&state.elr).any(is_active);
        assert!(state.leader.is_some() || !electable, "{at} could have a leader: {state:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_commands_breaks_an_invariant(steps in prop::collection::vec(step(), 1..60)) {
        let mut quorum = Quorum::new(3);
        for topic in 1..=2 {
            quorum.create(topic, &[1, 2, 3], &[("min.insync.replicas", "2")]).unwrap();
        }
        for (number, step) in (10u8..).zip(&steps) {
            take(&mut quorum, step, number);
            check_liveness(&quorum);
        }
    }
}
