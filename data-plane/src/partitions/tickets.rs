//! Ticket → waiting request: who gets the answer that a replica gives later.
//!
//! A request takes one slot for all its partitions; a [`Ticket`] names the slot and the partition's place in the
//! request. The answer leaves when the last partition has its result (R45), on the task that brought it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Reply;
use crate::replica::message::Ticket;

/// Something whose answers are queued and must be written out.
pub trait Flush: Send + Sync {
    fn flush(&self);
}

/// A waiting request.
pub trait Answer: Send {
    /// All results are there, in the request's order. Queues the answer; the caller flushes what is returned.
    fn answer(self: Box<Self>, replies: Vec<Option<Reply>>) -> Option<Arc<dyn Flush>>;
}

const BITS: u32 = 20;
const MASK: u64 = (1 << BITS) - 1;
/// Partitions that one request may name, and requests that may wait at once.
pub const PLACES_MAX: usize = 1 << BITS;

#[derive(Default)]
pub struct Tickets {
    slab: Mutex<Slab>,
}

#[derive(Default)]
struct Slab {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

struct Slot {
    /// 24 bits; a ticket of an earlier use of the slot does nothing.
    generation: u64,
    pending: Option<Pending>,
}

struct Pending {
    missing: usize,
    replies: Vec<Option<Reply>>,
    answer: Box<dyn Answer>,
}

/// A slot taken for one request.
#[derive(Debug, Clone, Copy)]
pub struct Reservation {
    slot: usize,
    generation: u64,
}

impl Reservation {
    /// The ticket for the partition at `place` of the request.
    pub fn ticket(self, place: usize) -> Ticket {
        debug_assert!(place < PLACES_MAX, "place {place} does not fit a ticket");
        Ticket(self.generation << (2 * BITS) | (self.slot as u64) << BITS | place as u64)
    }
}

impl Tickets {
    /// Takes a slot for a request with `places` partitions.
    ///
    /// # Errors
    /// Too many wait already, or the request is too long: gives `answer` back.
    pub fn open(&self, places: usize, answer: Box<dyn Answer>) -> Result<Reservation, Box<dyn Answer>> {
        if places > PLACES_MAX {
            return Err(answer);
        }
        let mut slab = self.slab.lock();
        let slot = match slab.free.pop() {
            Some(slot) => slot,
            None if slab.slots.len() < PLACES_MAX => {
                slab.slots.push(Slot { generation: 0, pending: None });
                slab.slots.len() - 1
            }
            None => return Err(answer),
        };
        let mut replies = Vec::with_capacity(places);
        replies.resize_with(places, || None);
        let entry = &mut slab.slots[slot];
        entry.generation = (entry.generation + 1) & ((1 << 24) - 1);
        entry.pending = Some(Pending { missing: places, replies, answer });
        Ok(Reservation { slot, generation: entry.generation })
    }

    /// One result is there. What is returned must be flushed.
    pub fn complete(&self, ticket: Ticket, reply: Reply) -> Option<Arc<dyn Flush>> {
        let slot = ((ticket.0 >> BITS) & MASK) as usize;
        let place = (ticket.0 & MASK) as usize;
        self.fill(slot, ticket.0 >> (2 * BITS), [(place, reply)])
    }

    /// The results that were there at once. What is returned must be flushed.
    pub fn complete_now(
        &self,
        reservation: Reservation,
        replies: impl IntoIterator<Item = (usize, Reply)>,
    ) -> Option<Arc<dyn Flush>> {
        self.fill(reservation.slot, reservation.generation, replies)
    }

    fn fill(
        &self,
        slot: usize,
        generation: u64,
        replies: impl IntoIterator<Item = (usize, Reply)>,
    ) -> Option<Arc<dyn Flush>> {
        let mut slab = self.slab.lock();
        let entry = slab.slots.get_mut(slot).filter(|entry| entry.generation == generation)?;
        let pending = entry.pending.as_mut()?;
        for (place, reply) in replies {
            if let Some(empty @ None) = pending.replies.get_mut(place) {
                *empty = Some(reply);
                pending.missing -= 1;
            }
        }
        if pending.missing > 0 {
            return None;
        }
        let pending = entry.pending.take()?;
        slab.free.push(slot);
        drop(slab);
        pending.answer.answer(pending.replies)
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        let slab = self.slab.lock();
        slab.slots.len() - slab.free.len()
    }

    /// None waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Tell(mpsc::Sender<usize>);
    impl Answer for Tell {
        fn answer(self: Box<Self>, replies: Vec<Option<Reply>>) -> Option<Arc<dyn Flush>> {
            assert!(replies.iter().all(Option::is_some));
            self.0.send(replies.len()).unwrap();
            None
        }
    }

    #[test]
    fn a_request_is_answered_once_when_its_last_partition_is() {
        let tickets = Tickets::default();
        let (tell, told) = mpsc::channel();
        let reservation = tickets.open(3, Box::new(Tell(tell.clone()))).ok().unwrap();
        tickets.complete(reservation.ticket(1), Reply::Done);
        tickets.complete(reservation.ticket(1), Reply::Done);
        tickets.complete_now(reservation, [(0, Reply::Done)]);
        assert!(told.try_recv().is_err());
        tickets.complete(reservation.ticket(2), Reply::Done);
        assert_eq!(told.try_recv(), Ok(3));
        let next = tickets.open(1, Box::new(Tell(tell))).ok().unwrap();
        tickets.complete(reservation.ticket(0), Reply::Done);
        assert!(told.try_recv().is_err(), "a ticket of the slot's earlier use does nothing");
        tickets.complete(next.ticket(0), Reply::Done);
        assert_eq!(told.try_recv(), Ok(1));
        assert!(tickets.is_empty());
    }
}
