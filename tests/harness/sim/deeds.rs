//! What is done to the cluster, spelled out: every fault, every order of the operator, every act of a client. Whoever draws
//! a run decides which and when; here it is carried out, and written down so that it can be done again without the draw.

use highwater_quorum::PartitionsSpec;
use highwater_quorum::controller::{
    AlterConfigs, ChosenElection, Command, ConfigAction, ConfigOperation, ConfigResource, ElectionKind,
};
use highwater_quorum::image::LastReport;
use highwater_quorum::planner::plan_growth;
use highwater_wire::{BrokerId, LeaderEpoch, Offset, TopicPartition};
use serde::{Deserialize, Serialize};

use super::World;
use super::core::{Event, Fault, Join};
use super::invariants::{added_partitions, must};
use super::message::Message;
use super::network::{Link, Place};
use super::node::End;
use super::operator::{OPERATOR, PARTITIONS_MAX};
use super::schedule::Entry;

/// A partition by the number of its topic in the swarm: ids differ from run to run.
pub type Spot = (usize, i32);

/// One thing done. Times are µs. `back_us`: until the broker is started again; `None`: as the swarm says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Deed {
    /// `keeps`: draws what of the unsynced survives a loss of power; without it nothing does.
    End {
        broker: BrokerId,
        end: End,
        back_us: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keeps: Option<u64>,
    },
    /// Killed in the middle of one of its next writes, after `more` whole ones.
    Doom {
        broker: BrokerId,
        more: u64,
        torn: u8,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        back_us: Option<u64>,
    },
    /// Asked to stop in order.
    Stop {
        broker: BrokerId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        back_us: Option<u64>,
    },
    /// A sync fails, or a write, after `more` that do not.
    FailDisk {
        broker: BrokerId,
        sync: bool,
        more: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        back_us: Option<u64>,
    },
    Pause {
        broker: BrokerId,
        for_us: u64,
    },
    /// Nothing that `from` sends reaches `to`.
    Cut {
        from: Place,
        to: Place,
        for_us: u64,
    },
    /// Nothing that the broker sends reaches anybody; nor, both ways, the other way round.
    Isolate {
        broker: BrokerId,
        both_ways: bool,
        for_us: u64,
    },
    /// Fenced on a suspicion although it lives.
    Suspect {
        broker: BrokerId,
    },
    ControllerOut {
        for_us: u64,
    },
    /// Another raft leader, which knows nothing of sessions.
    ControllerChange,
    HoldImages {
        broker: BrokerId,
        for_us: u64,
    },
    Reset {
        from: Place,
        to: Place,
    },
    /// One round of preferred elections.
    Elect,
    DeleteTopic {
        topic: usize,
    },
    /// ISR proposals of a leader wait at the controller.
    Neglect {
        broker: BrokerId,
        for_us: u64,
    },

    DeleteRecords {
        at: Spot,
        leader: BrokerId,
        /// `None`: all that is committed.
        before: Option<i64>,
        timeout_ms: u64,
    },
    /// Elections where nobody leads.
    ElectWhereNobodyLeads {
        unclean: bool,
        partitions: Vec<Spot>,
    },
    Designate {
        at: Spot,
        leader: BrokerId,
        accept_loss: bool,
        /// In knowledge of the leader epoch this many before the present one; `None`: whatever it is.
        epochs_behind: Option<i32>,
        with_watermark: bool,
    },
    Unregister {
        broker: BrokerId,
    },
    /// `late`: in knowledge of one partition less than there is.
    AddPartitions {
        topic: usize,
        more: usize,
        late: bool,
        seed: u64,
    },
    /// `None`: back to the default.
    AlterConfig {
        topic: usize,
        key: String,
        value: Option<String>,
    },

    Produce {
        client: u32,
        records: u64,
    },
    /// `latest`: the end is asked for; else records from its position on, in knowledge of the epoch last read or not.
    Poll {
        client: u32,
        latest: bool,
        tells_epoch: bool,
    },
}

impl Deed {
    /// What kind of deed it is, as in its JSON.
    pub fn kind(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        value["do"].as_str().unwrap_or_default().to_owned()
    }

    /// Whether a client does it.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Self::Produce { .. } | Self::Poll { .. })
    }
}

impl World {
    /// Does it now, and writes it down.
    pub(super) fn deed(&mut self, deed: Deed) {
        self.core.ledger.note(self.core.now, &deed);
        self.perform(deed);
    }

