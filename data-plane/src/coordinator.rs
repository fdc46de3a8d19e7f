//! The group coordinators of this broker: one for each partition of `__consumer_offsets` that it leads (R284–R289).
//!
//! Requests enter a [`Shard`] under its own short lock, as they enter a replica. What it wants written is appended under
//! that lock, so that the log has the order of the decisions; what it answers goes to the tasks that wait. Everything is
//! of one leader epoch: a shard is filled from the log when this broker begins to lead, appends in that epoch alone, and is
//! let go of when it leads no more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use highwater_quorum::MetadataImage;
use highwater_quorum::image::Topic;
use highwater_wire::records::{Record, RecordBatchBuilder};
use highwater_wire::{BrokerId, ErrorCode, LeaderEpoch, Millis, TopicPartition};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep_until, timeout};

use crate::group::{Answer, GroupRecord, Limits, Out, Shard, Token, Value, Write, WriteId, Written};
use crate::partitions::tickets::{Answer as Told, Flush, Reservation};
use crate::partitions::{Deliveries, Partitions, Reply, Request};
use crate::replica::message::{Acks, Now, Produce};
use crate::view::NodeState;

mod loader;

/// The topic that groups are kept in.
pub const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// After a log of groups could not be read.
const READ_AGAIN: Duration = Duration::from_millis(200);
/// `offsets.retention.check.interval.ms`
const EXPIRY_CHECK: Millis = Millis(600_000);

/// All of this broker.
pub struct Coordinators {
    partitions: Arc<Partitions>,
    state: Arc<NodeState>,
    broker: BrokerId,
    limits: Limits,
    seats: RwLock<HashMap<i32, Arc<Seat>>>,
    /// A seat is to be looked at earlier than was known.
    rung: Notify,
}

/// One partition in one leader epoch.
struct Seat {
    at: TopicPartition,
    epoch: LeaderEpoch,
    inner: Mutex<Inner>,
    /// When its shard's next look is due; `u64::MAX`: never.
    due: AtomicU64,
}

enum Inner {
    /// Its log is being read.
    Loading,
    Active(Box<Active>),
    /// Another leads, or another epoch has begun.
    Gone,
}

struct Active {
    shard: Shard,
    waiting: HashMap<Token, oneshot::Sender<Answer>>,
    next_token: u64,
    expiry_due: Millis,
}

/// A write on its way to the log.
struct Storing {
    coordinators: Arc<Coordinators>,
    seat: Arc<Seat>,
    write: WriteId,
}

/// An answer that is on its way.
pub struct Promise(oneshot::Receiver<Answer>);

impl Promise {
    /// The answer, whenever it comes. `None`: this broker coordinates the group no longer.
    pub async fn answer(self) -> Option<Answer> {
        self.0.await.ok()
    }

    /// The answer, if it comes within `limit`.
    ///
    /// # Errors
    /// 7 when it does not, 16 when this broker coordinates the group no longer.
    pub async fn within(self, limit: Duration) -> Result<Answer, ErrorCode> {
        match timeout(limit, self.0).await {
            Err(_) => Err(ErrorCode::RequestTimedOut),
            Ok(Err(_)) => Err(ErrorCode::NotCoordinator),
            Ok(Ok(answer)) => Ok(answer),
        }
    }
}

/// The partition that a group is kept in: Java's hash of its name (R284).
pub fn partition_of(group: &str, partitions: usize) -> i32 {
    let hash = group.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    let count = i32::try_from(partitions).unwrap_or(i32::MAX).max(1);
    hash.checked_abs().unwrap_or(0) % count
}

impl Coordinators {
    pub(crate) fn new(
        partitions: Arc<Partitions>,
        state: Arc<NodeState>,
        broker: BrokerId,
        limits: Limits,
    ) -> Arc<Self> {
        let (seats, rung) = Default::default();
        Arc::new(Self { partitions, state, broker, limits, seats, rung })
    }

