//! Storage faults on the simulated disk: every crash point, every error of every call, damage in every file.

pub mod corruption;
pub mod crash_points;
pub mod faults;
pub mod metadata_rot;
