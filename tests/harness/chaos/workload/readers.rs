//! Readers on our own wire client: each follows a slot, jumps to the middle now and then, and looks at where the log ends.

use std::sync::Arc;
use std::time::Duration;

use highwater_wire::ErrorCode;
use highwater_wire::batch::BatchIter;

use super::super::board::{ANSWER, Board, Known, Place, connect};
use super::super::history::{End, Event};
use super::{pause, value_of};
use crate::client::{Client, LATEST, fetch_partition, fetch_request, fetch_topic, watermark};
use crate::sim::rng::Rng;

/// Between two polls of a reader.
const PACE: Duration = Duration::from_millis(100);
/// How long a fetch may wait for records.
const WAIT_MS: i32 = 200;

/// What a fetch brought.
pub enum Fetched {
    Records { records: Vec<(i64, u64)>, high_watermark: i64 },
    Refused(ErrorCode),
    Nothing,
}

/// Reads once from `offset`. Bytes that are no batches of ours are told as a record with value 0.
pub async fn fetch(client: &mut Client, place: &Place, offset: i64, epoch: i32, limit: Duration) -> Fetched {
    let mut asked = fetch_partition(place.partition, offset);
    asked.current_leader_epoch = epoch;
    let mut request = fetch_request(vec![fetch_topic(&place.topic, vec![asked])]);
    request.max_wait_ms = WAIT_MS;
    let Ok(Ok(answer)) = tokio::time::timeout(limit, client.ask(12, request)).await else { return Fetched::Nothing };
    let Some(told) = answer.topics.into_iter().flat_map(|topic| topic.partitions).next() else {
        return Fetched::Nothing;
    };
    if told.error.code() != 0 {
        return Fetched::Refused(told.error);
    }
    let high_watermark = watermark(&told);
    let mut records = Vec::new();
    for batch in BatchIter::new(told.records) {
        let read = batch.ok().filter(|batch| batch.check_crc().is_ok()).and_then(|batch| {
            let read = batch.records().ok()?;
            read.map(|record| record.ok().map(|r| (r.offset.0, value_of(r.value.as_deref()))))
                .collect::<Option<Vec<_>>>()
        });
        match read {
            Some(read) => records.extend(read.into_iter().filter(|(at, _)| *at >= offset)),
            None => records.push((offset, 0)),
        }
    }
    Fetched::Records { records, high_watermark }
}

/// Follows a slot, or the partition with acks=1 of number `slot - SLOTS`.
pub async fn reader(board: Arc<Board>, name: String, place_of: impl Fn(&Board) -> Place, mut rng: Rng) {
    let mut link: Option<(u8, Client)> = None;
    let mut place = place_of(&board);
    let mut next = assign(&board, &name, &place, 0);
    while !board.is_stopped() {
        pause(&mut rng, PACE).await;
        let wanted = place_of(&board);
        if wanted != place {
            place = wanted;
            next = assign(&board, &name, &place, 0);
        }
        let Some((leader, address)) = board.leader(&place) else { continue };
        let Some(Known { epoch, .. }) = board.known(&place) else { continue };
        if link.as_ref().is_none_or(|(node, _)| *node != leader) {
            link = connect(address).await.map(|client| (leader, client));
        }
        let Some((_, client)) = &mut link else { continue };
        match fetch(client, &place, next, epoch, ANSWER).await {
            Fetched::Nothing => link = None,
            Fetched::Refused(ErrorCode::OffsetOutOfRange) => {
                let (by, at) = (name.clone(), place.name());
                board.history.write(Event::OutOfRange { by, at, offset: next });
                next = assign(&board, &name, &place, 0);
            }
            Fetched::Refused(_) => {}
            Fetched::Records { records, high_watermark } => {
                // A new leader may begin with a lower one (R125): judged within one leadership.
                let by = format!("{name}@{epoch}");
                let (at, end) = (place.name(), End::HighWatermark);
                board.history.write(Event::End { by, at, end, offset: high_watermark });
                if let Some((last, _)) = records.last() {
                    next = last + 1;
                    board.history.write(Event::Poll { by: name.clone(), at: place.name(), records });
                }
            }
        }
        if rng.chance(100) && !latest(&board, &name, &place, &mut link).await {
            link = None;
        }
        if rng.chance(10) && next > 0 {
            next = assign(&board, &name, &place, rng.below(next as u64) as i64);
        }
    }
}

/// Asks where the log ends; false: the connection is of no use any more.
async fn latest(board: &Board, name: &str, place: &Place, link: &mut Option<(u8, Client)>) -> bool {
    let Some((_, client)) = link else { return true };
    let asked = client.list_offset(&place.topic, place.partition, LATEST);
    let Ok(Ok(told)) = tokio::time::timeout(ANSWER, asked).await else { return false };
    if told.error_code == 0 {
        let (by, at, end) = (name.to_owned(), place.name(), End::Latest);
        board.history.write(Event::End { by, at, end, offset: told.offset });
    }
    true
}

fn assign(board: &Board, by: &str, place: &Place, offset: i64) -> i64 {
    board.history.write(Event::Assign { by: by.to_owned(), at: place.name(), offset });
    offset
}
