//! The rules by example: a file per subject, one per historic flaw, random commands, and the golden log.

mod brokers;
mod chosen;
mod configs;
mod controllers;
mod elections;
mod flaws;
mod golden;
mod history;
mod isr;
mod random;
mod size;
mod topics;
