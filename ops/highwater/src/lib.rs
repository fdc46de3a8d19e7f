//! The node as a library: the same `Node` for the binary, for in-process tests and for embedding.

pub mod config;
