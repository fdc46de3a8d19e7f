//! The clients of a run: our own on the wire, librdkafka, programs of other families, one that changes the metadata, and one that
//! means harm.

pub mod admin;
pub mod foreign;
pub mod hostile;
pub mod producers;
pub mod readers;
pub mod stock;

use std::time::Duration;

use crate::sim::rng::Rng;

/// The text of a record: its value, padded so that segments fill.
fn payload(value: u64) -> String {
    format!("{value:<64}")
}

/// The value of a record; 0, which nobody sends, for anything else.
fn value_of(payload: Option<&[u8]>) -> u64 {
    payload.and_then(|bytes| std::str::from_utf8(bytes).ok()).and_then(|text| text.trim_end().parse().ok()).unwrap_or(0)
}

/// A pause around `mean`.
async fn pause(rng: &mut Rng, mean: Duration) {
    let mean = u64::try_from(mean.as_micros()).expect("a short time");
    tokio::time::sleep(Duration::from_micros(rng.around(mean))).await;
}