    /// What they are set to.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Asks the shard of a group; `call` gets a token, whose answer the promise brings.
    ///
    /// # Errors
    /// 16: another broker coordinates it. 14: this one does soon.
    pub fn ask<T>(
        self: &Arc<Self>,
        image: &MetadataImage,
        group: &str,
        call: impl FnOnce(&mut Shard, Token, Now, &mut Out) -> T,
    ) -> Result<(T, Promise), ErrorCode> {
        let seat = self.seat_of(image, group)?;
        let (tell, promise) = oneshot::channel();
        let done = self.act(&seat, |active, now, out| {
            let token = Token(active.next_token);
            active.next_token += 1;
            active.waiting.insert(token, tell);
            call(&mut active.shard, token, now, out)
        })?;
        Ok((done, Promise(promise)))
    }

    /// Asks the shard of a group for what it knows at once.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn tell<T>(
        self: &Arc<Self>,
        image: &MetadataImage,
        group: &str,
        call: impl FnOnce(&mut Shard, Now, &mut Out) -> T,
    ) -> Result<T, ErrorCode> {
        let seat = self.seat_of(image, group)?;
        self.act(&seat, |active, now, out| call(&mut active.shard, now, out))
    }

    /// Asks every shard of this broker.
    ///
    /// # Errors
    /// 14 while one is being filled.
    pub fn tell_all<T>(self: &Arc<Self>, mut call: impl FnMut(&Shard) -> T) -> Result<Vec<T>, ErrorCode> {
        let mut seats: Vec<_> = self.seats.read().values().cloned().collect();
        seats.sort_by_key(|seat| seat.at);
        let mut told = Vec::with_capacity(seats.len());
        for seat in seats {
            match self.act(&seat, |active, _, _| call(&active.shard)) {
                Ok(answer) => told.push(answer),
                Err(ErrorCode::NotCoordinator) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(told)
    }

    fn seat_of(&self, image: &MetadataImage, group: &str) -> Result<Arc<Seat>, ErrorCode> {
        let topic = image.topic_named(OFFSETS_TOPIC).ok_or(ErrorCode::NotCoordinator)?;
        let partition = partition_of(group, topic.partitions.len());
        if let Some(seat) = self.seats.read().get(&partition).filter(|seat| seat.at.topic == topic.id) {
            return Ok(Arc::clone(seat));
        }
        let leads = image
            .partition(TopicPartition::new(topic.id, partition))
            .is_some_and(|state| state.leader == Some(self.broker));
        // It was told a moment ago and has not been seen yet.
        Err(if leads { ErrorCode::CoordinatorLoadInProgress } else { ErrorCode::NotCoordinator })
    }

    /// One call under the lock of a seat; what follows from it is delivered behind the lock.
    fn act<T>(
        self: &Arc<Self>,
        seat: &Arc<Seat>,
        call: impl FnOnce(&mut Active, Now, &mut Out) -> T,
    ) -> Result<T, ErrorCode> {
        let now = self.partitions.clock.now();
        let mut deliveries = Deliveries::new();
        let mut inner = seat.inner.lock();
        let active = match &mut *inner {
            Inner::Active(active) => active,
            Inner::Loading => return Err(ErrorCode::CoordinatorLoadInProgress),
            Inner::Gone => return Err(ErrorCode::NotCoordinator),
        };
        let mut out = Out::default();
        let done = call(active, now, &mut out);
        let answered = answers(&mut active.waiting, &mut out);
        let at_once: Vec<_> =
            out.writes.drain(..).map(|write| self.append(seat, write, now, &mut deliveries)).collect();
        let due = active.shard.next_deadline().map_or(u64::MAX, |at| at.0).min(active.expiry_due.0);
        let sooner = seat.due.swap(due, Ordering::AcqRel) > due;
        drop(inner);
        for (tell, answer) in answered {
            // Whoever asked may have gone.
            let _ = tell.send(answer);
        }
        if sooner {
            self.rung.notify_one();
        }
        self.partitions.deliver(&mut deliveries);
        for (reservation, reply) in at_once.into_iter().flatten() {
            let _ = self.partitions.tickets.complete_now(reservation, [(0, reply)]);
        }
        Ok(done)
    }

    /// Appends a write. What the replica said at once is to be handed to the tickets behind the lock.
    fn append(
        self: &Arc<Self>,
        seat: &Arc<Seat>,
        write: Write,
        now: Now,
        deliveries: &mut Deliveries,
    ) -> Option<(Reservation, Reply)> {
        let storing = Storing { coordinators: Arc::clone(self), seat: Arc::clone(seat), write: write.id };
        let Ok(reservation) = self.partitions.tickets.open(1, Box::new(storing)) else {
            // Too many wait already. Told later, as everything is.
            let (coordinators, seat) = (Arc::clone(self), Arc::clone(seat));
            self.partitions.runtime().spawn(async move {
                coordinators.stored(&seat, write.id, Written::Refused(ErrorCode::CoordinatorNotAvailable));
            });
            return None;
        };
        let mut batch = RecordBatchBuilder::new();
        for record in &write.records {
            batch.push(&to_record(record, now));
        }
        // It is waited for as long as this broker leads: only then is it known what became of it (R288).
        let deadline = Millis::MAX;
        let (ticket, epoch) = (reservation.ticket(0), Some(seat.epoch));
        let produce = Produce { batch: batch.build(), acks: Acks::AllInSync, deadline, ticket, epoch };
        match self.partitions.enter_with(seat.at, Request::Produce(produce), now, deliveries) {
            Some(Reply::Waiting) => None,
            Some(reply) => Some((reservation, reply)),
            None => Some((reservation, Reply::Done)),
        }
    }

    fn stored(self: &Arc<Self>, seat: &Arc<Seat>, write: WriteId, result: Written) {
        // A seat that is gone has told everybody already.
        let _ = self.act(seat, |active, now, out| active.shard.written(write, result, now, out));
    }

    /// Follows the metadata: takes a seat where this broker begins to lead, leaves it where it leads no more. For ever.
    pub async fn run(self: Arc<Self>, mut images: watch::Receiver<Arc<MetadataImage>>) {
        loop {
            let image = images.borrow_and_update().clone();
            self.follow(image.topic_named(OFFSETS_TOPIC));
            if images.changed().await.is_err() {
                return;
            }
        }
    }

    fn follow(self: &Arc<Self>, topic: Option<&Arc<Topic>>) {
        let mut led: HashMap<i32, (TopicPartition, LeaderEpoch)> = HashMap::new();
        for (number, state) in topic.iter().flat_map(|topic| topic.partitions.iter().enumerate()) {
            let number = i32::try_from(number).unwrap_or(i32::MAX);
            if let Some(topic) = topic
                && state.leader == Some(self.broker)
            {
                led.insert(number, (TopicPartition::new(topic.id, number), state.leader_epoch));
            }
        }
        let same = |number: &i32, seat: &Seat| led.get(number) == Some(&(seat.at, seat.epoch));
        let mut left = Vec::new();
        let mut taken = Vec::new();
        let mut seats = self.seats.write();
        seats.retain(|number, seat| {
            let keep = same(number, seat);
            if !keep {
                left.push(Arc::clone(seat));
            }
            keep
        });
        for (number, (at, epoch)) in led {
            seats.entry(number).or_insert_with(|| {
                let (inner, due) = (Mutex::new(Inner::Loading), AtomicU64::new(u64::MAX));
                let seat = Arc::new(Seat { at, epoch, inner, due });
                taken.push(Arc::clone(&seat));
                seat
            });
        }
        drop(seats);
        for seat in left {
            self.leave(&seat);
        }
        for seat in taken {
            self.partitions.runtime().spawn(Arc::clone(self).fill(seat));
        }
    }

    /// Everybody who waits here is sent to look for the next coordinator.
    fn leave(&self, seat: &Seat) {
        let now = self.partitions.clock.now();
        let before = std::mem::replace(&mut *seat.inner.lock(), Inner::Gone);
        if let Inner::Active(active) = before {
            tracing::info!(partition = seat.at.partition, epoch = seat.epoch.0, "coordinates these groups no longer");
            let Active { shard, mut waiting, .. } = *active;
            let mut out = Out::default();
            shard.unload(now, &mut out);
            for (tell, answer) in answers(&mut waiting, &mut out) {
                let _ = tell.send(answer);
            }
        }
    }

    /// Reads the log of a seat; then it is open.
    async fn fill(self: Arc<Self>, seat: Arc<Seat>) {
        let loaded = loop {
            if let Some(loaded) = loader::load(&self.partitions, &self.state, seat.at, seat.epoch).await {
                break loaded;
            }
            // Refused, or not readable. Where another epoch has begun, the metadata soon says so.
            tokio::time::sleep(READ_AGAIN).await;
            if matches!(*seat.inner.lock(), Inner::Gone) {
                return;
            }
        };
        let now = self.partitions.clock.now();
        let shard = Shard::new(self.limits.clone(), loaded, now);
        let groups = shard.groups().count();
        {
            let mut inner = seat.inner.lock();
            if !matches!(*inner, Inner::Loading) {
                return;
            }
            let (waiting, expiry_due) = (HashMap::new(), now.mono + EXPIRY_CHECK);
            *inner = Inner::Active(Box::new(Active { shard, waiting, next_token: 0, expiry_due }));
        }
        tracing::info!(
            partition = seat.at.partition,
            epoch = seat.epoch.0,
            groups,
            "coordinates the groups of this partition"
        );
        let _ = self.act(&seat, |_, _, _| {});
    }

    /// Rings the alarms of all shards, for ever.
    pub async fn run_ticker(self: Arc<Self>) {
        loop {
            let next =
                self.seats.read().values().map(|seat| seat.due.load(Ordering::Acquire)).min().unwrap_or(u64::MAX);
            let at = self.partitions.clock.instant(Millis(next));
            tokio::select! {
                () = sleep_until(at.into()) => {}
                () = self.rung.notified() => continue,
            }
            let now = self.partitions.clock.mono().0;
            let seats: Vec<_> = self.seats.read().values().cloned().collect();
            for seat in seats.into_iter().filter(|seat| seat.due.load(Ordering::Acquire) <= now) {
                let _ = self.act(&seat, |active, now, out| {
                    active.shard.tick(now, out);
                    if active.expiry_due <= now.mono {
                        active.expiry_due = now.mono + EXPIRY_CHECK;
                        active.shard.expire(now, out);
                    }
                });
            }
        }
    }
}

/// Takes the answers of a call, each with whoever waits for it.
fn answers(
    waiting: &mut HashMap<Token, oneshot::Sender<Answer>>,
    out: &mut Out,
) -> Vec<(oneshot::Sender<Answer>, Answer)> {
    out.answers.drain(..).filter_map(|(token, answer)| Some((waiting.remove(&token)?, answer))).collect()
}

fn to_record(record: &GroupRecord, now: Now) -> Record {
    let key = record.key.encode();
    let value = record.value.as_ref().map(|value| match value {
        Value::Offset(offset) => offset.encode(),
        Value::Group(group) => group.encode(),
    });
    Record { key, value, ..Record::new(now.wall, None, None) }
}

impl Told for Storing {
    fn answer(self: Box<Self>, replies: Vec<Option<Reply>>) -> Option<Arc<dyn Flush>> {
        let result = match replies.into_iter().next().flatten() {
            Some(Reply::Produced(_)) => Written::Committed,
            Some(Reply::Refused(refusal)) => match refusal.code() {
                ErrorCode::NotEnoughReplicasAfterAppend => Written::Thin,
                code => Written::Refused(code),
            },
            _ => Written::Refused(ErrorCode::NotLeaderOrFollower),
        };
        self.coordinators.stored(&self.seat, self.write, result);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_lie_where_kafka_puts_them() {
        // As Utils.abs(groupId.hashCode) % 50 of Java.
        assert_eq!(partition_of("", 50), 0);
        assert_eq!(partition_of("a", 50), 97 % 50);
        assert_eq!(partition_of("ab", 50), (97 * 31 + 98) % 50);
        // The one text of so few letters whose hash has no positive counterpart.
        assert_eq!(partition_of("polygenelubricants", 50), 0);
    }
}
