//! The name of a plan: when it was made and what it depends on. Nobody keeps plans: whichever node is shown the name
//! makes the plan anew and compares.

use std::hash::Hasher as _;

use fnv::FnvHasher;

use super::plan::{Outcome, Planned};
use crate::error::ApiError;

/// How old a plan may be when it is carried out.
pub const AGE_MAX_MS: i64 = 600_000;

/// `el-<when, hexadecimal>-<hash>`
pub fn plan_id(planned: &[Planned<'_>], made_ms: i64) -> String {
    format!("el-{made_ms:x}-{:016x}", hash(planned, made_ms))
}

/// Holds the plan that somebody saw against the one that would be carried out now.
///
/// # Errors
/// 422/42206 for what is no plan's name; 409/40911 for one that is too old, or of another state or choice.
pub fn verify(given: &str, planned: &[Planned<'_>], now_ms: i64) -> Result<(), ApiError> {
    let parts = given.strip_prefix("el-").and_then(|rest| rest.split_once('-'));
    let parts =
        parts.and_then(|(made, hash)| Some((i64::from_str_radix(made, 16).ok()?, u64::from_str_radix(hash, 16).ok()?)));
    let Some((made_ms, hashed)) = parts else {
        return Err(ApiError::invalid_payload(format!("plan_id: \"{given}\" is not one that a dry run gave")));
    };
    let again = "send it with validate_only and look at the new plan";
    if (now_ms - made_ms).abs() > AGE_MAX_MS {
        let age_s = (now_ms - made_ms) / 1_000;
        return Err(ApiError::stale(format!("the plan {given} is {age_s} s old, at most 600 s are allowed: {again}")));
    }
    if hash(planned, made_ms) != hashed {
        return Err(ApiError::stale(format!(
            "the plan {given} is of another state or names other partitions or leaders than this request: {again}"
        )));
    }
    Ok(())
}

/// The same number on every node and in every build.
fn hash(planned: &[Planned<'_>], made_ms: i64) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(&made_ms.to_be_bytes());
    for planned in planned {
        let Outcome::Elect { leader, loss } = &planned.outcome else { continue };
        let (chosen, state) = (planned.wanted.chosen, planned.wanted.chosen.state);
        hasher.write(&chosen.topic.id.to_bytes());
        for number in [chosen.partition, state.leader_epoch.0, state.partition_epoch.0, leader.0] {
            hasher.write(&number.to_be_bytes());
        }
        hasher.write(&[u8::from(loss.is_some())]);
    }
    hasher.finish()
}
