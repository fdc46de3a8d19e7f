//! The troubles of a run: each begins at a drawn time and ends at another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::QuorumMember;
use highwater_quorum::sim::{Eye, Latency, SimDisk};
use turmoil::Sim;

use crate::checks::Checks;
use crate::host::broker_id;
use crate::marks::Mark;
use crate::net::host_name;
use crate::rng::Rng;
use crate::swarm::Trouble;
use crate::world::{Down, Shared, World};

/// What ends a trouble.
#[derive(Debug, Clone)]
enum End {
    Boot(u32),
    /// These ordered pairs hear each other again.
    Join(Vec<(u32, u32)>),
    FastLink(u32, u32),
    FastDisk(u32),
}

/// See the file's head.
pub struct Faults {
    rng: Rng,
    /// When each kind comes next.
    next: Vec<(Duration, Trouble, u64)>,
    ends: BTreeMap<(Duration, u64), End>,
    number: u64,
    usual_ms: Duration,
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Faults {
    pub fn new(seed: u64, world: &Shared) -> Self {
        let mut rng = Rng::new(seed).fork(4);
        // The cluster is formed in peace in most seeds.
        let quiet = if rng.chance(800) { 3_000 } else { 0 };
        let next = world.swarm.troubles.iter().map(|(kind, mean)| (millis(quiet + rng.around(*mean)), *kind, *mean));
        let next = next.collect();
        let usual_ms = millis(world.swarm.latency_ms.1);
        Self { rng, next, ends: BTreeMap::new(), number: 0, usual_ms }
    }

    fn ends_in(&mut self, now: Duration, ms: u64, end: End) {
        self.number += 1;
        self.ends.insert((now + millis(ms), self.number), end);
    }

    /// Ends and begins what is due.
    pub fn step(&mut self, sim: &mut Sim<'_>, world: &World, checks: &Checks, now: Duration) {
        self.notice_ended(sim, world, checks, now);
        while let Some(entry) = self.ends.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let end = entry.remove();
            Self::end(sim, world, end, self.usual_ms);
        }
        for at in 0..self.next.len() {
            let (due, kind, mean) = self.next[at];
            if due <= now {
                self.next[at].0 = now + millis(self.rng.around(mean).max(50));
                self.begin(sim, world, checks, now, kind);
            }
        }
    }

    /// No more troubles: what is under way ends now.
    pub fn heal(&mut self, sim: &mut Sim<'_>, world: &World) {
        self.next.clear();
        for (_, end) in std::mem::take(&mut self.ends) {
            Self::end(sim, world, end, self.usual_ms);
        }
    }

    /// A process that ended by itself left its machine running: it comes back, as after a crash.
    pub fn notice_ended(&mut self, sim: &mut Sim<'_>, world: &World, checks: &Checks, now: Duration) {
        let running: Vec<u32> = {
            let world = world.lock();
            world.machines.iter().filter(|(_, machine)| machine.process.is_some()).map(|(id, _)| *id).collect()
        };
        for id in running {
            if !sim.is_host_running(host_name(id)) {
                kill(sim, world, checks, id, Down::Process);
                let after = self.rng.log_within(50, 3_000);
                self.ends_in(now, after, End::Boot(id));
            }
        }
    }

    fn crash(&mut self, sim: &mut Sim<'_>, world: &World, checks: &Checks, now: Duration, id: u32) {
        let down = if self.rng.chance(500) { Down::Process } else { Down::Power };
        kill(sim, world, checks, id, down);
        let after = self.rng.log_within(20, 6_000);
        self.ends_in(now, after, End::Boot(id));
    }

    fn cut(&mut self, sim: &Sim<'_>, world: &World, now: Duration, pairs: Vec<(u32, u32)>) {
        let mut world = world.lock();
        for (from, to) in &pairs {
            let times = world.cut.entry((*from, *to)).or_default();
            *times += 1;
            if *times == 1 {
                sim.partition_oneway(host_name(*from), host_name(*to));
            }
        }
        let after = self.rng.log_within(150, 8_000);
        self.ends_in(now, after, End::Join(pairs));
    }