    /// The same for what a join, at `at`, led to.
    pub(super) fn deed_of(&mut self, join: Join, at: u64, deed: Deed) {
        self.core.ledger.struck = Some((join, at));
        self.deed(deed);
        self.core.ledger.struck = None;
    }

    /// The time of a written deed has come.
    pub(super) fn written(&mut self, entry: Box<Entry>) {
        if self.core.healed {
            return;
        }
        if !entry.deed.is_of_client() {
            return self.perform(entry.deed);
        }
        // A client that knows no leader yet looks again, as it would by itself.
        if !self.workload.act(&mut self.core, &entry.deed) && self.core.now < entry.at_us + CLIENT_PATIENCE {
            self.core.after(CLIENT_RETRY, Event::Deed(entry));
        }
    }

    /// A follower asks to join: what is written to follow from that is on its way.
    pub(super) fn strike_as_written(&mut self, join: Join) {
        for mut entry in self.core.ledger.struck_by(join, self.core.now) {
            let after = entry.after_us;
            entry.at_us = self.core.now + after;
            self.core.after(after, Event::Deed(Box::new(entry)));
        }
    }

    fn is_up(&self, broker: BrokerId) -> bool {
        self.nodes.get(&broker).is_some_and(super::node::Node::is_up)
    }

    /// Does it, if it can be done now.
    fn perform(&mut self, deed: Deed) {
        match deed {
            Deed::End { broker, end, back_us, keeps } => self.perform_end(broker, end, back_us, keeps),
            Deed::Doom { broker, more, torn, back_us } => {
                self.core.fault(|| format!("b{broker} will be killed in a write"));
                if let Some(node) = self.nodes.get_mut(&broker) {
                    node.back_us = back_us;
                    node.doom(more, torn);
                }
            }
            Deed::Stop { broker, back_us } => {
                self.core.fault(|| format!("b{broker} is asked to stop"));
                if let Some(node) = self.nodes.get_mut(&broker)
                    && let Some(process) = node.process.as_mut()
                {
                    node.back_us = back_us;
                    process.drain(&mut self.core);
                }
            }
            Deed::FailDisk { broker, sync, more, back_us } => {
                self.core.fault(|| format!("the disk of b{broker} fails"));
                if let Some(node) = self.nodes.get_mut(&broker) {
                    node.back_us = back_us;
                    node.fail_disk(sync, more);
                }
            }
            Deed::Pause { broker, for_us } => self.perform_pause(broker, for_us),
            Deed::Cut { from, to, for_us } => {
                if self.core.net.cut(from, to) {
                    self.core.fault(|| format!("{from} does not reach {to} for {} ms", for_us / 1_000));
                    self.core.after(for_us, Event::Fault(Fault::Mend { from, to }));
                }
            }
            Deed::Isolate { broker, both_ways, for_us } => self.perform_isolate(broker, both_ways, for_us),
            Deed::Suspect { broker } => {
                if self.is_up(broker) && !self.quorum.is_out() {
                    self.core.fault(|| format!("false suspicion of b{broker}"));
                    self.quorum.suspect_falsely(&mut self.core, broker);
                }
            }
            Deed::ControllerOut { for_us } => {
                self.core.fault(|| format!("no controller for {} ms", for_us / 1_000));
                self.quorum.go_out(&mut self.core, for_us);
            }
            Deed::ControllerChange => {
                self.core.fault(|| "another controller".to_owned());
                self.quorum.come_back(&mut self.core);
            }
            Deed::HoldImages { broker, for_us } => {
                self.core.fault(|| format!("b{broker} hears nothing of metadata for {} ms", for_us / 1_000));
                if let Some(node) = self.nodes.get_mut(&broker) {
                    node.images_held = true;
                }
                self.core.after(for_us, Event::Fault(Fault::ReleaseImages(broker)));
            }
            Deed::Reset { from, to } => {
                let link = Link { from, to };
                let generation = self.core.net.generation(link);
                self.core.fault(|| format!("{from}–{to} is reset"));
                self.core.after(0, Event::Broke { link, generation });
            }
            Deed::Elect => {
                if !self.quorum.is_out() {
                    self.quorum.elect_preferred(&mut self.core);
                }
            }
            Deed::DeleteTopic { topic } => {
                if self.quorum.delete_topic(&mut self.core, topic) {
                    self.forget_losses_of_deleted();
                    self.core.fault(|| format!("topic{topic} is deleted"));
                }
            }
            Deed::Neglect { broker, for_us } => {
                self.core.fault(|| format!("proposals of b{broker} wait for {} ms", for_us / 1_000));
                self.quorum.neglect(&self.core, broker, for_us);
            }
            Deed::Produce { .. } | Deed::Poll { .. } => {
                self.workload.act(&mut self.core, &deed);
            }
            order => self.obey(order),
        }
    }

