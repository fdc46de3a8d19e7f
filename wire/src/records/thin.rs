//! What is left of a batch when records are taken out of it, as compaction does (R276–R278).
//!
//! A batch keeps the offsets that it covers, whatever is left in it: a log that was cleaned has no gaps, so that one still
//! means damage. Kafka leaves gaps, and reads this as it reads its own: empty batches and batches whose last records are
//! gone lie in its compacted logs too.

use bytes::{BufMut as _, BytesMut};

use super::{Record, put_nullable, put_varlong};
use crate::batch::{
    self, ATTRIBUTES_AT, BatchError, Codec, DELETE_HORIZON_BIT, EPOCH_AT, HEADER_BYTES, LENGTH_AT, LOG_OVERHEAD_BYTES,
    MAX_TIMESTAMP_AT, RecordBatch,
};
use crate::compression;
use crate::epoch::LeaderEpoch;
use crate::offset::Offset;
use crate::time::Timestamp;

const LAST_OFFSET_DELTA_AT: usize = 23;
const BASE_TIMESTAMP_AT: usize = 27;
const PRODUCER_ID_AT: usize = 43;
const RECORD_COUNT_AT: usize = 57;
const CODEC_BITS: i16 = 0b111;

/// A batch after [`RecordBatch::thinned`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thinned {
    /// As it was.
    Whole,
    /// With fewer records, or with a delete horizon that it had not.
    Rest(RecordBatch),
    /// No record is left.
    Nothing,
}

