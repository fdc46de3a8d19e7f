//! Clients: producers of every kind, readers, and what each of them may conclude from an answer.
//!
//! They behave as librdkafka and the Java clients do, as far as it matters: they find leaders in any broker's metadata,
//! keep the highest leader epoch seen, send in order on one connection, and resend from the first unanswered batch on.

use highwater_quorum::MetadataImage;
use highwater_wire::{BrokerId, LeaderEpoch, TopicPartition};

use super::core::{ClientTimer, Core, Event};
use super::deeds::Deed;
use super::message::Message;
use super::network::{Link, Packet, Place};
use super::schedule::Client;

mod consumer;
mod producer;

use consumer::Consumer;
use producer::Producer;

/// All clients.
pub struct Workload {
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
    /// No new records; what is under way is brought to its end.
    pub quiet: bool,
}

/// What a client knows of one partition.
#[derive(Debug, Clone, Default)]
struct Target {
    /// Topic by its number in the swarm, and the partition of it.
    topic: usize,
    partition: i32,
    /// Once found.
    at: Option<TopicPartition>,
    leader: Option<BrokerId>,
    epoch: Option<LeaderEpoch>,
}

impl Target {
    /// Looks the partition up in the metadata of a random broker. Says whether the topic is another one than before.
    fn refresh(&mut self, core: &mut Core) -> bool {
        let before = self.at;
        if self.at.is_some_and(|at| !core.book.partitions.contains_key(&at)) {
            *self = Self { topic: self.topic, partition: self.partition, ..Self::default() };
        }
        let known: Vec<BrokerId> = core.images.keys().copied().collect();
        let Some(&broker) = core.rng.pick(&known) else { return before != self.at };
        let image: &MetadataImage = &core.images[&broker];
        if let Some(topic) = image.topic_named(&format!("topic{}", self.topic)) {
            // A client that hears of new partitions may go on with one of them.
            if core.swarm.acts.add_partitions > 0 && core.rng.chance(40) {
                let partition = core.rng.below(topic.partitions.len() as u64) as i32;
                if partition != self.partition {
                    *self = Self { topic: self.topic, partition, ..Self::default() };
                }
            }
            let at = TopicPartition::new(topic.id, self.partition);
            if let Some(state) = image.partition(at)
                && core.book.partitions.contains_key(&at)
                && (self.at != Some(at) || self.epoch.is_none_or(|epoch| epoch <= state.leader_epoch))
            {
                self.at = Some(at);
                self.leader = state.leader;
                self.epoch = Some(state.leader_epoch);
            }
        }
        before != self.at
    }

    fn link(&self, client: u32) -> Option<Link> {
        Some(Link { from: Place::Client(client), to: Place::Broker(self.leader?.0) })
    }
}

impl Workload {
    pub fn new(core: &mut Core) -> Self {
        if !core.ledger.is_scripted() {
            let clients = Self::draw(core);
            core.ledger.note_clients(clients);
        }
        let (mut producers, mut consumers) = (Vec::new(), Vec::new());
        for &Client { id, topic, partition, producer } in &core.ledger.clients {
            let target = Target { topic, partition, ..Target::default() };
            match producer {
                Some(draw) => producers.push(Producer::new(id, draw, target)),
                None => consumers.push(Consumer::new(id, target)),
            }
        }
        if !core.ledger.clients_are_scripted() {
            let ids: Vec<u32> = core.ledger.clients.iter().map(|client| client.id).collect();
            for client in ids {
                let delay = core.rng.within(100_000, 1_500_000);
                core.after(delay, Event::Client { client, timer: ClientTimer::Next });
            }
        }
        Self { producers, consumers, quiet: false }
    }

    fn draw(core: &Core) -> Vec<Client> {
        let mut rng = core.rng.fork(17);
        let producers = core.swarm.producers.iter().copied().map(Some);
        let consumers = (0..core.swarm.consumers).map(|_| None);
        (1..)
            .zip(producers.chain(consumers))
            .map(|(id, producer)| {
                let topic = rng.below(core.swarm.topics.len() as u64) as usize;
                let partition = rng.below(core.swarm.topics[topic].partitions as u64) as i32;
                Client { id, topic, partition, producer }
            })
            .collect()
    }

    /// What is written for a client. `false`: it knows no leader to turn to.
    pub fn act(&mut self, core: &mut Core, deed: &Deed) -> bool {
        match *deed {
            Deed::Produce { client, records } => {
                let producer = self.producers.iter_mut().find(|producer| producer.id == client);
                producer.is_none_or(|producer| producer.produce(core, Some(records)))
            }
            Deed::Poll { client, latest, tells_epoch } => {
                let consumer = self.consumers.iter_mut().find(|consumer| consumer.id == client);
                consumer.is_none_or(|consumer| consumer.poll(core, Some((latest, tells_epoch))))
            }
            _ => true,
        }
    }

    pub fn on_packet(&mut self, core: &mut Core, client: u32, packet: Packet<Message>) {
        if let Some(producer) = self.producers.iter_mut().find(|p| p.id == client) {
            if let Message::Produced { call, result } = packet.message {
                producer.on_answer(core, call, result);
            }
        } else if let Some(consumer) = self.consumers.iter_mut().find(|c| c.id == client) {
            consumer.on_answer(core, packet.message);
        }
    }

    pub fn on_broken(&mut self, core: &mut Core, client: u32, link: Link) {
        if let Some(producer) = self.producers.iter_mut().find(|p| p.id == client) {
            producer.on_broken(core, link);
        } else if let Some(consumer) = self.consumers.iter_mut().find(|c| c.id == client) {
            consumer.on_broken(core);
        }
    }

    pub fn on_timer(&mut self, core: &mut Core, client: u32, timer: ClientTimer) {
        let quiet = self.quiet;
        if let Some(producer) = self.producers.iter_mut().find(|p| p.id == client) {
            producer.on_timer(core, timer, quiet);
        } else if let Some(consumer) = self.consumers.iter_mut().find(|c| c.id == client) {
            consumer.on_timer(core, timer);
        }
    }

    /// The quorum gave a producer an id.
    pub fn got_producer_id(&mut self, client: u32, id: i64) {
        if let Some(producer) = self.producers.iter_mut().find(|p| p.id == client) {
            producer.got_producer_id(id);
        }
    }

    /// Records that wait for an answer.
    pub fn under_way(&self) -> usize {
        self.producers.iter().map(Producer::under_way).sum()
    }
}
