//! The small files beside the logs, in Kafka's formats, replaced atomically: temporary file, fsync, rename, fsync of the
//! directory (R13).
//!
//! A file that cannot be read is as good as none, and never stops a start. A file of a newer format does (D28): it means
//! what we do not know.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IoSlice};
use std::path::Path;

use highwater_wire::{LeaderEpoch, Offset, TopicId};

use super::LogName;
use crate::disk::{Disk, DiskFile};
use crate::log_view::{EpochHistory, EpochStart};

/// Files with this ending are on their way to another name; what is found at a start is removed.
pub const TEMPORARY: &str = ".tmp";

/// The version of all checkpoint files and of `partition.metadata`.
pub const VERSION: i64 = 0;

/// A file of a format that only a newer build knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewerFormat(pub i64);

/// Replaces a file so that after a crash it holds the old content or the new, whole.
pub fn write_atomically<D: Disk>(disk: &D, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    let temporary = Path::new(&temporary);
    let file = disk.create(temporary)?;
    file.write_at(&[IoSlice::new(content)], 0)?;
    file.sync_data()?;
    disk.rename(temporary, path)?;
    disk.sync_dir(path.parent().unwrap_or(Path::new("/")))
}

/// The content of a file as text; `None` where there is no file, or no text in it.
pub fn read_text<D: Disk>(disk: &D, path: &Path) -> io::Result<Option<String>> {
    match disk.read(path) {
        Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`, `replication-offset-checkpoint`: version, count, and
/// a line "topic partition offset" per log.
pub fn format_offsets(offsets: &BTreeMap<LogName, Offset>) -> String {
    let mut text = format!("{VERSION}\n{}\n", offsets.len());
    for (name, offset) in offsets {
        let _ = writeln!(text, "{} {} {offset}", name.topic, name.partition);
    }
    text
}

/// Empty for what cannot be parsed.
pub fn parse_offsets(text: &str) -> Result<BTreeMap<LogName, Offset>, NewerFormat> {
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let name = LogName::new(words.next()?, words.next()?.parse().ok().filter(|&partition: &i32| partition >= 0)?);
        let offset = Offset::from_wire(words.next()?.parse().ok()?)?;
        words.next().is_none().then_some((name, offset))
    };
    Ok(counted_lines(text)?.and_then(|lines| lines.into_iter().map(parse).collect()).unwrap_or_default())
}

/// `leader-epoch-checkpoint`: version, count, and a line "epoch start" per entry.
pub fn format_epochs(epochs: &EpochHistory) -> String {
    let mut text = format!("{VERSION}\n{}\n", epochs.entries().len());
    for entry in epochs.entries() {
        let _ = writeln!(text, "{} {}", entry.epoch, entry.start);
    }
    text
}

/// `None` for what cannot be parsed: the history is then read from the log.
pub fn parse_epochs(text: &str) -> Result<Option<EpochHistory>, NewerFormat> {
    let parse = |line: &str| {
        let (epoch, start) = line.split_once(' ')?;
        let epoch = LeaderEpoch::from_wire(epoch.parse().ok()?)?;
        Some(EpochStart { epoch, start: Offset::from_wire(start.parse().ok()?)? })
    };
    let entries: Option<Vec<EpochStart>> =
        counted_lines(text)?.and_then(|lines| lines.into_iter().map(parse).collect());
    let increasing = |entries: &Vec<EpochStart>| {
        entries.windows(2).all(|pair| pair[0].epoch < pair[1].epoch && pair[0].start < pair[1].start)
    };
    Ok(entries.filter(increasing).map(EpochHistory::from_entries))
}

/// The lines behind version and count; `None` when there are not as many as counted.
fn counted_lines(text: &str) -> Result<Option<Vec<&str>>, NewerFormat> {
    let mut lines = text.lines();
    let Some(version) = lines.next().and_then(|line| line.trim().parse::<i64>().ok()) else { return Ok(None) };
    if version > VERSION {
        return Err(NewerFormat(version));
    }
    let count: Option<usize> = lines.next().and_then(|line| line.trim().parse().ok());
    let rest: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    Ok((Some(rest.len()) == count && text.ends_with('\n')).then_some(rest))
}

/// `partition.metadata`: which creation of the topic the log belongs to.
pub fn format_partition_metadata(topic: TopicId) -> String {
    format!("version: {VERSION}\ntopic_id: {topic}\n")
}

/// `None` for what cannot be parsed.
pub fn parse_partition_metadata(text: &str) -> Result<Option<TopicId>, NewerFormat> {
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line[key.len()..].strip_prefix(':')?.trim())
    };
    let Some(version) = value("version").and_then(|version| version.parse::<i64>().ok()) else { return Ok(None) };
    if version > VERSION {
        return Err(NewerFormat(version));
    }
    Ok(value("topic_id").filter(|_| text.ends_with('\n')).and_then(|id| id.parse().ok()))
}

/// A file of `key=value` lines and `#` comments, such as `meta.properties`.
pub fn parse_properties(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '!']));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