    fn perform_end(&mut self, broker: BrokerId, end: End, back_us: u64, keeps: Option<u64>) {
        if !self.may_end(broker, end) {
            return;
        }
        self.core.fault(|| format!("b{broker} ends: {end:?}, back in {} ms", back_us / 1_000));
        if matches!(end, End::PowerLoss | End::Wiped) {
            self.note_lossy(broker);
        }
        if let Some(node) = self.nodes.get_mut(&broker) {
            node.end(&mut self.core, end, keeps);
        }
        self.core.after(back_us, Event::Start { broker });
    }

    fn perform_pause(&mut self, broker: BrokerId, for_us: u64) {
        let Some(node) = self.nodes.get_mut(&broker).filter(|n| n.is_up() && !n.paused) else { return };
        node.paused = true;
        if let Some(truth) = self.core.truth.get_mut(&broker) {
            truth.paused = true;
        }
        self.core.fault(|| format!("b{broker} is paused for {} ms", for_us / 1_000));
        self.core.after(for_us, Event::Resume { broker });
    }

    fn perform_isolate(&mut self, broker: BrokerId, both_ways: bool, for_us: u64) {
        let alone = Place::Broker(broker.0);
        self.core.fault(|| format!("b{broker} is alone for {} ms", for_us / 1_000));
        let mut others: Vec<Place> = (1..=self.core.swarm.brokers).map(Place::Broker).collect();
        others.push(Place::Controller);
        for other in others.into_iter().filter(|o| *o != alone) {
            for (from, to) in [(other, alone), (alone, other)] {
                if (both_ways || to == alone) && self.core.net.cut(from, to) {
                    self.core.after(for_us, Event::Fault(Fault::Mend { from, to }));
                }
            }
        }
    }

    fn acted(&mut self, what: impl FnOnce() -> String) {
        self.core.counts.acts += 1;
        self.core.trace.line(self.core.now, || format!("OPERATOR {}", what()));
    }

    /// The partition there is now at this spot.
    fn partition_at(&self, (topic, partition): Spot) -> Option<TopicPartition> {
        let at = TopicPartition::new(self.quorum.image.topic_named(&format!("topic{topic}"))?.id, partition);
        self.quorum.image.partition(at).map(|_| at)
    }

    /// An order of the operator.
    fn obey(&mut self, order: Deed) {
        match order {
            Deed::DeleteRecords { at, leader, before, timeout_ms } => {
                let Some(at) = self.partition_at(at) else { return };
                let committed = self.core.book.partitions.get(&at).map_or(0, |book| book.max_high_watermark());
                let link = Link { from: Place::Client(OPERATOR), to: Place::Broker(leader.0) };
                let call = self.core.call();
                self.acted(|| format!("deletes records of {at} below {before:?}, of {committed} committed"));
                let before = before.map(Offset);
                self.core.request(link, Message::Delete { call, at, before, timeout_ms });
            }
            Deed::ElectWhereNobodyLeads { unclean, partitions } => {
                let partitions: Vec<_> = partitions.into_iter().filter_map(|at| self.partition_at(at)).collect();
                if partitions.is_empty() || self.quorum.is_out() {
                    return;
                }
                let kind = if unclean { ElectionKind::Unclean } else { ElectionKind::Clean };
                self.acted(|| format!("wants leaders of {partitions:?}, {kind:?}"));
                if unclean {
                    self.core.book.may_lose.extend(partitions.iter().copied());
                }
                let command = Command::ElectLeaders { kind, partitions, time: self.core.wall() };
                let _refused = self.quorum.decide(&mut self.core, &command);
                self.core.book.may_lose.clear();
            }
            Deed::Designate { at, leader, accept_loss, epochs_behind, with_watermark } => {
                self.obey_designation(at, leader, accept_loss, epochs_behind, with_watermark);
            }
            Deed::Unregister { broker } => {
                let active = self.quorum.image.broker(broker).is_some_and(|broker| broker.is_active());
                if self.quorum.is_out() || (!active && !self.may_lose(broker)) {
                    return;
                }
                self.acted(|| format!("unregisters b{broker}"));
                let known = self.quorum.image.broker(broker).is_some();
                let command = Command::UnregisterBroker { broker, time: self.core.wall() };
                let done = self.quorum.decide(&mut self.core, &command).is_ok();
                self.core.check(must(done != active || !known, "R176", || {
                    format!("unregistering broker {broker}: done {done}, it was active: {active}")
                }));
                if done {
                    self.note_lossy(broker);
                }
            }
            Deed::AddPartitions { topic, more, late, seed } => self.obey_growth(topic, more, late, seed),
            Deed::AlterConfig { topic, key, value } => {
                let Some(id) = self.quorum.image.topic_named(&format!("topic{topic}")).map(|topic| topic.id) else {
                    return;
                };
                if self.quorum.is_out() {
                    return;
                }
                let action = value.map_or(ConfigAction::Delete, ConfigAction::Set);
                self.acted(|| format!("alters topic{topic}: {key} {action:?}"));
                let operations = vec![ConfigOperation { key, action }];
                let (resource, time) = (ConfigResource::Topic(id), self.core.wall());
                let command =
                    Command::AlterConfigs(AlterConfigs { resource, replace: false, operations, expected: None, time });
                let _refused = self.quorum.decide(&mut self.core, &command);
            }
            other => unreachable!("no order of an operator: {other:?}"),
        }
    }

