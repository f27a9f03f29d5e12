//! Tests without sockets, threads or clocks.

mod config;
mod control;
mod fanout;
mod metrics;
mod sim;
mod tls;
mod wire;