    fn begin(&mut self, sim: &mut Sim<'_>, world: &World, checks: &Checks, now: Duration, kind: Trouble) {
        let (nodes, up, leader) = {
            let world = world.lock();
            let nodes: Vec<u32> = world.machines.keys().copied().collect();
            let up: Vec<u32> = nodes.iter().copied().filter(|id| world.machines[id].process.is_some()).collect();
            let leads = |id: &u32| world.machines[id].process.as_ref().is_some_and(|process| process.look().leads);
            let leader = up.iter().copied().find(leads);
            (nodes, up, leader)
        };
        let one = self.rng.pick(&nodes).copied().unwrap();
        let other = nodes.iter().copied().filter(|id| *id != one).collect::<Vec<u32>>();
        let other = self.rng.pick(&other).copied().unwrap();
        let around = |id: u32| {
            let others = nodes.iter().copied().filter(move |other| *other != id);
            others.flat_map(|other| [(id, other), (other, id)]).collect::<Vec<(u32, u32)>>()
        };
        {
            let mut world = world.lock();
            *world.counts.troubles.entry(format!("{kind:?}")).or_default() += 1;
            world.note(30, &[kind as u64, u64::from(one)], || format!("{kind:?}: n{one}, n{other}, leader {leader:?}"));
        }
        match kind {
            Trouble::Crash if up.contains(&one) => self.crash(sim, world, checks, now, one),
            Trouble::CrashLeader => {
                if let Some(leader) = leader {
                    self.crash(sim, world, checks, now, leader);
                }
            }
            Trouble::CrashAll => up.iter().for_each(|id| self.crash(sim, world, checks, now, *id)),
            Trouble::Stop if up.contains(&one) => world.lock().machines[&one].stop.notify_waiters(),
            Trouble::Isolate => self.cut(sim, world, now, around(one)),
            Trouble::IsolateLeader => {
                if let Some(leader) = leader {
                    self.cut(sim, world, now, around(leader));
                }
            }
            Trouble::Split => {
                let side: Vec<u32> = nodes.iter().copied().filter(|_| self.rng.chance(500)).collect();
                let across =
                    |id: u32| nodes.iter().copied().filter(|other| !side.contains(other)).map(move |o| (id, o));
                let pairs: Vec<(u32, u32)> = side.iter().flat_map(|id| across(*id)).collect();
                let back: Vec<(u32, u32)> = pairs.iter().map(|(from, to)| (*to, *from)).collect();
                self.cut(sim, world, now, [pairs, back].concat());
            }
            Trouble::OneWay => self.cut(sim, world, now, vec![(one, other)]),
            Trouble::SlowLink => {
                let most = self.rng.log_within(50, 3_000);
                sim.set_link_max_message_latency(host_name(one), host_name(other), millis(most));
                let after = self.rng.log_within(300, 6_000);
                self.ends_in(now, after, End::FastLink(one, other));
            }
            Trouble::SlowDisk => {
                let most = self.rng.log_within(50, 2_000);
                let latency = Latency { usual_ms: most / 4..most, slow_ms: most / 2..most * 2 };
                world.lock().machines[&one].disk.set_latency(latency);
                let after = self.rng.log_within(300, 6_000);
                self.ends_in(now, after, End::FastDisk(one));
            }
            Trouble::DiskError if up.contains(&one) => world.lock().machines[&one].disk.fail_next_sync(),
            Trouble::Wipe => self.wipe(sim, world, checks, now, one),
            Trouble::Crash | Trouble::Stop | Trouble::DiskError => {}
        }
    }

