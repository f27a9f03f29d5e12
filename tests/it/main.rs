//! Tests without sockets, threads or clocks.

mod config;
mod control;
mod fanout;
mod metrics;
mod tls;
mod wire;
