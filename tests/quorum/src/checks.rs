//! What must hold after every moment, whatever the troubles: looked for from outside, in processes and on disks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::image::state_hash;
use highwater_quorum::sim::{Content, EntryId, Eye, Look, SimNode, may_be_repeated};
use highwater_quorum::{Answer, Command, QuorumMember};

use crate::marks::Mark;
use crate::shadow::Shadow;
use crate::world::{Machine, Proposed, Shared, Told, short};

/// What is remembered of one process.
#[derive(Debug, Clone)]
struct Seen {
    look: Look,
    version: u64,
}

/// A node that hears nobody: since when, and its term then.
#[derive(Debug, Clone, Copy)]
struct Alone {
    since: Duration,
    term: Option<u64>,
}

/// How long messages sent before a cut may go on arriving.
const IN_FLIGHT: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
pub struct Checks {
    pub shadow: Shadow,
    /// Who led each term, and since when.
    leaders: BTreeMap<u64, (QuorumMember, Duration)>,
    /// Leaders that lived on beside a newer one: node and term.
    outlived: BTreeSet<(u32, u64)>,
    seen: BTreeMap<u32, (u64, Seen)>,
    alone: BTreeMap<u32, Alone>,
    /// The fewest votes that ever made a majority.
    majority: Option<usize>,
}