/// The same file, written; keys in the order given.
pub fn format_properties(properties: &[(&str, String)]) -> String {
    properties.iter().fold(String::new(), |mut text, (key, value)| {
        let _ = writeln!(text, "{key}={value}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::{Crash, SimDisk};

    #[test]
    fn offsets_read_back_in_kafkas_lines() {
        let offsets = BTreeMap::from([(LogName::new("a", 10), Offset(5)), (LogName::new("b-c", 0), Offset(1 << 40))]);
        let text = format_offsets(&offsets);
        assert_eq!(text, "0\n2\na 10 5\nb-c 0 1099511627776\n");
        assert_eq!(parse_offsets(&text), Ok(offsets));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_parsed_is_empty_and_a_newer_one_refused() {
        for damaged in [
            "",
            "x",
            "0\n",
            "0\n1\n",
            "0\n2\na 0 5\n",
            "0\n1\na 0 -5\n",
            "0\n1\na 0\n",
            "0\n1\na 0 5 6\n",
            "0\n1\na 0 5",
        ] {
            assert_eq!(parse_offsets(damaged), Ok(BTreeMap::new()), "{damaged:?}");
        }
        assert_eq!(parse_offsets("1\n0\n"), Err(NewerFormat(1)));
    }

    #[test]
    fn epochs_read_back_and_damaged_ones_are_nothing() {
        let epochs = parse_epochs("0\n2\n1 0\n4 77\n").unwrap().unwrap();
        assert_eq!(epochs.end_of(LeaderEpoch(1), Offset(100)), Some((LeaderEpoch(1), Offset(77))));
        assert_eq!(format_epochs(&epochs), "0\n2\n1 0\n4 77\n");
        assert_eq!(parse_epochs("0\n2\n4 0\n1 77\n"), Ok(None), "not increasing");
        assert_eq!(parse_epochs("0\n2\n4 0\n"), Ok(None), "cut");
        assert_eq!(parse_epochs("0\n0\n"), Ok(Some(EpochHistory::default())));
    }

    #[test]
    fn partition_metadata_reads_back() {
        let topic = TopicId::random();
        assert_eq!(parse_partition_metadata(&format_partition_metadata(topic)), Ok(Some(topic)));
        assert_eq!(parse_partition_metadata("version: 0\ntopic_id: abc"), Ok(None));
        assert_eq!(parse_partition_metadata(""), Ok(None));
        assert_eq!(parse_partition_metadata("version: 7\n"), Err(NewerFormat(7)));
    }

    #[test]
    fn a_replaced_file_is_the_old_or_the_new_one_wherever_power_is_lost() {
        let path = Path::new("/checkpoint");
        let changes = {
            let disk = SimDisk::new();
            write_atomically(&disk, path, b"old").unwrap();
            let before = disk.changes();
            write_atomically(&disk, path, b"new").unwrap();
            disk.changes() - before
        };
        for step in 0..=changes {
            for crash in [Crash::Killed, Crash::PowerLoss, Crash::PowerLossKeepingSome { seed: step }] {
                let disk = SimDisk::new();
                write_atomically(&disk, path, b"old").unwrap();
                disk.stop_at(disk.changes() + step, 100);
                let done = write_atomically(&disk, path, b"new").is_ok();
                disk.crash(crash);
                let content = disk.read(path).unwrap();
                assert!(content == b"new" || (!done && content == b"old"), "{step} {crash:?}: {content:?}");
            }
        }
    }
}
