//! A snapshot: the state rows in one file of their own, replaced atomically, checked as a whole (D13, D28).
//!
//! Layout: magic, `u32` length and postcard head, rows as `u32` key length, key, `u32` value length, value; a CRC-32C of
//! everything before it closes the file. All numbers big-endian.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::rows::{self, ImageReader, RowSink};
use super::store::{STORE_FORMAT, replace_file};
use super::types::{LogId, Membership, SnapshotMeta};
use crate::image::{ImageVersion, MetadataImage};

const MAGIC: &[u8; 8] = b"HWMETA\0\x01";
const NAME: &str = "snapshot";

/// What stands before the rows. The format comes first.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    format: u32,
    written_by: String,
    last_applied: Option<LogId>,
    membership: Membership,
    cluster_id: Option<String>,
    feature_level: u16,
}

/// State as of one entry.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub applied: Option<LogId>,
    pub membership: Membership,
    pub image: MetadataImage,
}

struct File(Vec<u8>);

impl RowSink for File {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        put_block(&mut self.0, &key);
        put_block(&mut self.0, &value);
    }

    fn remove(&mut self, _: Vec<u8>) {
        unreachable!("an image is written whole");
    }
}

fn put_block(out: &mut Vec<u8>, block: &[u8]) {
    let length = u32::try_from(block.len()).expect("rows are far below 4 GiB");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(block);
}

/// CRC-32C.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(crc & u64::from(u32::MAX)).expect("masked to 32 bits")
}

/// The bytes of a snapshot of `state`.
pub(crate) fn encode(state: &State) -> Bytes {
    let head = Head {
        format: STORE_FORMAT,
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
        last_applied: state.applied,
        membership: state.membership.clone(),
        cluster_id: state.image.cluster_id.as_deref().map(str::to_owned),
        feature_level: state.image.feature_level,
    };
    let mut file = File(MAGIC.to_vec());
    put_block(&mut file.0, &postcard::to_stdvec(&head).expect("plain data"));
    rows::write_image(&mut file, &state.image);
    let crc = crc(&file.0);
    file.0.extend_from_slice(&crc.to_be_bytes());
    file.0.into()
}

/// The state in a snapshot.
///
/// # Errors
/// Damage, or a newer format.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<State> {
    let damaged = |what: &str| io::Error::other(format!("damaged metadata snapshot: {what}"));
    let (content, stored) = bytes.split_last_chunk::<4>().ok_or_else(|| damaged("too short"))?;
    if crc(content) != u32::from_be_bytes(*stored) {
        return Err(damaged("checksum differs"));
    }
    let mut rest = content.strip_prefix(MAGIC.as_slice()).ok_or_else(|| damaged("not a snapshot"))?;
    let head = take_block(&mut rest).ok_or_else(|| damaged("no head"))?;
    let format = postcard::take_from_bytes::<u32>(head).map_err(|_| damaged("no format"))?.0;
    if format > STORE_FORMAT {
        let by = postcard::take_from_bytes::<(u32, String)>(head).map_or_else(|_| "?".to_owned(), |(head, _)| head.1);
        return Err(io::Error::other(format!(
            "metadata snapshot of format {format}, this build reads up to {STORE_FORMAT}: start version {by} or newer"
        )));
    }
    let head: Head = postcard::from_bytes(head).map_err(|error| damaged(&error.to_string()))?;
    let mut reader = ImageReader::default();
    while !rest.is_empty() {
        let key = take_block(&mut rest).ok_or_else(|| damaged("row cut short"))?;
        let value = take_block(&mut rest).ok_or_else(|| damaged("row cut short"))?;
        reader.row(key, value).map_err(|error| damaged(&error.to_string()))?;
    }
    let mut image = reader.finish().map_err(|error| damaged(&error.to_string()))?;
    image.version = ImageVersion(head.last_applied.as_ref().map_or(0, |applied| applied.index));
    image.cluster_id = head.cluster_id.as_deref().map(Into::into);
    image.feature_level = head.feature_level;
    Ok(State { applied: head.last_applied, membership: head.membership, image })
}

fn take_block<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let (block, after) = after.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    *rest = after;
    Some(block)
}

fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// Replaces the snapshot of a metadata directory; durable when it returns.
pub(crate) fn save(directory: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file(&path(directory), bytes)
}

/// The snapshot of a metadata directory, with its meta data.
pub(crate) fn load(directory: &Path) -> io::Result<Option<(SnapshotMeta, Bytes)>> {
    let bytes = match fs::read(path(directory)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some((meta(&bytes)?, bytes.into())))
}

/// What a snapshot is of. Reads all of it.
pub(crate) fn meta(bytes: &[u8]) -> io::Result<SnapshotMeta> {
    let state = decode(bytes)?;
    Ok(SnapshotMeta { last_log_id: state.applied, last_membership: state.membership })
}
