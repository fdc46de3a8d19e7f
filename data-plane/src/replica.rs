//! One replica of one partition: its role and its log, joined.

pub mod message;
pub mod note;
pub mod status;
