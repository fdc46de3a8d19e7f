//! Fetch (1, v4–18): consumers and followers, with and without sessions (R68–R91, D20–D22).
//!
//! v7 sessions (KIP-227), v11 followers may answer consumers, v12 diverging epochs, v13 topic ids, v15 replica state, v16
//! endpoints beside errors 6 and 74. The session is the waiter: each of its partitions is asked once and then says by
//! itself when there is news, so that a round costs what is ready, not what is followed. A fetch without a session uses
//! the connection as its session, for one round.
//!
//! A follower's fetch moves the watermark: it is accepted on the inter-broker listener only (D22); elsewhere 29.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_wire::fetch::{FetchResponse, FetchedPartition, FetchedTopic};
use highwater_wire::request::{FetchRequest, StrBytes};
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, Millis, Offset, TopicId, TopicPartition};
use parking_lot::Mutex;
use tokio::time::Sleep;

use super::context::{Caller, Context};
use super::{Handled, Respond, isolation};
use crate::fetch_session::{Asked, FINAL_EPOCH, FetchSession, INITIAL_EPOCH, PartitionKey, SessionTable, TopicKey};
use crate::handlers::context::Sessions;
use crate::partitions::waiters::Waiter;
use crate::partitions::{Deliveries, Partitions};
use crate::replica::message::{Caller as Fetching, LastArrival, ReplicaRequest};

mod round;

use round::Round;

/// Names the connections, so that a session ends with the connection it was last used on.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// One session, or the fetches of one connection that has none.
pub struct OpenSession {
    /// 0: no session.
    id: i32,
    waiter: Arc<Waiter>,
    /// Only of a follower's session (D20).
    arrival: Option<LastArrival>,
    state: Mutex<State>,
}

struct State {
    session: FetchSession,
    /// Whose keys these are; for the ready list.
    resolved: HashMap<TopicPartition, PartitionKey>,
    /// Partitions that have the waiter registered.
    armed: HashSet<TopicPartition>,
    /// Partitions that do not: asked again in the next round.
    unarmed: BTreeSet<PartitionKey>,
    /// The connection it was last used on.
    connection: u64,
    /// The broker that fetched last, as which registration; `None`: a consumer.
    replica: Option<(BrokerId, BrokerEpoch)>,
    /// The timer of its waits, kept from one to the next: to move it to a later time takes no lock.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl OpenSession {
    fn new(id: i32, partitions: &Partitions, follower: bool, by_id: bool, connection: u64) -> Self {
        Self {
            id,
            waiter: partitions.waiters.open(),
            arrival: (follower && id != 0).then(LastArrival::default),
            state: Mutex::new(State {
                session: if follower { FetchSession::of_follower(by_id) } else { FetchSession::new(by_id) },
                resolved: HashMap::new(),
                armed: HashSet::new(),
                unarmed: BTreeSet::new(),
                connection,
                replica: None,
                alarm: None,
            }),
        }
    }

    /// Wakes it no more.
    fn close(&self, context: &Context) {
        context.partitions.waiters.close(self.waiter.id);
        let armed = std::mem::take(&mut self.state.lock().armed);
        let mut deliveries = Deliveries::new();
        let now = context.partitions.clock.now();
        for at in armed {
            context.partitions.enter_with(at, ReplicaRequest::Unwatch(self.waiter.id), now, &mut deliveries);
        }
        context.partitions.deliver(&mut deliveries);
    }
}

impl Sessions {
    pub fn new(slots: usize) -> Self {
        Self { table: SessionTable::new(slots), open: HashMap::new() }
    }
}

/// The fetches of one connection.
pub struct ConnectionFetches {
    connection: u64,
    /// For fetches without a session; made when needed.
    sessionless: Option<Arc<OpenSession>>,
    /// Sessions used here.
    used: HashMap<i32, Arc<OpenSession>>,
    /// The broker that fetches here.
    follower: Option<(BrokerId, BrokerEpoch)>,
}