    /// A machine loses its disk; at most one at a time, and only while all others are whole: more would be allowed to lose
    /// what was acknowledged.
    fn wipe(&mut self, sim: &mut Sim<'_>, world: &World, checks: &Checks, now: Duration, id: u32) {
        let whole = {
            let world = world.lock();
            world.machines.iter().all(|(other, machine)| {
                let Some(process) = &machine.process else { return *other == id };
                let look = process.look();
                let [voters] = look.voters.as_slice() else { return false };
                // Every voter is the disk that is in its machine, and has almost everything.
                let known = voters.iter().all(|voter| {
                    let at = world.machines.iter().find(|(node, _)| broker_id(**node) == voter.node);
                    at.and_then(|(_, machine)| machine.process.as_ref())
                        .is_some_and(|it| it.directory_id() == voter.directory)
                });
                known && look.committed.map(|at| at.index) == look.last_log && look.leader.is_some()
            })
        };
        if !whole {
            return;
        }
        kill(sim, world, checks, id, Down::Power);
        {
            let mut world = world.lock();
            let (seed, latency) = (self.rng.next_u64(), world.swarm.disk.clone());
            let machine = world.machines.get_mut(&id).unwrap();
            let old = std::mem::replace(&mut machine.disk, SimDisk::new(seed, latency));
            world.graves.push(old);
            world.note(31, &[u64::from(id)], || format!("n{id} lost its disk"));
        }
        let after = self.rng.log_within(20, 2_000);
        self.ends_in(now, after, End::Boot(id));
    }

    fn end(sim: &mut Sim<'_>, world: &World, end: End, usual_ms: Duration) {
        world.lock().note(32, &[], || format!("over: {end:?}"));
        match end {
            End::Boot(id) => {
                if !sim.is_host_running(host_name(id)) {
                    sim.bounce(host_name(id));
                }
            }
            End::Join(pairs) => {
                let mut world = world.lock();
                for (from, to) in pairs {
                    let times = world.cut.get_mut(&(from, to)).unwrap();
                    *times -= 1;
                    if *times == 0 {
                        sim.repair_oneway(host_name(from), host_name(to));
                    }
                }
            }
            End::FastLink(one, other) => sim.set_link_max_message_latency(host_name(one), host_name(other), usual_ms),
            End::FastDisk(id) => {
                let world = world.lock();
                world.machines[&id].disk.set_latency(world.swarm.disk.clone());
            }
        }
    }
}

/// Ends a process, and takes from its machine what was not synced: sled holds it in the process.
fn kill(sim: &mut Sim<'_>, world: &World, checks: &Checks, id: u32, down: Down) {
    let process = {
        let mut world = world.lock();
        let machine = world.machines.get_mut(&id).unwrap();
        machine.stop = Arc::default();
        machine.down = Some(down);
        machine.process.take()
    };
    let member =
        process.as_ref().map(|process| QuorumMember { node: broker_id(id), directory: process.directory_id() });
    let last = process.as_ref().and_then(|process| process.look().last_log);
    drop(process);
    sim.crash(host_name(id));
    let mut world = world.lock();
    let disk = world.machines[&id].disk.clone();
    let (live, durable) = (Eye { disk: &disk, durable: false }, Eye { disk: &disk, durable: true });
    let end = |eye: Eye<'_>| last.and_then(|last| eye.entry(last)).map(|(entry, _)| entry);
    let (vote_unsynced, written) = (live.vote() != durable.vote(), end(live));
    let entries_unsynced = written != end(durable);
    let lost = disk.lose_power();
    let entries_lost = written != end(durable);
    let marks = [
        (vote_unsynced, Mark::VoteUnsynced),
        (entries_unsynced, Mark::EntriesUnsynced),
        (entries_lost, Mark::EntriesLost),
    ];
    marks.into_iter().filter(|(came, _)| *came).for_each(|(_, mark)| world.hit(mark));
    world.counts.lost_writes += lost;
    world.note(33, &[u64::from(id), lost], || format!("n{id} lost its {down:?} and {lost} writes"));
    if let Some(member) = member {
        checks.after_power_loss(&mut world, id, member);
    }
}
