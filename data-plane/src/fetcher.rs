//! Follows: one task, one connection and one fetch session per leader broker and shard (R151, D21).
//!
//! A task asks its plan what to fetch, sends it, and feeds the answer to the replicas, whose replies are the next plan.
//! Each leader has a task of its own: a paused or dead one stalls nobody else. A lost connection is told to the replicas
//! as an error, so that they back off (D26a), and to the quorum as a suspicion (D7).
//!
//! One request is in flight. Only news from outside – a partition to follow, one synced, the end of a pause – sends a
//! second one, which makes the leader answer the first at once instead of when its wait is over. The request that opens a
//! session is followed by none until the session has a name, and therefore does not wait.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::QuorumClient;
use highwater_quorum::image::Endpoint;
use highwater_wire::api::ApiKey;
use highwater_wire::fetch::{FetchResponse, FetchedPartition};
use highwater_wire::frame::{FrameBuffer, FrameLimits};
use highwater_wire::request::{FetchRequest, Request, StrBytes};
use highwater_wire::response::{Response, response_limits};
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, Millis, Offset, TopicPartition};
use kafka_wire::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic, ReplicaState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::debug;

use crate::fetch_session::{Asked, ClientRound, ClientSession};
use crate::identity::Identity;
use crate::live::Live;
use crate::net;
use crate::partitions::{Deliveries, Partitions};
use crate::replica::message::{
    FetchPoint, FetchedFromLeader, FollowerNext, LeaderAnswer, ReplicaReply, ReplicaRequest,
};
use crate::suspects::Suspects;

mod following;
mod leader_offsets;
mod questions;

use following::Following;
use leader_offsets::ask_leader;
use questions::Questions;

/// Topic ids and broker epochs; the newest that needs nothing we do not send.
const FETCH_VERSION: i16 = 17;
/// D34: a fetch is given up this long after its MaxWait.
const GRACE: Duration = Duration::from_secs(2);
/// The least pause between a lost connection and the next.
const REDIAL: Millis = Millis(20);
/// How long the timer sleeps when nothing is due.
const QUIET: Duration = Duration::from_secs(3_600);
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Answers are bounded by what was asked for, and by one batch more.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// What all fetchers share.
pub struct Fetchers {
    pub partitions: Arc<Partitions>,
    pub quorum: QuorumClient,
    pub identity: Arc<Identity>,
    pub suspects: Arc<Suspects>,
    pub live: Arc<Live>,
    /// `num.replica.fetchers`, at least 1; the same for the life of the process, since it says who follows what.
    pub shards: u32,
}

/// News for one fetcher.
enum News {
    Next(TopicPartition, FollowerNext),
    /// Follow it no more.
    Drop(TopicPartition),
}

/// Passes on what replicas want to whoever fetches from their leader; starts fetchers as leaders appear. Ends when the
/// sender is gone.
pub async fn run(shared: Arc<Fetchers>, mut wishes: UnboundedReceiver<(TopicPartition, FollowerNext)>) {
    let mut tasks = tokio::task::JoinSet::new();
    let mut fetchers: HashMap<(BrokerId, u32), UnboundedSender<News>> = HashMap::new();
    let mut followed: HashMap<TopicPartition, BrokerId> = HashMap::new();
    let shards = shared.shards;
    while let Some((at, next)) = wishes.recv().await {
        let shard = shard_of(at, shards);
        let leader = match next {
            FollowerNext::Fetch(point) | FollowerNext::BackOff { point, .. } | FollowerNext::AskLeader(point) => {
                Some(point.leader)
            }
            FollowerNext::AwaitSync | FollowerNext::AwaitMetadata => None,
            FollowerNext::Dropped => continue,
        };
        if let Some(before) = followed.get(&at).copied().filter(|before| leader != Some(*before)) {
            followed.remove(&at);
            if let Some(fetcher) = fetchers.get(&(before, shard)) {
                let _ = fetcher.send(News::Drop(at));
            }
        }
        if let Some(leader) = leader {
            followed.insert(at, leader);
            let fetcher = fetchers.entry((leader, shard)).or_insert_with(|| {
                let (sender, news) = unbounded_channel();
                tasks.spawn(Fetcher::new(shared.clone(), leader, shard).run(news));
                sender
            });
            let _ = fetcher.send(News::Next(at, next));
        }
    }
}

