//! How far a group is behind, and what that means. Pure.

use std::collections::BTreeMap;

use super::live::{LiveGroup, LiveMember};

/// A group that works commits more often than this, whatever its settings: a client's default is five seconds.
pub const COMMITS_EVERY_MS: i64 = 60_000;

/// One partition that a group reads or has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionLag<'a> {
    pub topic: &'a str,
    pub partition: i32,
    /// `None`: nothing was committed.
    pub current_offset: Option<i64>,
    pub committed_at_ms: Option<i64>,
    /// The high watermark; `None`: its leader did not tell.
    pub log_end_offset: Option<i64>,
    pub log_start_offset: Option<i64>,
    /// Who has it now.
    pub member: Option<&'a LiveMember>,
}

impl PartitionLag<'_> {
    /// Records between the position and the end; where nothing was committed, all of them.
    pub fn lag(&self) -> Option<i64> {
        let from = self.current_offset.or(self.log_start_offset)?;
        Some((self.log_end_offset? - from).max(0))
    }
}

/// What is to be said of a group in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It has read everything.
    Ok,
    /// It is behind, and works.
    Lagging,
    /// It is behind, has members, and none of them has committed anything for a minute.
    Stalled,
    /// It is behind, and nobody is in it.
    Stopped,
    /// A leader did not tell where its partition ends.
    Unknown,
}

impl Health {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Lagging => "LAGGING",
            Self::Stalled => "STALLED",
            Self::Stopped => "STOPPED",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// Every partition that the group has a position in or a member for, in their order. `ends`: log start and high watermark.
pub fn of<'a>(group: &'a LiveGroup, ends: impl Fn(&str, i32) -> Option<(i64, i64)>) -> Vec<PartitionLag<'a>> {
    let new = |topic: &'a str, partition: i32| {
        let known = ends(topic, partition);
        PartitionLag {
            topic,
            partition,
            current_offset: None,
            committed_at_ms: None,
            log_end_offset: known.map(|(_, end)| end),
            log_start_offset: known.map(|(start, _)| start),
            member: None,
        }
    };
    let mut lags: BTreeMap<(&str, i32), PartitionLag<'_>> = BTreeMap::new();
    for position in &group.positions {
        let (topic, partition) = (position.topic.as_str(), position.partition);
        let lag = lags.entry((topic, partition)).or_insert_with(|| new(topic, partition));
        (lag.current_offset, lag.committed_at_ms) = (Some(position.offset), Some(position.committed_at_ms));
    }
    for member in &group.members {
        for (topic, partitions) in &member.assigned {
            for partition in partitions {
                let lag = lags.entry((topic, *partition)).or_insert_with(|| new(topic, *partition));
                lag.member = Some(member);
            }
        }
    }
    lags.into_values().collect()
}

/// What is to be said of a group with these lags.
pub fn health(group: &LiveGroup, lags: &[PartitionLag<'_>], now_ms: i64) -> Health {
    let mut behind = false;
    for lag in lags {
        match lag.lag() {
            None => return Health::Unknown,
            Some(lag) => behind |= lag > 0,
        }
    }
    let newest = lags.iter().filter_map(|lag| lag.committed_at_ms).max();
    let quiet_since = newest.unwrap_or(i64::MIN).max(group.state_since_ms);
    match (behind, group.members.is_empty()) {
        (false, _) => Health::Ok,
        (true, true) => Health::Stopped,
        (true, false) if now_ms.saturating_sub(quiet_since) > COMMITS_EVERY_MS => Health::Stalled,
        (true, false) => Health::Lagging,
    }
}

#[cfg(test)]
mod tests {
    use super::super::live::LivePosition;
    use super::*;

    fn group(members: usize, offset: i64, committed_at_ms: i64) -> LiveGroup {
        let member = |n: usize| LiveMember {
            id: format!("m{n}"),
            instance: None,
            client_id: "c".to_owned(),
            client_host: "/h".to_owned(),
            assigned: vec![("t".to_owned(), vec![n as i32])],
        };
        LiveGroup {
            id: "g".to_owned(),
            state: "STABLE".to_owned(),
            state_since_ms: 0,
            generation: 1,
            protocol_type: Some("consumer".to_owned()),
            protocol: Some("range".to_owned()),
            leader: None,
            members: (0..members).map(member).collect(),
            positions: vec![LivePosition { topic: "t".to_owned(), partition: 0, offset, committed_at_ms }],
            history: Vec::new(),
        }
    }

    #[test]
    fn a_group_is_behind_by_what_lies_between_its_positions_and_the_ends() {
        let group = group(2, 7, 5);
        let lags = of(&group, |_, partition| (partition < 2).then_some((3, 10)));
        let told: Vec<_> = lags.iter().map(|lag| (lag.partition, lag.current_offset, lag.lag())).collect();
        assert_eq!(
            told,
            [(0, Some(7), Some(3)), (1, None, Some(7))],
            "nothing committed: from the beginning of the log"
        );
        assert_eq!(lags[1].member.map(|member| member.id.as_str()), Some("m1"));
        assert_eq!(of(&group, |_, _| Some((3, 5)))[0].lag(), Some(0), "records were lost: never below zero");
    }

    #[test]
    fn a_word_says_how_it_is() {
        let said =
            |group: &LiveGroup, end: Option<i64>, now| health(group, &of(group, |_, _| Some((0, end?))), now).name();
        assert_eq!(said(&group(1, 10, 0), Some(10), 1 << 40), "OK");
        assert_eq!(said(&group(0, 9, 0), Some(10), 5), "STOPPED");
        assert_eq!(said(&group(1, 9, 1_000), Some(10), 61_000), "LAGGING");
        assert_eq!(said(&group(1, 9, 1_000), Some(10), 61_001), "STALLED");
        assert_eq!(said(&group(1, 9, 1_000), None, 5), "UNKNOWN");
    }
}
