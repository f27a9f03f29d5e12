//! Tests without sockets, threads or clocks.

mod config;
mod metrics;
mod wire;
