//! Small worlds, exhaustively: one partition of two or three replicas, a few records, and every order in which the messages
//! under way may arrive, get lost or be overtaken, brokers crash and come back, and leaders change.
//!
//! What decides is what ships: the roles of a replica (`highwater_data::replication`) and the rules of the controller
//! (`highwater_quorum::decide`). A log is a list of numbers here, time stands still but for a step that makes everybody late,
//! and there is no disk. What a seed of the simulation meets by chance is met here for certain, if it takes few steps.
//!
//! Where to read: what may happen next in `worlds/step.rs`, a broker in `worlds/broker.rs`, what must hold in
//! `worlds/checks.rs`, the search in `worlds/search.rs`, which worlds are searched in `worlds/settings.rs`.

use std::sync::Arc;

use highwater_data::replication::follower::{Answer, FetchPoint};
use highwater_quorum::controller::{AlteredPartition, IsrProposal};
use highwater_quorum::{ImageVersion, MetadataImage};
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, Millis, Offset, TopicId, TopicPartition};

use super::flaws::Flaw;
use super::invariants::Violation;

mod broker;
mod checks;
mod search;
mod settings;
mod step;

use broker::{Broker, Record};
pub use search::{Explored, explore};
pub use settings::{usual, variants};
pub use step::Step;

/// `replica.lag.time.max.ms`; a [`Step::Lapse`] is longer.
const LAG_MAX: Millis = Millis(1_000);
const LAPSE: u64 = 2_000;

/// The only partition.
fn partition() -> TopicPartition {
    TopicPartition::new(TopicId::from_bytes([1; 16]), 0)
}

/// How large a world is, and how much may happen in it.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub name: &'static str,
    pub replicas: i32,
    pub min_isr: usize,
    pub budget: Budget,
    /// What has happened before.
    pub before: &'static [Step],
    /// Steps.
    pub depth: usize,
    /// What is done wrong.
    pub wrong: Wrong,
}

/// What may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Records appended.
    pub records: u8,
    /// Leaders named by an operator, from among the ISR; elections after a death come on top, within `epochs`.
    pub elections: u8,
    /// The largest leader epoch with which anything happens.
    pub epochs: i32,
    /// Processes killed; their page cache stays.
    pub kills: u8,
    /// Machines that lose the end of their log.
    pub losses: u8,
    /// Times that everybody who is behind is found to be late.
    pub lapses: u8,
    /// Messages lost.
    pub drops: u8,
    /// Messages under way at a time; beyond, nothing new is sent.
    pub under_way: usize,
}

/// A rule left out, to see that the search finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// A planted flaw of the product.
    Planted(Flaw),
    /// A broker that lost its machine believes its watermark checkpoint: what lies below it is there, whatever was synced.
    TrustsTheCheckpoint,
    /// The first draft of KIP-320: a leader takes fetches of followers that are still in an older epoch (R238).
    TakesOldFetches,
}

impl Wrong {
    pub fn name(self) -> String {
        match self {
            Self::Nothing => "nothing".to_owned(),
            Self::Planted(flaw) => format!("{} {flaw:?}", flaw.rule()),
            Self::TrustsTheCheckpoint => "trusts the checkpoint".to_owned(),
            Self::TakesOldFetches => "KIP-320, first draft".to_owned(),
        }
    }
}

/// A message under way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Packet {
    /// Of the process of `from` that registered as `epoch`.
    Fetch {
        from: BrokerId,
        epoch: BrokerEpoch,
        point: FetchPoint,
    },
    Fetched {
        to: BrokerId,
        epoch: BrokerEpoch,
        point: FetchPoint,
        answer: Answer,
        records: Vec<Record>,
    },
    /// Where does the leader's log end?
    AskEnd {
        from: BrokerId,
        epoch: BrokerEpoch,
        point: FetchPoint,
    },
    ToldEnd {
        to: BrokerId,
        epoch: BrokerEpoch,
        point: FetchPoint,
        end: Result<Offset, ErrorCode>,
    },
    Alter {
        from: BrokerId,
        epoch: BrokerEpoch,
        proposal: Box<IsrProposal>,
    },
    Altered {
        to: BrokerId,
        epoch: BrokerEpoch,
        proposal: Box<IsrProposal>,
        result: Result<AlteredPartition, ErrorCode>,
    },
}

/// One state.
#[derive(Clone)]
struct World {
    image: Arc<MetadataImage>,
    brokers: Vec<Broker>,
    under_way: Vec<Packet>,
    /// Everything below the largest watermark that any leader ever had.
    committed: Vec<Record>,
    budget: Budget,
    appended: u8,
    now: Millis,
    /// Incarnations so far.
    processes: u8,
    wrong: Wrong,
    /// Found on the way.
    violation: Option<Violation>,
}

impl World {
    fn broker(&self, id: BrokerId) -> &Broker {
        &self.brokers[id.0 as usize - 1]
    }

    fn broker_mut(&mut self, id: BrokerId) -> &mut Broker {
        &mut self.brokers[id.0 as usize - 1]
    }

    fn version(&self) -> ImageVersion {
        self.image.version
    }
}
