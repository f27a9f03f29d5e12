//! corelay.

pub mod name;
