//! corelay: a Media over QUIC relay whose every core is a relay of its own.
//! The map of its parts stands here once they all do.

pub mod config;
pub mod control;
pub mod fanout;
pub mod metrics;
pub mod model;
pub mod name;
pub mod net;
pub mod quic;
pub mod session;
pub mod steer;
pub mod wire;