/// The longest pause after a failed fetch.
fn longest_pause(live: &Live) -> Millis {
    Millis(u64::try_from(live.fetch_backoff_max().as_millis()).unwrap_or(u64::MAX))
}

/// Which of a leader's fetchers follows a partition: always the same.
fn shard_of(at: TopicPartition, shards: u32) -> u32 {
    let topic = at.topic.to_bytes();
    let head = u32::from_be_bytes([topic[0], topic[1], topic[2], topic[3]]);
    head.wrapping_add(at.partition.unsigned_abs()) % shards
}

/// One request on its way.
struct Flight {
    deadline: Instant,
    correlation_id: i32,
}

struct Fetcher {
    shared: Arc<Fetchers>,
    leader: BrokerId,
    following: Following,
    session: ClientSession,
    questions: Questions<TopicPartition, FetchPoint>,
    flights: VecDeque<Flight>,
    /// Who asks, or asked last, what the leader's log holds: one for each partition.
    asking: BTreeMap<TopicPartition, AbortHandle>,
    connection: Option<Connection>,
    next_correlation: i32,
    /// News came that a request under way does not know of.
    urgent: bool,
    /// No new connection before this.
    dial_at: Millis,
    client_id: StrBytes,
    bytes_in: metrics::Counter,
}

struct Connection {
    stream: TcpStream,
    frames: FrameBuffer,
}

impl Fetcher {
    fn new(shared: Arc<Fetchers>, leader: BrokerId, shard: u32) -> Self {
        let pause_max = longest_pause(&shared.live);
        let client_id = format!("broker-{}-fetcher-{shard}", shared.identity.broker).into();
        Self {
            shared,
            client_id,
            leader,
            following: Following::new(pause_max),
            session: ClientSession::default(),
            questions: Questions::default(),
            flights: VecDeque::new(),
            asking: BTreeMap::new(),
            connection: None,
            next_correlation: 0,
            urgent: false,
            dial_at: Millis::ZERO,
            bytes_in: metrics::counter!("highwater_replication_bytes_total", "direction" => "in", "kind" => "normal"),
        }
    }

