//! The simulated network: connections that keep the order of what is sent on them, and everything that goes wrong.
//!
//! A connection is a TCP connection: it delivers in order or it breaks, and never silently loses a part. What may
//! happen all the same: a cut in one direction holds everything sent (and delivers it late, once the cut heals);
//! a break loses what is on its way, except for requests that the other side had already received and handles late.
//! That is how an old request overtakes new ones: on another connection.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::rng::Rng;

/// Who can be at an end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    Broker(i32),
    Client(u32),
    /// The leader of the metadata quorum, wherever it runs.
    Controller,
}

impl Place {
    /// A number for the trace hash.
    pub fn code(self) -> u64 {
        match self {
            Self::Broker(id) => id as u64,
            Self::Client(id) => 1_000 + u64::from(id),
            Self::Controller => 999,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broker(id) => write!(f, "b{id}"),
            Self::Client(id) => write!(f, "c{id}"),
            Self::Controller => f.write_str("ctl"),
        }
    }
}

/// One connection, dialled by `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub from: Place,
    pub to: Place,
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the dialling side: requests.
    There,
    /// Answers.
    Back,
}

/// A message on its way.
#[derive(Debug, Clone)]
pub struct Packet<M> {
    pub link: Link,
    pub way: Way,
    /// Of the connection when it was sent: answers of a broken connection reach nobody.
    pub generation: u64,
    /// Survives a break: it was already in the receiver's hands.
    pub straggler: bool,
    pub message: M,
}

impl<M> Packet<M> {
    pub fn sender(&self) -> Place {
        if self.way == Way::There { self.link.from } else { self.link.to }
    }

    pub fn receiver(&self) -> Place {
        if self.way == Way::There { self.link.to } else { self.link.from }
    }
}

/// What becomes of a message.
#[derive(Debug)]
pub enum Fate<M> {
    /// Delivered at this time; a second copy too, if given.
    Deliver { at: u64, packet: Packet<M>, again: Option<(u64, Packet<M>)> },
    /// The connection broke over it; the dialling side learns at this time.
    Broke { notice_at: u64, link: Link, generation: u64 },
    /// It waits in a cut.
    Held,
}

/// How bad the network is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weather {
    /// µs one way, the usual.
    pub delay: u64,
    /// In 1,000: how often a message takes `delay_long` instead.
    pub slow: u64,
    pub delay_long: u64,
    /// In 1,000 messages: the connection breaks over it.
    pub breaks: u64,
    /// In 1,000 messages of an idempotent kind: delivered twice.
    pub doubles: u64,
    /// In 1,000 requests: already received when the connection breaks, and handled late.
    pub stragglers: u64,
    /// A broker that is slow to reach for other brokers, and slow to reach them; the controller and clients are not.
    pub lame: Option<i32>,
    /// µs one way, on top.
    pub lame_delay: u64,
}

