//! What the tests stand on: real processes, clusters in this process, a small Kafka client, a simulated world, made-up bytes.

pub mod chaos;
pub mod client;
pub mod cluster;
pub mod fuzz;
pub mod interop;
pub mod networks;
pub mod power;
pub mod process;
pub mod sim;
pub mod slow_link;
pub mod soak;
pub mod stock_tools;
pub mod storage;
