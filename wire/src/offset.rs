//! Offsets and their only sensible arithmetic. Ends are exclusive (R1).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The position of a record in its partition: 0 or greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct Offset(pub i64);

impl Offset {
    pub const ZERO: Self = Self(0);

    /// `None` for every negative number (−1 means "absent" on the wire).
    pub fn from_wire(value: i64) -> Option<Self> {
        (value >= 0).then_some(Self(value))
    }

    /// −1 for `None`.
    pub fn to_wire(value: Option<Self>) -> i64 {
        value.map_or(-1, |offset| offset.0)
    }

    /// The offset `records` further on.
    #[must_use]
    pub fn plus(self, records: i64) -> Self {
        Self(self.0 + records)
    }

    /// How many offsets lie between `earlier` and this one; negative when this one is the earlier.
    pub fn since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