impl Weather {
    pub fn calm() -> Self {
        Self { delay: 400, slow: 0, delay_long: 400, breaks: 0, doubles: 0, stragglers: 0, lame: None, lame_delay: 0 }
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Connection {
    generation: u64,
    /// When the newest message of each way is delivered: the next comes no earlier.
    there: u64,
    back: u64,
}

/// All connections.
#[derive(Debug)]
pub struct Network<M> {
    rng: Rng,
    pub weather: Weather,
    connections: BTreeMap<Link, Connection>,
    /// Directions that swallow everything: (from, to).
    cuts: BTreeSet<(Place, Place)>,
    held: BTreeMap<(Place, Place), Vec<Packet<M>>>,
    /// Messages delivered twice, connections broken: for the count of faults.
    pub faults: u64,
}

impl<M: Clone> Network<M> {
    pub fn new(rng: Rng, weather: Weather) -> Self {
        Self { rng, weather, connections: BTreeMap::new(), cuts: BTreeSet::new(), held: BTreeMap::new(), faults: 0 }
    }

    /// Nothing varies any more.
    pub fn hold_still(&mut self) {
        self.rng.hold_still();
    }

    pub fn generation(&self, link: Link) -> u64 {
        self.connections.get(&link).map_or(0, |c| c.generation)
    }

    fn travel_time(&mut self, link: Link) -> u64 {
        self.usual_time() + self.lame_time(link)
    }

    fn lame_time(&mut self, link: Link) -> u64 {
        let among_brokers = matches!((link.from, link.to), (Place::Broker(_), Place::Broker(_)));
        let lame = self.weather.lame.map(Place::Broker);
        if !among_brokers || (lame != Some(link.from) && lame != Some(link.to)) {
            return 0;
        }
        self.rng.within(self.weather.lame_delay / 2, self.weather.lame_delay * 3 / 2)
    }

    fn usual_time(&mut self) -> u64 {
        if self.weather.slow > 0 && self.rng.chance(self.weather.slow) {
            let long = self.weather.delay_long.max(1);
            self.rng.within(long / 4, long)
        } else {
            self.rng.within(self.weather.delay / 2, self.weather.delay * 3 / 2)
        }
    }

    /// Sends on a connection. `repeatable`: the receiver must stand two copies.
    pub fn send(&mut self, now: u64, link: Link, way: Way, generation: u64, message: M, repeatable: bool) -> Fate<M> {
        // It exists from the first message on, even if that one is held: it dies with either end.
        self.connections.entry(link).or_default();
        let straggler = way == Way::There && self.weather.stragglers > 0 && self.rng.chance(self.weather.stragglers);
        let packet = Packet { link, way, generation, straggler, message };
        let direction = (packet.sender(), packet.receiver());
        if self.weather.breaks > 0 && self.rng.chance(self.weather.breaks) {
            self.faults += 1;
            let notice_at = now + self.travel_time(link);
            let generation = self.generation(link);
            return Fate::Broke { notice_at, link, generation };
        }
        if self.cuts.contains(&direction) {
            self.held.entry(direction).or_default().push(packet);
            return Fate::Held;
        }
        let at = self.arrival(now, &packet);
        let again = (repeatable && self.weather.doubles > 0 && self.rng.chance(self.weather.doubles)).then(|| {
            self.faults += 1;
            let mut copy = packet.clone();
            copy.straggler = true;
            copy.generation = generation.saturating_sub(1);
            (at + self.rng.within(1, 40 * self.weather.delay.max(1)), copy)
        });
        Fate::Deliver { at, packet, again }
    }

    fn arrival(&mut self, now: u64, packet: &Packet<M>) -> u64 {
        let travel = self.travel_time(packet.link);
        let connection = self.connections.entry(packet.link).or_default();
        let last = if packet.way == Way::There { &mut connection.there } else { &mut connection.back };
        *last = (now + travel).max(*last + 1);
        *last
    }

    /// Whether a packet that arrives now is heard.
    pub fn is_heard(&self, packet: &Packet<M>) -> bool {
        packet.generation == self.generation(packet.link) || (packet.straggler && packet.way == Way::There)
    }

    /// Closes a connection; what is on its way is lost, but for stragglers.
    pub fn reset(&mut self, link: Link) -> u64 {
        let connection = self.connections.entry(link).or_default();
        connection.generation += 1;
        connection.there = 0;
        connection.back = 0;
        connection.generation
    }

    /// All connections of a place that died.
    pub fn links_of(&self, place: Place) -> Vec<Link> {
        self.connections.keys().filter(|l| l.from == place || l.to == place).copied().collect()
    }

    pub fn cut(&mut self, from: Place, to: Place) -> bool {
        self.cuts.insert((from, to))
    }

    pub fn is_cut(&self, from: Place, to: Place) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Ends a cut: what was held is delivered now, in order.
    pub fn mend(&mut self, now: u64, from: Place, to: Place) -> Vec<(u64, Packet<M>)> {
        self.cuts.remove(&(from, to));
        let held = self.held.remove(&(from, to)).unwrap_or_default();
        held.into_iter()
            .filter(|packet| packet.generation == self.generation(packet.link) || packet.straggler)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|packet| (self.arrival(now, &packet), packet))
            .collect()
    }

    /// Ends all cuts.
    pub fn mend_all(&mut self, now: u64) -> Vec<(u64, Packet<M>)> {
        let cuts: Vec<_> = self.cuts.iter().copied().collect();
        cuts.into_iter().flat_map(|(from, to)| self.mend(now, from, to)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { from: Place::Broker(1), to: Place::Broker(2) };

    fn network(weather: Weather) -> Network<u32> {
        Network::new(Rng::new(1), weather)
    }

    #[test]
    fn one_connection_keeps_its_order() {
        let mut net = network(Weather { slow: 500, delay_long: 1_000_000, ..Weather::calm() });
        let mut last = 0;
        for n in 0..100 {
            let Fate::Deliver { at, .. } = net.send(n * 10, LINK, Way::There, 0, 0, false) else { panic!() };
            assert!(at > last);
            last = at;
        }
    }

    #[test]
    fn a_cut_holds_one_way_and_delivers_when_mended() {
        let mut net = network(Weather::calm());
        net.cut(Place::Broker(1), Place::Broker(2));
        assert!(matches!(net.send(0, LINK, Way::There, 0, 7, false), Fate::Held));
        assert!(matches!(net.send(0, LINK, Way::Back, 0, 8, false), Fate::Deliver { .. }));
        let mended = net.mend(5_000_000, Place::Broker(1), Place::Broker(2));
        assert_eq!(mended.len(), 1);
        assert!(mended[0].0 >= 5_000_000);
    }

    #[test]
    fn a_connection_that_only_ever_said_what_is_held_dies_with_its_ends_all_the_same() {
        let mut net = network(Weather::calm());
        net.cut(Place::Broker(1), Place::Broker(2));
        assert!(matches!(net.send(0, LINK, Way::There, 0, 7, false), Fate::Held));
        assert_eq!(net.links_of(Place::Broker(1)), [LINK]);
        net.reset(LINK);
        assert!(net.mend(5_000_000, Place::Broker(1), Place::Broker(2)).is_empty());
    }

    #[test]
    fn a_reset_silences_the_old_connection_but_for_stragglers() {
        let mut net = network(Weather { stragglers: 1_000, ..Weather::calm() });
        let Fate::Deliver { packet, .. } = net.send(0, LINK, Way::There, 0, 7, false) else { panic!() };
        let Fate::Deliver { packet: answer, .. } = net.send(0, LINK, Way::Back, 0, 7, false) else { panic!() };
        net.reset(LINK);
        assert!(net.is_heard(&packet));
        assert!(!net.is_heard(&answer));
    }
}