type Broken = (&'static str, String);

impl Checks {
    /// Looks at everything once.
    pub fn look(&mut self, world: &mut Shared, now: Duration) {
        if let Err((rule, text)) = self.check(world, now) {
            world.violate(rule, text);
        }
    }

    fn check(&mut self, world: &mut Shared, now: Duration) -> Result<(), Broken> {
        let running: Vec<(u32, u64, Arc<SimNode>)> = world
            .machines
            .iter()
            .filter_map(|(id, machine)| Some((*id, machine.boots, machine.process.clone()?)))
            .collect();
        for (id, boots, process) in running {
            self.process(world, id, boots, &process, now)?;
        }
        self.note_outlived(world);
        self.check_alone(world, now)
    }

    /// Counts the leaders that live on in their term while another one leads a newer one.
    fn note_outlived(&mut self, world: &mut Shared) {
        let leading = |(id, machine): (&u32, &Machine)| {
            let (boots, Seen { look, .. }) = self.seen.get(id)?;
            (machine.process.is_some() && machine.boots == *boots && look.leads).then_some((*id, look.term))
        };
        let leading: Vec<(u32, u64)> = world.machines.iter().filter_map(leading).collect();
        let Some(newest) = leading.iter().map(|(_, term)| *term).max() else { return };
        for old in leading.into_iter().filter(|(_, term)| *term < newest) {
            if self.outlived.insert(old) {
                world.hit(Mark::TwoLeaders);
            }
        }
    }

    fn process(
        &mut self,
        world: &mut Shared,
        id: u32,
        boots: u64,
        process: &SimNode,
        now: Duration,
    ) -> Result<(), Broken> {
        let look = process.look();
        let version = process.client().image().version.0;
        let before = self.seen.get(&id).filter(|(boot, _)| *boot == boots).map(|(_, seen)| seen.clone());
        if before.as_ref().is_some_and(|seen| seen.look == look && seen.version == version) {
            return Ok(());
        }
        let facts = [u64::from(id), look.term, u64::from(look.leads), look.last_log.unwrap_or(0), version];
        world.note(1, &facts, || {
            let role = if look.leads { "leads" } else { "follows" };
            let at = |entry: &Option<EntryId>| entry.map_or(-1, |entry| entry.index as i64);
            let (committed, applied, snapshot, purged) =
                (at(&look.committed), at(&look.applied), at(&look.snapshot), at(&look.purged));
            format!(
                "n{id} {role} in term {} of {:?}: end {:?} committed {committed} applied {applied} snapshot {snapshot} \
                 purged {purged}",
                look.term,
                look.leader.map(|leader| leader.node.0),
                look.last_log
            )
        });
        self.check_leader(world, id, &look, before.as_ref(), now)?;
        check_order(id, &look)?;
        check_end(world, id, &look)?;
        if let Some(Seen { look: old, version: seen }) = &before {
            let goes_back = |what: &str, now: Option<EntryId>, then: Option<EntryId>| match now < then {
                true => Err(("nothing goes back", format!("n{id}: {what} {then:?} is followed by {now:?}"))),
                false => Ok(()),
            };
            goes_back("committed", look.committed, old.committed)?;
            goes_back("applied", look.applied, old.applied)?;
            goes_back("snapshot", look.snapshot, old.snapshot)?;
            goes_back("purged", look.purged, old.purged)?;
            if look.last_log < old.last_log {
                world.hit(Mark::Truncated);
            }
            if look.purged > old.purged {
                world.hit(Mark::Purged);
            }
            let installed = world.installed.get(&(look.id.node, look.id.directory)).copied();
            if look.snapshot > old.snapshot && look.snapshot != installed {
                world.hit(Mark::SnapshotTaken);
            }
            if look.term < old.term || version < *seen {
                let text = format!("n{id}: term {} → {}, version {seen} → {version}", old.term, look.term);
                return Err(("nothing goes back", text));
            }
        }
        // A fresh image stands at entry 0 without having applied it.
        if look.applied.is_some() && before.as_ref().is_none_or(|seen| seen.version != version || version == 0) {
            let seen = before.as_ref().filter(|seen| seen.look.applied.is_some());
            let from = seen.map_or(0, |seen| seen.version + 1);
            self.applied(world, id, from.min(version), version)?;
            let image = process.client().image();
            if image.version.0 == version {
                let (ours, theirs) = (self.shadow.hash(version), state_hash(&image));
                if ours != theirs {
                    let text = format!("n{id} at entry {version} has state {theirs:x}, the history says {ours:x}");
                    return Err(("state machines are prefixes", text));
                }
            }
        }
        let in_force = |look: &Look| (look.applied, look.voters.clone());
        if before.as_ref().is_none_or(|seen| in_force(&seen.look) != in_force(&look)) {
            self.check_membership(world, id, &look)?;
        }
        if before.as_ref().is_none_or(|seen| seen.look.snapshot != look.snapshot) {
            self.check_kept_membership(world, id)?;
        }
        self.seen.insert(id, (boots, Seen { look, version }));
        Ok(())
    }

    fn check_leader(
        &mut self,
        world: &mut Shared,
        id: u32,
        look: &Look,
        before: Option<&Seen>,
        now: Duration,
    ) -> Result<(), Broken> {
        if let Some(majority) = look.voters.iter().filter(|set| !set.is_empty()).map(|set| set.len() / 2 + 1).min() {
            self.majority = Some(self.majority.map_or(majority, |least| least.min(majority)));
        }
        if !look.leads {
            return Ok(());
        }
        let (leader, _) = *self.leaders.entry(look.term).or_insert((look.id, now));
        if leader != look.id {
            let text = format!("term {}: {} and {}", look.term, leader.node, look.id.node);
            return Err(("one leader per term", text));
        }
        if before.is_none_or(|seen| !seen.look.leads || seen.look.term != look.term) {
            world.counts.leader_changes += 1;
            if look.voters.len() > 1 {
                world.hit(Mark::JointInherited);
            }
            world.note(2, &[u64::from(id), look.term], || format!("n{id} leads term {}", look.term));
        }
        Ok(())
    }

    /// Everything from entry `from` to `to` was applied there: it is the one history, or becomes it.
    fn applied(&mut self, world: &Shared, id: u32, from: u64, to: u64) -> Result<(), Broken> {
        let disk = &world.machines[&id].disk;
        let eye = Eye { disk, durable: false };
        for index in from..=to {
            let here = eye.entry(index);
            match (self.shadow.get(index), here) {
                (Some(known), Some((entry, content))) => {
                    // A snapshot covers what an older term left in the log, until it is purged.
                    let covered = known.id.term > entry.term && eye.snapshot().is_some_and(|it| it.index >= index);
                    if !covered && (known.id != entry || known.content != content) {
                        let text =
                            format!("n{id} applied {entry:?} {content:?}, others {:?} {:?}", known.id, known.content);
                        return Err(("prefixes of one history", text));
                    }
                }
                // By a snapshot, or purged since.
                (Some(_), None) => {}
                (None, Some((entry, content))) => {
                    self.shadow.push(entry, content)?;
                    self.check_durable(world, index)?;
                }
                (None, None) => {
                    return Err(("prefixes of one history", format!("n{id} applied entry {index}, which nobody has")));
                }
            }
        }
        Ok(())
    }

    /// The voters in force are those of the newest membership it has applied, or newer ones. Both as raft tells them at one
    /// moment: the state machine publishes its image before raft hears that it is done, and may be far ahead of it after a
    /// snapshot.
    fn check_membership(&self, world: &Shared, id: u32, look: &Look) -> Result<(), Broken> {
        let Some(EntryId { index: applied, .. }) = look.applied else { return Ok(()) };
        let eye = Eye { disk: &world.machines[&id].disk, durable: false };
        let uncommitted = |index: u64| match eye.entry(index) {
            Some((_, Content::Membership(sets))) => sets == look.voters,
            _ => false,
        };
        let known = self.shadow.memberships_from(applied);
        let in_history = known.is_empty() || known.contains(&&look.voters);
        if in_history || (applied + 1..=look.last_log.unwrap_or(0)).any(uncommitted) {
            return Ok(());
        }
        let text = format!("n{id} at entry {applied} goes by the voters {:?}, which were replaced before", look.voters);
        Err(("membership", text))
    }

    /// The membership in its state is that of the history up to there.
    fn check_kept_membership(&self, world: &Shared, id: u32) -> Result<(), Broken> {
        let eye = Eye { disk: &world.machines[&id].disk, durable: false };
        let Some((applied, kept)) = eye.state() else { return Ok(()) };
        match self.shadow.membership_at(applied.index) {
            Some(known) if *known != kept => {
                let text = format!("n{id}: its state of {applied:?} holds the voters {kept:?}, the history {known:?}");
                Err(("membership", text))
            }
            _ => Ok(()),
        }
    }

    /// With pre-vote, a node that hears nobody stays in its term (D5).
    fn check_alone(&mut self, world: &mut Shared, now: Duration) -> Result<(), Broken> {
        let nodes: Vec<u32> = world.machines.keys().copied().collect();
        for id in &nodes {
            let hears = |other: &u32| *other != *id && !world.is_cut(*other, *id) && !world.is_cut(*id, *other);
            let Some(process) = &world.machines[id].process else {
                self.alone.remove(id);
                continue;
            };
            if nodes.iter().any(hears) {
                self.alone.remove(id);
                continue;
            }
            let alone = self.alone.entry(*id).or_insert(Alone { since: now, term: None });
            if now - alone.since < IN_FLIGHT {
                continue;
            }
            let term = process.look().term;
            if alone.term.is_none() {
                world.hit(Mark::Alone);
            }
            let then = *alone.term.get_or_insert(term);
            if then != term {
                return Err(("pre-vote", format!("n{id}, which hears nobody, went from term {then} to {term}")));
            }
        }
        Ok(())
    }

    /// What is applied is on enough disks: whatever a crash takes now, a majority still has it.
    fn check_durable(&self, world: &Shared, index: u64) -> Result<(), Broken> {
        let Some(entry) = self.shadow.get(index) else { return Ok(()) };
        let holds = |disk| {
            let eye = Eye { disk, durable: true };
            eye.entry(index).is_some_and(|(id, _)| id == entry.id)
                || eye.purged().is_some_and(|purged| purged.index >= index)
                || eye.applied().is_some_and(|applied| applied.index >= index)
        };
        let disks = world.machines.values().map(|machine| &machine.disk).chain(&world.graves);
        let holders = disks.filter(|disk| holds(disk)).count();
        let needed = self.majority.unwrap_or(1);
        if holders < needed {
            let text = format!("entry {index} was applied, {holders} disks hold it durably, {needed} are a majority");
            return Err(("committed before durable", text));
        }
        Ok(())
    }

    /// A machine lost its power: what it told others is still on its disk.
    pub fn after_power_loss(&self, world: &mut Shared, id: u32, member: QuorumMember) {
        let disk = world.machines[&id].disk.clone();
        let eye = Eye { disk: &disk, durable: true };
        let told = world.granted.get(&(member.node, member.directory)).and_then(|votes| votes.last_key_value());
        let told = told.map(|(term, to)| (*term, *to));
        let vote = eye.vote();
        if let Some((term, to)) = told
            && vote.is_none_or(|(kept, for_whom)| kept < term || (kept == term && for_whom.node != to))
        {
            let text = format!("n{id} voted for n{to} in term {term}; after the crash its disk says {vote:?}");
            world.violate("votes outlive crashes", text);
        }
        if let Some(installed) = world.installed.get(&(member.node, member.directory)).copied()
            && [eye.applied(), eye.snapshot(), eye.purged()].into_iter().flatten().all(|held| held < installed)
            && eye.entry(installed.index).is_none_or(|(entry, _)| entry != installed)
        {
            let text = format!("n{id} took over the snapshot of {installed:?}; after the crash it is not there");
            world.violate("snapshots outlive crashes", text);
        }
        if let (Some(purged), applied) = (eye.purged(), eye.applied())
            && applied.is_none_or(|applied| applied.index < purged.index)
        {
            world.violate("purged ≤ applied", format!("n{id} on disk: purged {purged:?}, state of {applied:?}"));
        }
        // The log goes on without a hole, and its terms never fall.
        let first = eye.purged().map_or(0, |purged| purged.index + 1);
        let mut last: Option<EntryId> = eye.purged();
        for index in first.. {
            let Some((entry, _)) = eye.entry(index) else {
                if eye.entry(index + 1).is_some() {
                    world.violate("a log without holes", format!("n{id}: entry {index} is missing"));
                }
                break;
            };
            if last.is_some_and(|last| last.term > entry.term) {
                world.violate("terms in a log", format!("n{id}: {last:?} is followed by {entry:?}"));
                break;
            }
            last = Some(entry);
        }
    }

    /// The end: every acknowledged proposal is in the history once, with the answer that was given.
    pub fn check_history(&self, world: &mut Shared) {
        // Where each command had an effect, and how often it was in the log.
        let mut applied: BTreeMap<String, (Vec<u64>, u64)> = BTreeMap::new();
        for index in 0..self.shadow.len() {
            if let Some(entry) = self.shadow.get(index)
                && let Content::Command { command, .. } = &entry.content
            {
                let (effects, times) = applied.entry(format!("{command:?}")).or_default();
                effects.extend(entry.changed.then_some(index));
                *times += 1;
            }
        }
        let mut broken: Vec<Broken> = Vec::new();
        let mut marks = Vec::new();
        marks.extend(applied.values().filter(|(_, times)| *times > 1).map(|_| Mark::AppliedAgain));
        for (number, proposed) in world.proposed.iter().enumerate() {
            let effects = applied.get(&format!("{:?}", proposed.command)).map_or(&[][..], |(effects, _)| effects);
            marks.extend(self.fate(proposed, effects));
            if let Err((rule, text)) = self.check_proposed(proposed, effects) {
                broken.push((rule, format!("#{number} {}: {text}", short(&proposed.command))));
            }
        }
        let mut created = BTreeSet::new();
        for id in &world.created {
            let count = (0..self.shadow.len()).filter(|index| {
                let answer = self.shadow.get(*index).and_then(|entry| entry.decided.as_ref());
                matches!(answer, Some(Ok(Answer::TopicCreated { id: made })) if made == id)
            });
            let count = count.count();
            if count != 1 || !created.insert(*id) {
                broken.push(("acknowledged", format!("topic {id} was created {count} times")));
            }
        }
        let mut blocks = world.blocks.clone();
        blocks.sort_unstable();
        for pair in blocks.windows(2) {
            if pair[0].1 > pair[1].0 {
                broken.push(("producer ids", format!("blocks {:?} and {:?} were both handed out", pair[0], pair[1])));
            }
        }
        marks.into_iter().for_each(|mark| world.hit(mark));
        for (rule, text) in broken {
            world.violate(rule, text);
        }
    }

    /// What became of a proposal, where that is worth counting.
    fn fate(&self, proposed: &Proposed, effects: &[u64]) -> Option<Mark> {
        match &proposed.told {
            Some(Told::Acked(_, index)) => {
                let (_, since) = self.leaders.get(&self.shadow.get(*index)?.id.term)?;
                (*since > proposed.at).then_some(Mark::AckedByNext)
            }
            Some(Told::Unknown) if effects.is_empty() => Some(Mark::UnknownLost),
            Some(Told::Unknown) => Some(Mark::UnknownApplied),
            _ => None,
        }
    }

    fn check_proposed(&self, proposed: &Proposed, effects: &[u64]) -> Result<(), Broken> {
        // What a lost answer repeats may meet what came between (R216).
        let may_repeat = may_be_repeated(&proposed.command);
        if effects.len() > 1 && !may_repeat {
            return Err(("applied twice", format!("it had effect at {effects:?}")));
        }
        match &proposed.told {
            Some(Told::Acked(answer, index)) => {
                let Some(entry) = self.shadow.get(*index) else {
                    return Err(("acknowledged", format!("entry {index} does not exist")));
                };
                let same = match (&entry.content, &proposed.command) {
                    // The raft leader adds what it knows of the predecessor (D9).
                    (Content::Command { command: Command::RegisterBroker(a), .. }, Command::RegisterBroker(b)) => {
                        a.incarnation == b.incarnation
                    }
                    (Content::Command { command, .. }, proposed) => command == proposed,
                    _ => false,
                };
                if !same {
                    return Err(("acknowledged", format!("entry {index} is {}", describe(&entry.content))));
                }
                if entry.decided.as_ref().and_then(|decided| decided.as_ref().ok()) != Some(answer) {
                    let text = format!("entry {index} was decided as {:?}, told {answer:?}", entry.decided);
                    return Err(("acknowledged", text));
                }
                Ok(())
            }
            Some(Told::Refused) if !effects.is_empty() && !may_repeat => {
                Err(("refused but applied", format!("it had effect at {effects:?}")))
            }
            Some(Told::NotProposed) if !effects.is_empty() => {
                Err(("not proposed but applied", format!("it had effect at {effects:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the cluster has come to rest: one leader that all follow, and everybody has applied the same.
    pub fn at_rest(&self, world: &Shared) -> Result<(), String> {
        let mut leader = None;
        let mut looks = Vec::new();
        for (id, machine) in &world.machines {
            let Some(process) = &machine.process else { return Err(format!("n{id} is down")) };
            let look = process.look();
            if look.leads && leader.replace((look.id, look.last_log)).is_some() {
                return Err("two lead".to_owned());
            }
            looks.push((*id, look, process.client().image()));
        }
        let Some((leader, end)) = leader else { return Err("nobody leads".to_owned()) };
        let mut hashes = BTreeSet::new();
        for (id, look, image) in &looks {
            if look.leader != Some(leader) {
                return Err(format!("n{id} follows {:?}", look.leader));
            }
            if Some(image.version.0) != end || look.last_log != end || look.voters.len() != 1 {
                return Err(format!("n{id} has applied {} of {end:?}, voters {:?}", image.version.0, look.voters));
            }
            hashes.insert(state_hash(image));
        }
        if hashes.len() == 1 { Ok(()) } else { Err(format!("{} different states", hashes.len())) }
    }
}

/// purged ≤ snapshot ≤ applied ≤ committed ≤ end.
fn check_order(id: u32, look: &Look) -> Result<(), Broken> {
    let index = |entry: Option<EntryId>| entry.map(|entry| entry.index);
    let order = [index(look.purged), index(look.snapshot), index(look.applied), index(look.committed), look.last_log];
    match order.windows(2).all(|pair| pair[0] <= pair[1]) {
        true => Ok(()),
        false => {
            let text = format!("n{id}: purged, snapshot, applied, committed, end are {order:?}");
            Err(("purged ≤ snapshot ≤ applied ≤ committed ≤ end", text))
        }
    }
}

/// Behind the end of its log nothing lies that an older leader wrote: it would be there again after a restart.
fn check_end(world: &Shared, id: u32, look: &Look) -> Result<(), Broken> {
    let eye = Eye { disk: &world.machines[&id].disk, durable: false };
    let Some(end) = look.last_log else { return Ok(()) };
    match (eye.entry(end), eye.entry(end + 1)) {
        (Some((last, _)), Some((behind, _))) if behind.term < last.term => {
            let text = format!("n{id} ends with {last:?}, and {behind:?} lies behind it");
            Err(("terms in a log", text))
        }
        _ => Ok(()),
    }
}

fn describe(content: &Content) -> String {
    match content {
        Content::Command { command, .. } => short(command),
        other => format!("{other:?}"),
    }
}
