//! The node as a library: the same `Node` for the binary, for in-process tests and for embedding; and the verbs of the
//! command line.

pub mod cli;
pub mod config;
pub mod dev;
pub mod limits;
pub mod node;
pub mod storage;
pub mod telemetry;

pub use node::{Node, NodeError};