impl ConnectionFetches {
    pub fn new(_context: &Context) -> Self {
        let connection = NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed);
        Self { connection, sessionless: None, used: HashMap::new(), follower: None }
    }

    /// The broker at the other end, once it has fetched.
    pub const fn follower(&self) -> Option<(BrokerId, BrokerEpoch)> {
        self.follower
    }

    /// Ends the waits.
    pub fn wake(&self) {
        for session in self.used.values().chain(&self.sessionless) {
            session.waiter.wake();
        }
    }

    /// The connection is gone, and its sessions with it: their client starts over with a full fetch (R91).
    pub fn close(&mut self, context: &Context) {
        if let Some(session) = self.sessionless.take() {
            session.close(context);
        }
        for (id, session) in self.used.drain() {
            if session.state.lock().connection == self.connection {
                end_session(context, id);
            }
        }
    }

    pub fn handle(
        &mut self,
        context: &Arc<Context>,
        caller: &Arc<Caller>,
        respond: Respond,
        request: FetchRequest,
    ) -> Handled {
        let version = respond.version();
        let arrived = context.partitions.clock.mono();
        let (replica, epoch) = if version >= 15 {
            (request.replica_state.replica_id, BrokerEpoch::from_wire(request.replica_state.replica_epoch))
        } else {
            (request.replica_id, None)
        };
        let follower = BrokerId::from_wire(replica);
        let who = match follower {
            Some(id) => Fetching::Follower { id, epoch },
            None => Fetching::Consumer(isolation(request.isolation_level)),
        };
        if follower.is_some() && !caller.inter_broker {
            respond.send(&refuse_all(&request, version, ErrorCode::TopicAuthorizationFailed).into());
            return Handled::Done;
        }
        let replica = follower.zip(epoch);
        if let Some((follower, _)) = replica.filter(|_| self.follower != replica) {
            self.follower = replica;
            context.suspects.lives(follower);
        }
        let (session, asked) = match self.session(context, version, follower.is_some(), replica, &request, arrived) {
            Ok(resolved) => resolved,
            Err(code) => {
                respond.send(&FetchResponse { error: code, ..FetchResponse::default() }.into());
                return Handled::Done;
            }
        };
        let bytes_max = u32::try_from(request.max_bytes).unwrap_or(0).min(context.live.fetch_bytes_max());
        let mut round = Round {
            context: context.clone(),
            caller: caller.clone(),
            respond,
            session,
            who,
            version,
            bytes_min: u32::try_from(request.min_bytes).unwrap_or(0).min(bytes_max),
            bytes_max,
            arrived,
            first_ask: true,
            outcomes: BTreeMap::new(),
        };
        round.ask(asked);
        if let Some(arrival) = &round.session.arrival {
            arrival.store(arrived);
        }
        let wait = super::millis(request.max_wait_ms);
        if wait.is_zero() || round.is_complete() {
            round.answer();
            return Handled::Done;
        }
        round.first_ask = false;
        let _ = round.session.waiter.take_stop();
        Handled::Later(Box::pin(round.wait(wait)))
    }

    /// The session of a request, and the partitions to ask now.
    fn session(
        &mut self,
        context: &Arc<Context>,
        version: i16,
        follower: bool,
        replica: Option<(BrokerId, BrokerEpoch)>,
        request: &FetchRequest,
        now: Millis,
    ) -> Result<(Arc<OpenSession>, BTreeSet<PartitionKey>), ErrorCode> {
        let by_id = version >= 13;
        let (id, epoch) = if version >= 7 { (request.session_id, request.session_epoch) } else { (0, FINAL_EPOCH) };
        if epoch == INITIAL_EPOCH || epoch == FINAL_EPOCH {
            if id != 0 {
                self.used.remove(&id);
                end_session(context, id);
            }
            let partitions = request.topics.iter().map(|topic| topic.partitions.len()).sum();
            let opened = (epoch == INITIAL_EPOCH)
                .then(|| open_session(context, self.connection, follower, by_id, partitions, now));
            let session = match opened.flatten() {
                Some(session) => {
                    self.used.insert(session.id, session.clone());
                    session
                }
                None => self.without_session(context, by_id),
            };
            let mut state = session.state.lock();
            state.replica = replica;
            let asked = take_asked(&mut state.session, request, by_id);
            drop(state);
            return Ok((session, asked));
        }
        let session = match self.used.get(&id) {
            Some(session) => session.clone(),
            None => {
                let session = context.sessions.lock().open.get(&id).cloned();
                let session = session.ok_or(ErrorCode::FetchSessionIdNotFound)?;
                self.used.insert(id, session.clone());
                session
            }
        };
        let mut state = session.state.lock();
        state.session.accept(epoch, by_id)?;
        state.connection = self.connection;
        let mut asked = take_asked(&mut state.session, request, by_id);
        let forgotten = forget(&mut state, request, by_id);
        asked.append(&mut state.unarmed);
        let ready = session.waiter.take_ready();
        asked.extend(ready.iter().filter_map(|at| state.resolved.get(at)).cloned());
        if std::mem::replace(&mut state.replica, replica) != replica {
            // Registered again while it lives: what it holds, it holds as another from now on, and an idle partition hears
            // of that by nothing else (R103, D20).
            asked.extend(state.session.followed().cloned());
        }
        let partitions = state.session.len();
        drop(state);
        // Evicted meanwhile: it lives on for this answer, the next request is told.
        if !context.sessions.lock().touch(id, partitions, now) {
            self.used.remove(&id);
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        for at in forgotten {
            context.partitions.enter(at, ReplicaRequest::Unwatch(session.waiter.id));
        }
        Ok((session, asked))
    }

    fn without_session(&mut self, context: &Context, by_id: bool) -> Arc<OpenSession> {
        let session = self
            .sessionless
            .get_or_insert_with(|| Arc::new(OpenSession::new(0, &context.partitions, false, by_id, self.connection)));
        let mut state = session.state.lock();
        state.session = FetchSession::new(by_id);
        state.unarmed.clear();
        let armed = std::mem::take(&mut state.armed);
        state.resolved.retain(|at, _| armed.contains(at));
        state.armed = armed;
        drop(state);
        let _ = session.waiter.take_ready();
        session.clone()
    }
}

