//! Inputs that are nearly right: a sample, changed in a few places, often by the numbers that lengths like least.

use rand::Rng as _;
use rand::rngs::SmallRng;

const NASTY_32: [i32; 8] = [i32::MAX, i32::MIN, -1, -2, 0, 1 << 24, 99_999, 1 << 30];
const NASTY_16: [i16; 5] = [i16::MAX, i16::MIN, -1, -2, 0];
/// The largest unsigned varint of 32 bits, and one of more bytes than any has.
const NASTY_VARINTS: [&[u8]; 3] = [&[0xff, 0xff, 0xff, 0xff, 0x0f], &[0xff; 11], &[0x80, 0x80, 0x80, 0x80, 0x08]];

/// Changes, cuts, repeats, inserts, swaps.
pub fn bytes(sample: &[u8], rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for _ in 0..rng.random_range(1..=4) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..9) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, rng.random()),
            4 => {
                let part = bytes[at..(at + rng.random_range(1..40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            5 => put(&mut bytes, at, &NASTY_32[rng.random_range(0..NASTY_32.len())].to_be_bytes()),
            6 => put(&mut bytes, at, &NASTY_16[rng.random_range(0..NASTY_16.len())].to_be_bytes()),
            7 => put(&mut bytes, at, NASTY_VARINTS[rng.random_range(0..NASTY_VARINTS.len())]),
            _ => {
                let other = rng.random_range(0..bytes.len());
                bytes.swap(at, other);
            }
        }
    }
    bytes
}

/// Text: as bytes, or a line repeated, dropped or given a value that is none.
pub fn text(sample: &str, rng: &mut SmallRng) -> String {
    const VALUES: [&str; 14] = [
        "",
        "-1",
        "0",
        "99999999999999999999",
        "1e9",
        "0x10",
        "true",
        " ",
        "\\u00",
        "\\",
        "a,b,,c",
        "PLAINTEXT://[::1]:0,X://:-1",
        "1@h:0,1@h:0",
        "\u{202e}",
    ];
    if rng.random_ratio(1, 3) {
        return String::from_utf8_lossy(&bytes(sample.as_bytes(), rng)).into_owned();
    }
    let mut lines: Vec<String> = sample.lines().map(str::to_owned).collect();
    for _ in 0..rng.random_range(1..=4) {
        if lines.is_empty() {
            break;
        }
        let at = rng.random_range(0..lines.len());
        match rng.random_range(0..4) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[rng.random_range(0..lines.len())].clone()),
            _ => {
                let value = VALUES[rng.random_range(0..VALUES.len())];
                let key = lines[at].split(['=', ' ']).next().unwrap_or_default();
                lines[at] = format!("{key}={value}");
            }
        }
    }
    lines.join("\n")
}

fn put(bytes: &mut [u8], at: usize, nasty: &[u8]) {
    let end = (at + nasty.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&nasty[..end - at]);
}
