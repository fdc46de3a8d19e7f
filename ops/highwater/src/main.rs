//! Arguments to one verb to an exit code.

fn main() {}