impl Sessions {
    /// `false`: there is no such session.
    fn touch(&mut self, id: i32, partitions: usize, now: Millis) -> bool {
        self.table.used(id, partitions, now);
        self.open.contains_key(&id)
    }
}

fn open_session(
    context: &Context,
    connection: u64,
    follower: bool,
    by_id: bool,
    partitions: usize,
    now: Millis,
) -> Option<Arc<OpenSession>> {
    let id = rand::random_range(1..i32::MAX);
    let mut sessions = context.sessions.lock();
    let evicted = sessions.table.open(id, follower, partitions, now).ok()?;
    let evicted = evicted.and_then(|evicted| sessions.open.remove(&evicted));
    let session = Arc::new(OpenSession::new(id, &context.partitions, follower, by_id, connection));
    sessions.open.insert(id, session.clone());
    drop(sessions);
    if let Some(evicted) = evicted {
        evicted.close(context);
    }
    Some(session)
}

fn end_session(context: &Context, id: i32) {
    let mut sessions = context.sessions.lock();
    sessions.table.close(id);
    let ended = sessions.open.remove(&id);
    drop(sessions);
    if let Some(ended) = ended {
        ended.close(context);
    }
}

fn key(by_id: bool, id: TopicId, name: &StrBytes, partition: i32) -> PartitionKey {
    let topic = if by_id { TopicKey::Id(id) } else { TopicKey::Name(name.as_str().into()) };
    PartitionKey { topic, partition }
}

/// Enters what the request asks into the session; gives the keys.
fn take_asked(session: &mut FetchSession, request: &FetchRequest, by_id: bool) -> BTreeSet<PartitionKey> {
    let mut keys = BTreeSet::new();
    for topic in &request.topics {
        for asked in &topic.partitions {
            let key = key(by_id, topic.topic_id.into(), &topic.topic, asked.partition);
            session.ask(
                key.clone(),
                Asked {
                    offset: asked.fetch_offset,
                    bytes_max: u32::try_from(asked.partition_max_bytes).unwrap_or(0),
                    leader_epoch: LeaderEpoch::from_wire(asked.current_leader_epoch),
                    last_fetched_epoch: LeaderEpoch::from_wire(asked.last_fetched_epoch),
                    log_start: Offset::from_wire(asked.log_start_offset),
                },
            );
            keys.insert(key);
        }
    }
    keys
}

/// Removes what the request forgets; gives the partitions that still have the waiter registered.
fn forget(state: &mut State, request: &FetchRequest, by_id: bool) -> Vec<TopicPartition> {
    let mut forgotten = BTreeSet::new();
    for topic in &request.forgotten_topics_data {
        for partition in &topic.partitions {
            let key = key(by_id, topic.topic_id.into(), &topic.topic, *partition);
            state.session.forget(&key);
            state.unarmed.remove(&key);
            forgotten.insert(key);
        }
    }
    if forgotten.is_empty() {
        return Vec::new();
    }
    let gone: Vec<_> = state.resolved.iter().filter(|(_, key)| forgotten.contains(key)).map(|(at, _)| *at).collect();
    for at in &gone {
        state.resolved.remove(at);
        state.armed.remove(at);
    }
    gone
}

fn refuse_all(request: &FetchRequest, version: i16, code: ErrorCode) -> FetchResponse {
    let topics = request.topics.iter().map(|topic| FetchedTopic {
        name: if version >= 13 { StrBytes::default() } else { topic.topic.clone() },
        id: topic.topic_id.into(),
        partitions: topic.partitions.iter().map(|asked| FetchedPartition::new(asked.partition, code)).collect(),
    });
    FetchResponse { topics: topics.collect(), ..FetchResponse::default() }
}
