//! What clients were told and shown: one offset, one content, for all readers, for all time (H1–H5).

use highwater_wire::TopicPartition;

use super::super::book::{Batch, Book, PartitionBook};
use super::{Verdict, Violation, must};

/// H3, H4: a batch just became committed.
pub fn committed(at: TopicPartition, book: &mut Book, batch: &Batch) -> Verdict {
    let Some(content) = book.contents.get(&batch.crc) else {
        return must(false, "H2", || format!("{at}: nobody ever wrote the batch at {}", batch.base));
    };
    must(content.serials.len() as i64 == batch.end - batch.base, "H2", || {
        format!("{at}: {} records at {}..{}", content.serials.len(), batch.base, batch.end)
    })?;
    let Some(partition) = book.partitions.get_mut(&at) else { return Ok(()) };
    for (offset, &serial) in (batch.base..).zip(&content.serials) {
        partition.serials.push(serial);
        if content.producer >= 0 {
            let earlier = partition.serial_at.insert(serial, offset);
            must(earlier.is_none(), "H3", || {
                format!(
                    "{at}: record {serial} of idempotent producer {} is at {earlier:?} and {offset}",
                    content.producer
                )
            })?;
        }
        must(!book.refused.contains(&serial), "H4", || {
            format!("{at}: record {serial} was refused for good and is at {offset}")
        })?;
    }
    if content.producer >= 0 {
        let newest = content.serials.last().copied().unwrap_or(0);
        let before = partition.newest_of.insert(content.producer, newest);
        must(before.is_none_or(|b| b < newest), "H3", || {
            format!("{at}: records of producer {} out of order: {before:?} before {newest}", content.producer)
        })?;
    }
    Ok(())
}

/// H1 at the moment of the answer: acknowledged with acks=all at `base`.
pub fn acknowledged(at: TopicPartition, partition: &PartitionBook, base: i64, serials: &[u64]) -> Verdict {
    for (offset, serial) in (base..).zip(serials) {
        let there = usize::try_from(offset).ok().and_then(|offset| partition.serials.get(offset));
        must(there == Some(serial) || partition.lines.held_record(offset, *serial), "H1", || {
            format!(
                "{at}: record {serial} was acknowledged at {offset}, where {there:?} is committed (up to {})",
                partition.committed.end()
            )
        })?;
    }
    Ok(())
}

/// H2: a consumer was shown this batch.
pub fn read(at: TopicPartition, partition: &PartitionBook, base: i64, end: i64, epoch: i32, crc: u32) -> Verdict {
    if partition.lines.held(base, crc) {
        return Ok(());
    }
    let Some(committed) = partition.committed.batch_at(base) else {
        return Err(Violation {
            rule: "H2",
            text: format!("{at}: a reader was shown {base}..{end}, committed up to {}", partition.committed.end()),
        });
    };
    must((committed.base, committed.end, committed.epoch, committed.crc) == (base, end, epoch, crc), "H2", || {
        format!(
            "{at}: a reader was shown {base}..{end} of epoch {epoch}, checksum {crc:08x}; committed is {committed:?}"
        )
    })
}

/// H5: what "latest" answers one client only grows.
pub fn latest(at: TopicPartition, before: i64, now: i64) -> Verdict {
    must(now >= before, "H5", || format!("{at}: the end offset went from {before} back to {now} for one client"))
}