    fn obey_designation(
        &mut self,
        at: Spot,
        leader: BrokerId,
        accept_loss: bool,
        epochs_behind: Option<i32>,
        with_watermark: bool,
    ) {
        let Some(at) = self.partition_at(at) else { return };
        let Some(known) = self.quorum.image.partition(at).map(|state| state.leader_epoch) else { return };
        if self.quorum.is_out() {
            return;
        }
        let watermark = if with_watermark { self.told_watermark(at) } else { None };
        let verdict = self.what_it_would_cost(at, Some(leader));
        self.core.check(verdict);
        let word = if accept_loss { ", whatever it costs" } else { "" };
        self.acted(|| format!("wants b{leader} to lead {at}{word}"));
        if accept_loss {
            self.core.book.may_lose.insert(at);
        }
        let election = ChosenElection {
            partition: at,
            leader,
            accept_loss,
            expected_leader_epoch: epochs_behind.map(|behind| LeaderEpoch(known.0 - behind)),
            expected_partition_epoch: None,
            watermark,
        };
        let command = Command::ElectChosen { elections: vec![election], time: self.core.wall() };
        let _refused = self.quorum.decide(&mut self.core, &command);
        self.core.book.may_lose.clear();
    }

    /// What the leader says of its watermark just now, if it is there to be asked.
    fn told_watermark(&self, at: TopicPartition) -> Option<LastReport> {
        let leader = self.quorum.image.partition(at)?.leader?;
        let node = self.nodes.get(&leader).filter(|node| !node.paused)?;
        let replica = &node.process.as_ref()?.hosted.get(&at)?.replica;
        let high_watermark = replica.replication().leader().ok()?.high_watermark();
        Some(LastReport { high_watermark, reported: self.core.wall(), log_start: replica.log().view().start })
    }

    /// Those that exist are not touched.
    fn obey_growth(&mut self, number: usize, more: usize, late: bool, seed: u64) {
        let name = format!("topic{number}");
        let Some(topic) = self.quorum.image.topic_named(&name).cloned() else { return };
        let present = topic.partitions.len();
        if self.quorum.is_out() || present + more > PARTITIONS_MAX {
            return;
        }
        let partitions = (present + more) as i32;
        let time = self.core.wall();
        let spec = PartitionsSpec { topic: name.clone(), partitions, assignments: None, validate_only: false };
        let Ok(plan) = plan_growth(&self.quorum.image, &spec, seed, time) else { return };
        self.acted(|| format!("gives {name} {partitions} partitions instead of {present}"));
        for mut part in plan.parts {
            part.first_partition -= i32::from(late);
            let added = self.quorum.decide(&mut self.core, &Command::AddPartitions(part)).is_ok();
            let after = self.quorum.image.topics.get(&topic.id).map_or(&[][..], |topic| &topic.partitions);
            let more = if added && !late { more } else { 0 };
            let verdict = added_partitions::grown(&name, &topic.partitions, after, more);
            self.core.check(verdict);
        }
        self.note_losses_before(number);
    }
}

/// µs until a client that knew no leader looks again, and for how long it does.
const CLIENT_RETRY: u64 = 20_000;
const CLIENT_PATIENCE: u64 = 3_000_000;