impl RecordBatch {
    /// Leaves the records that `keep` wants. `horizon`: the time after which its tombstones may go (KIP-534), noted in a batch
    /// that has none yet; [`RecordBatch::delete_horizon`] reads it back.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn thinned(
        &self,
        horizon: Option<Timestamp>,
        mut keep: impl FnMut(&Record) -> bool,
    ) -> Result<Thinned, BatchError> {
        let horizon = horizon.filter(|_| !self.has_delete_horizon());
        // Times are written as differences from this: with a horizon, from that one.
        let base_timestamp = horizon.unwrap_or(self.base_timestamp()).0;
        let (mut kept, mut all, mut max_timestamp) = (0, 0, -1);
        let (mut out, mut body) = (BytesMut::new(), BytesMut::new());
        let mut records = self.records()?;
        records.log_append_time = None;
        for record in records {
            let record = record?;
            all += 1;
            if !keep(&record) {
                continue;
            }
            kept += 1;
            max_timestamp = record.timestamp.0.max(max_timestamp);
            body.clear();
            body.put_i8(0);
            put_varlong(&mut body, record.timestamp.0.wrapping_sub(base_timestamp));
            put_varlong(&mut body, record.offset.since(self.base_offset()));
            put_nullable(&mut body, record.key.as_deref());
            put_nullable(&mut body, record.value.as_deref());
            put_varlong(&mut body, record.headers.len() as i64);
            for (name, value) in &record.headers {
                put_nullable(&mut body, Some(name));
                put_nullable(&mut body, value.as_deref());
            }
            put_varlong(&mut out, body.len() as i64);
            out.extend_from_slice(&body);
        }
        if kept == all && horizon.is_none() {
            return Ok(Thinned::Whole);
        }
        if kept == 0 {
            return Ok(Thinned::Nothing);
        }
        let payload = match self.codec()? {
            Codec::None => out.to_vec(),
            codec => compression::compress(codec, &out),
        };
        let attributes = self.header().attributes | horizon.map_or(0, |_| DELETE_HORIZON_BIT);
        let max_timestamp = if self.is_log_append_time() { self.max_timestamp().0 } else { max_timestamp };
        Ok(Thinned::Rest(self.rebuilt(attributes, base_timestamp, max_timestamp, kept, &payload)))
    }

    /// When the tombstones of this batch may go; `None` until compaction has met them for the first time.
    pub const fn delete_horizon(&self) -> Option<Timestamp> {
        if self.has_delete_horizon() { Some(self.base_timestamp()) } else { None }
    }

    /// Without records: its offsets, its producer and its sequence stay (R278), and the time that its producer last wrote.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let attributes = self.header().attributes & !(CODEC_BITS | DELETE_HORIZON_BIT);
        self.rebuilt(attributes, -1, self.max_timestamp().0, 0, &[])
    }

    /// A batch without records or producer that covers the offsets `base..=last`: at most 2³¹ of them.
    pub fn empty(base: Offset, last: Offset, epoch: LeaderEpoch) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..LENGTH_AT].copy_from_slice(&base.0.to_be_bytes());
        bytes[LENGTH_AT..EPOCH_AT].copy_from_slice(&((HEADER_BYTES - LOG_OVERHEAD_BYTES) as i32).to_be_bytes());
        bytes[EPOCH_AT..EPOCH_AT + 4].copy_from_slice(&epoch.0.to_be_bytes());
        bytes[EPOCH_AT + 4] = batch::MAGIC as u8;
        bytes[LAST_OFFSET_DELTA_AT..BASE_TIMESTAMP_AT].copy_from_slice(&(last.since(base) as i32).to_be_bytes());
        // No time, no producer id, epoch or sequence.
        bytes[BASE_TIMESTAMP_AT..RECORD_COUNT_AT].fill(0xff);
        batch::write_crc(&mut bytes);
        Self::parse(bytes.into()).expect("a header of magic 2")
    }

    /// Whether it can cover the offsets behind it too. Not one of a producer: its last offset tells its last sequence.
    pub fn may_stretch(&self) -> bool {
        self.producer_id().is_none() && !self.is_control()
    }

    /// A copy that covers the offsets up to `last`, at most 2³¹ in all; the records behind its own were taken out.
    #[must_use]
    pub fn stretched_to(&self, last: Offset) -> Self {
        let mut bytes = self.bytes().to_vec();
        let delta = last.since(self.base_offset()) as i32;
        bytes[LAST_OFFSET_DELTA_AT..BASE_TIMESTAMP_AT].copy_from_slice(&delta.to_be_bytes());
        batch::write_crc(&mut bytes);
        Self::parse(bytes.into()).expect("it was a batch before")
    }

    /// The same header but for these fields, with other records behind it.
    fn rebuilt(&self, attributes: i16, base_timestamp: i64, max_timestamp: i64, count: i32, payload: &[u8]) -> Self {
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + payload.len());
        bytes.extend_from_slice(&self.bytes()[..HEADER_BYTES]);
        bytes.extend_from_slice(payload);
        let length = (bytes.len() - LOG_OVERHEAD_BYTES) as i32;
        bytes[LENGTH_AT..EPOCH_AT].copy_from_slice(&length.to_be_bytes());
        bytes[ATTRIBUTES_AT..LAST_OFFSET_DELTA_AT].copy_from_slice(&attributes.to_be_bytes());
        bytes[BASE_TIMESTAMP_AT..MAX_TIMESTAMP_AT].copy_from_slice(&base_timestamp.to_be_bytes());
        bytes[MAX_TIMESTAMP_AT..PRODUCER_ID_AT].copy_from_slice(&max_timestamp.to_be_bytes());
        bytes[RECORD_COUNT_AT..HEADER_BYTES].copy_from_slice(&count.to_be_bytes());
        batch::write_crc(&mut bytes);
        Self::parse(bytes.freeze()).expect("it was a batch before")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::ProducerEpoch;
    use crate::ids::ProducerId;
    use crate::records::RecordBatchBuilder;

    const CODECS: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    fn batch(codec: Codec) -> RecordBatch {
        let mut builder = RecordBatchBuilder::new().codec(codec).stamp(Offset(100), LeaderEpoch(7)).producer(
            ProducerId(5),
            ProducerEpoch(2),
            40,
        );
        for n in 0..6_i64 {
            let mut record = Record::new(Timestamp(1_000 - n), Some(&[n as u8]), (n != 3).then_some(&b"value"[..]));
            record.headers = vec![("h".into(), None), ("i".into(), Some("v".into()))];
            builder.push(&record);
        }
        builder.build()
    }

    fn records(batch: &RecordBatch) -> Vec<Record> {
        batch.validate_from_leader().unwrap();
        batch.records().unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn records_that_stay_are_what_they_were_and_where_they_were() {
        for codec in CODECS {
            let batch = batch(codec);
            let all = records(&batch);
            assert_eq!(batch.thinned(None, |_| true).unwrap(), Thinned::Whole);
            assert_eq!(batch.thinned(None, |_| false).unwrap(), Thinned::Nothing);
            for kept in 1..63_u32 {
                let keep = |record: &Record| kept & (1 << record.offset.since(Offset(100))) != 0;
                let Thinned::Rest(rest) = batch.thinned(None, keep).unwrap() else { panic!("{kept}") };
                let wanted: Vec<Record> = all.iter().filter(|record| keep(record)).cloned().collect();
                assert_eq!(records(&rest), wanted, "{codec:?} {kept}");
                assert_eq!((rest.base_offset(), rest.last_offset()), (Offset(100), Offset(105)));
                assert_eq!((rest.last_sequence(), rest.codec().unwrap()), (45, codec));
                assert_eq!(rest.max_timestamp(), wanted.iter().map(|record| record.timestamp).max().unwrap());
                assert_eq!(rest.leader_epoch(), Some(LeaderEpoch(7)));
            }
        }
    }

    #[test]
    fn a_horizon_is_noted_once_and_moves_no_time() {
        let batch = batch(Codec::Zstd);
        let Thinned::Rest(noted) = batch.thinned(Some(Timestamp(9_000)), |_| true).unwrap() else { panic!() };
        assert_eq!((batch.delete_horizon(), noted.delete_horizon()), (None, Some(Timestamp(9_000))));
        assert_eq!(records(&noted), records(&batch));
        assert_eq!(noted.thinned(Some(Timestamp(10_000)), |_| true).unwrap(), Thinned::Whole);
        let Thinned::Rest(less) = noted.thinned(None, |record| record.value.is_some()).unwrap() else { panic!() };
        assert_eq!((less.delete_horizon(), records(&less).len()), (Some(Timestamp(9_000)), 5));
    }

    #[test]
    fn the_time_of_a_log_append_batch_stays() {
        let batch = batch(Codec::None).with_log_append_time(Timestamp(77_777));
        let Thinned::Rest(rest) = batch.thinned(Some(Timestamp(1)), |record| record.offset.0 > 103).unwrap() else {
            panic!()
        };
        assert_eq!(rest.max_timestamp(), Timestamp(77_777));
        assert!(records(&rest).iter().all(|record| record.timestamp == Timestamp(77_777)));
    }

    #[test]
    fn what_has_no_records_still_covers_its_offsets() {
        let emptied = batch(Codec::Gzip).emptied();
        assert!(records(&emptied).is_empty());
        assert_eq!((emptied.len(), emptied.last_sequence(), emptied.max_timestamp()), (61, 45, Timestamp(1_000)));
        assert_eq!((emptied.base_offset(), emptied.next_offset()), (Offset(100), Offset(106)));
        let filler = RecordBatch::empty(Offset(9), Offset(20_000), LeaderEpoch(3));
        assert!(records(&filler).is_empty());
        assert_eq!((filler.base_offset(), filler.last_offset()), (Offset(9), Offset(20_000)));
        assert_eq!((filler.producer_id(), filler.base_sequence()), (None, -1));
        assert_eq!((filler.leader_epoch(), filler.max_timestamp()), (Some(LeaderEpoch(3)), Timestamp(-1)));
    }

    #[test]
    fn only_a_batch_without_a_producer_covers_more_than_it_did() {
        assert!(!batch(Codec::None).may_stretch());
        let plain = RecordBatchBuilder::new().stamp(Offset(5), LeaderEpoch(1)).value(Timestamp(4), b"v").build();
        assert!(plain.may_stretch());
        let stretched = plain.stretched_to(Offset(900));
        assert_eq!((stretched.last_offset(), stretched.record_count()), (Offset(900), 1));
        assert_eq!(records(&stretched), records(&plain));
    }
}