    async fn run(mut self, mut news: UnboundedReceiver<News>) {
        // One timer for all rounds: to move it to a later time takes no lock.
        let mut alarm = pin!(tokio::time::sleep_until(Instant::now() + QUIET));
        loop {
            if let Err(error) = self.send_if_due().await {
                self.lost(&error);
                continue;
            }
            let due = self.next_due();
            if due != alarm.deadline() {
                alarm.as_mut().reset(due);
            }
            tokio::select! {
                biased;
                told = news.recv() => {
                    let Some(told) = told else { return };
                    self.hear(told);
                    while let Ok(told) = news.try_recv() {
                        self.hear(told);
                    }
                }
                frame = read_frame(self.connection.as_mut()), if !self.flights.is_empty() => match frame {
                    Ok(frame) => if let Err(error) = self.answered(frame) {
                        self.lost(&error);
                    },
                    Err(error) => self.lost(&error),
                },
                () = &mut alarm => {
                    let now = Instant::now();
                    if self.flights.front().is_some_and(|flight| flight.deadline <= now) {
                        self.lost(&io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }

    /// When to look again though nothing happens.
    fn next_due(&self) -> Instant {
        let redial = (self.connection.is_none() && self.dial_at > self.now()).then_some(self.dial_at);
        let due = self.following.next_due().into_iter().chain(redial).min();
        let due = due.map(|at| Instant::from(self.shared.partitions.clock.instant(at)));
        let deadline = self.flights.front().map(|flight| flight.deadline);
        due.into_iter().chain(deadline).min().unwrap_or_else(|| Instant::now() + QUIET)
    }

    fn now(&self) -> Millis {
        self.shared.partitions.clock.mono()
    }

    fn hear(&mut self, news: News) {
        let now = self.now();
        match news {
            News::Next(at, next) => {
                let next = self.renewed(at, next);
                self.urgent |= matches!(next, FollowerNext::Fetch(_));
                self.next(at, next, now);
            }
            News::Drop(at) => self.following.drop(at),
        }
    }

    /// What a replica wants now: an answer may have come while its wish was on its way, and where it would have fetched
    /// then it takes nothing any more.
    fn renewed(&self, at: TopicPartition, wish: FollowerNext) -> FollowerNext {
        let partitions = &self.shared.partitions;
        let mut deliveries = Deliveries::new();
        let reply = partitions.enter_with(at, ReplicaRequest::FetchPoint, partitions.clock.now(), &mut deliveries);
        partitions.deliver(&mut deliveries);
        match (wish, reply) {
            (FollowerNext::BackOff { error, .. }, Some(ReplicaReply::Next(FollowerNext::Fetch(point)))) => {
                FollowerNext::BackOff { point, error }
            }
            (_, Some(ReplicaReply::Next(next))) => next,
            (wish, _) => wish,
        }
    }

    /// Takes a replica's wish.
    fn next(&mut self, at: TopicPartition, next: FollowerNext, now: Millis) {
        match next {
            FollowerNext::Fetch(point) | FollowerNext::BackOff { point, .. } | FollowerNext::AskLeader(point)
                if point.leader != self.leader =>
            {
                // The leader moved between the answer and this reply; the supervisor hears of it by the image.
                self.following.drop(at);
            }
            FollowerNext::Fetch(point) => self.following.fetch(at, point),
            FollowerNext::BackOff { point, error } => {
                metrics::counter!("highwater_replica_fetch_errors_total", "error" => error.name()).increment(1);
                debug!(%at, leader = %self.leader, %error, "fetching from the leader failed; trying again");
                self.following.back_off(at, point, now);
            }
            FollowerNext::AskLeader(point) => {
                self.following.drop(at);
                // Each change of the metadata says it again: the one who asked before would go on beside the new one.
                let asks = tokio::spawn(ask_leader(self.shared.clone(), at, point)).abort_handle();
                if let Some(before) = self.asking.insert(at, asks) {
                    before.abort();
                }
            }
            FollowerNext::AwaitSync => self.following.await_sync(at, now),
            FollowerNext::AwaitMetadata => self.following.drop(at),
            FollowerNext::Dropped => {}
        }
    }

    /// Sends a request when one is due.
    async fn send_if_due(&mut self) -> io::Result<()> {
        let now = self.now();
        self.urgent |= self.following.take_resumed(now);
        let due = match self.flights.len() {
            0 => (self.connection.is_some() || self.dial_at <= now) && self.following.may_send(now),
            1 => self.urgent && self.session.may_pipeline() && self.following.has_changes(now),
            _ => false,
        };
        if !due {
            return Ok(());
        }
        self.urgent = false;
        if self.connection.is_none() {
            let (to, _) = self.address().ok_or(io::ErrorKind::AddrNotAvailable)?;
            let stream = net::dial(&to, DIAL_TIMEOUT).await?;
            self.shared.suspects.lives(self.leader);
            self.connection =
                Some(Connection { stream, frames: FrameBuffer::new(FrameLimits::same(ANSWER_BYTES_MAX)) });
        }
        let changes = self.following.take_changes(now);
        self.questions.sent(&changes.asked, &changes.dropped);
        self.following.set_pause_max(longest_pause(&self.shared.live));
        let bytes_max = self.shared.live.fetch_partition_bytes_max();
        let asked = changes.asked.into_iter().map(|(at, point)| (at, asked(point, bytes_max)));
        let wait = if self.session.is_opening() { Duration::ZERO } else { self.shared.live.fetch_wait_max() };
        let round = self.session.round_of_changes(asked, changes.dropped);
        let correlation_id = self.next_correlation;
        self.next_correlation = self.next_correlation.wrapping_add(1);
        let frame = self.request(round, wait).encode(FETCH_VERSION, correlation_id, Some(&self.client_id));
        let frame = frame.map_err(io::Error::other)?;
        let deadline = Instant::now() + wait + GRACE;
        self.flights.push_back(Flight { deadline, correlation_id });
        let connection = self.connection.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let frame = frame.to_bytes();
        tokio::time::timeout(GRACE, connection.stream.write_all(&frame))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    fn request(&self, round: ClientRound, wait: Duration) -> Request {
        let live = &self.shared.live;
        let mut request = FetchRequest::default();
        let mut replica = ReplicaState::default();
        replica.replica_id = self.shared.identity.broker.0;
        replica.replica_epoch = BrokerEpoch::to_wire(self.shared.identity.epoch());
        request.replica_state = replica;
        request.max_wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        request.min_bytes = i32::try_from(live.fetch_bytes_min()).unwrap_or(i32::MAX);
        request.max_bytes = i32::try_from(live.fetch_response_bytes_max()).unwrap_or(i32::MAX);
        request.session_id = round.session;
        request.session_epoch = round.epoch;
        for (at, asked) in round.asked {
            let mut partition = FetchPartition::default();
            partition.partition = at.partition;
            partition.current_leader_epoch = LeaderEpoch::to_wire(asked.leader_epoch);
            partition.fetch_offset = asked.offset;
            partition.last_fetched_epoch = LeaderEpoch::to_wire(asked.last_fetched_epoch);
            partition.log_start_offset = Offset::to_wire(asked.log_start);
            partition.partition_max_bytes = i32::try_from(asked.bytes_max).unwrap_or(i32::MAX);
            match request.topics.last_mut() {
                Some(topic) if topic.topic_id == at.topic.into() => topic.partitions.push(partition),
                _ => {
                    let mut topic = FetchTopic::default();
                    topic.topic_id = at.topic.into();
                    topic.partitions.push(partition);
                    request.topics.push(topic);
                }
            }
        }
        for at in round.forgotten {
            match request.forgotten_topics_data.last_mut() {
                Some(topic) if topic.topic_id == at.topic.into() => topic.partitions.push(at.partition),
                _ => {
                    let mut topic = ForgottenTopic::default();
                    topic.topic_id = at.topic.into();
                    topic.partitions.push(at.partition);
                    request.forgotten_topics_data.push(topic);
                }
            }
        }
        request.into()
    }

    /// Feeds an answer to the replicas.
    fn answered(&mut self, frame: bytes::Bytes) -> io::Result<()> {
        let (id, response) = Response::decode(ApiKey::Fetch, FETCH_VERSION, frame, response_limits())
            .map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault.to_string()))?;
        let flight = self.flights.pop_front().filter(|flight| flight.correlation_id == id);
        let (Some(_), Response::Fetch(response)) = (flight, response) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer to something that was not asked"));
        };
        if response.error.is_error() {
            debug!(leader = %self.leader, error = %response.error, "the leader refused the fetch session; starting over");
            self.start_over();
            return Ok(());
        }
        self.session.on_answer(response.session_id);
        if response.session_id == 0 {
            // No session there: everything is asked anew each time.
            self.following.ask_again();
        }
        self.feed(response);
        Ok(())
    }

    fn feed(&mut self, response: FetchResponse) {
        let partitions = self.shared.partitions.clone();
        let now = partitions.clock.now();
        let mut deliveries = Deliveries::new();
        let answered = self.questions.answered();
        let mut bytes = 0;
        for topic in response.topics {
            for fetched in topic.partitions {
                let at = TopicPartition::new(topic.id, fetched.index);
                let Some(requested) = self.questions.of(&answered, &at) else { continue };
                bytes += fetched.records.len() as u64;
                let fetched =
                    ReplicaRequest::FetchedFromLeader(FetchedFromLeader { requested, answer: answer(fetched) });
                match partitions.enter_with(at, fetched, now, &mut deliveries) {
                    Some(ReplicaReply::Next(next)) => self.next(at, next, now.mono),
                    Some(_) => {}
                    None => self.following.drop(at),
                }
            }
        }
        self.bytes_in.increment(bytes);
        partitions.deliver(&mut deliveries);
    }

    /// The connection is of no more use: tells the quorum if that looks like a death, and every replica.
    fn lost(&mut self, error: &io::Error) {
        self.start_over();
        if net::suggests_death(error)
            && let Some((_, epoch)) = self.address()
        {
            self.shared.suspects.suspect(self.leader, epoch, self.now());
        }
        debug!(leader = %self.leader, %error, "lost the connection to a leader");
        let partitions = self.shared.partitions.clone();
        let now = partitions.clock.now();
        self.dial_at = now.mono + REDIAL;
        let mut deliveries = Deliveries::new();
        for (at, requested) in self.following.all_asking() {
            let answer = LeaderAnswer::Error(ErrorCode::NetworkException);
            let fetched = ReplicaRequest::FetchedFromLeader(FetchedFromLeader { requested, answer });
            match partitions.enter_with(at, fetched, now, &mut deliveries) {
                Some(ReplicaReply::Next(next)) => self.next(at, next, now.mono),
                Some(_) | None => self.following.drop(at),
            }
        }
        partitions.deliver(&mut deliveries);
    }

    /// Gives up the connection and its session: what is under way on it is of no more use, and the next one hears of
    /// everything that is asked for.
    fn start_over(&mut self) {
        self.connection = None;
        self.flights.clear();
        self.session.reset();
        self.questions.clear();
        self.following.ask_again();
    }

    fn address(&self) -> Option<(Endpoint, BrokerEpoch)> {
        address(&self.shared.quorum, self.leader)
    }
}

/// Where a broker is reached by others, and its registration.
fn address(quorum: &QuorumClient, broker: BrokerId) -> Option<(Endpoint, BrokerEpoch)> {
    let image = quorum.image();
    let registration = image.brokers.get(&broker)?;
    Some((registration.inter_broker_endpoint()?.clone(), registration.epoch))
}

const fn asked(point: FetchPoint, bytes_max: u32) -> Asked {
    Asked {
        offset: point.offset.0,
        bytes_max,
        leader_epoch: Some(point.leader_epoch),
        last_fetched_epoch: point.last_fetched_epoch,
        log_start: Some(point.log_start),
    }
}

fn answer(fetched: FetchedPartition) -> LeaderAnswer {
    if fetched.error.is_error() {
        return LeaderAnswer::Error(fetched.error);
    }
    if let Some(diverging) = fetched.diverging {
        let (epoch, end) = (Some(diverging.epoch), Some(diverging.end));
        return LeaderAnswer::Diverging { epoch, end, log_start: fetched.log_start_offset };
    }
    LeaderAnswer::Records {
        records: fetched.records,
        high_watermark: fetched.high_watermark.unwrap_or(Offset::ZERO),
        log_start: fetched.log_start_offset.unwrap_or(Offset::ZERO),
    }
}

async fn read_frame(connection: Option<&mut Connection>) -> io::Result<bytes::Bytes> {
    let Some(connection) = connection else { return std::future::pending().await };
    loop {
        let frame = connection.frames.pop().map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
        if let Some(frame) = frame {
            return Ok(frame);
        }
        if connection.stream.read_buf(connection.frames.read_space()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
