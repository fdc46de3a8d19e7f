//! Which small worlds are searched, and which mistakes must be found in them.

use highwater_wire::BrokerId;

use super::super::flaws::Flaw;
use super::{Budget, Setting, Step, Wrong};

/// Nothing happens but what is added.
const NOTHING: Budget =
    Budget { records: 0, elections: 0, epochs: 3, kills: 0, losses: 0, lapses: 0, drops: 0, under_way: 4 };

const fn world(name: &'static str, replicas: i32, min_isr: usize, depth: usize, budget: Budget) -> Setting {
    Setting { name, replicas, min_isr, budget, before: &[], depth, wrong: Wrong::Nothing }
}

/// What ships, in every kind of trouble. The depths are those that fit two minutes on one core.
pub fn usual() -> Vec<Setting> {
    vec![
        world("two, a kill", 2, 1, 10, Budget { records: 3, elections: 1, kills: 1, lapses: 1, ..NOTHING }),
        world("two, a loss", 2, 2, 11, Budget { records: 3, losses: 1, lapses: 1, drops: 1, ..NOTHING }),
        world("three, a kill", 3, 2, 7, Budget { records: 2, elections: 1, kills: 1, lapses: 1, ..NOTHING }),
        world("three, a loss", 3, 2, 9, Budget { records: 3, losses: 1, lapses: 1, ..NOTHING }),
        world("three, elections", 3, 2, 8, Budget { records: 2, elections: 3, ..NOTHING }),
    ]
}

/// Broker 2 has a record of leader 1 that 3 does not have, and its next fetch is on its way; then 3 is elected.
const A_FETCH_IS_LATE: &[Step] = &[
    Step::Append(BrokerId(1)),
    Step::Deliver(0),
    Step::Deliver(1),
    Step::Elect(BrokerId(3)),
    Step::Learn(BrokerId(3)),
    Step::Learn(BrokerId(2)),
];

/// Each of these must be found.
pub fn variants() -> Vec<Setting> {
    let planted = |flaw, setting: Setting| Setting { wrong: Wrong::Planted(flaw), ..setting };
    vec![
        planted(Flaw::TruncatesToWatermark, world("two", 2, 1, 14, Budget { records: 1, kills: 1, ..NOTHING })),
        Setting {
            wrong: Wrong::TrustsTheCheckpoint,
            ..world("two", 2, 2, 14, Budget { records: 1, losses: 1, ..NOTHING })
        },
        Setting {
            wrong: Wrong::TakesOldFetches,
            before: A_FETCH_IS_LATE,
            ..world("three", 3, 1, 12, Budget { records: 1, elections: 2, ..NOTHING })
        },
    ]
}
