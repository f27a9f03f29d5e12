//! corelay.
fn main() {}
