//! Tests without sockets, threads or clocks.

mod config;
mod fanout;
mod metrics;
mod wire;
