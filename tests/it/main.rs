//! Tests without sockets, threads or clocks.

mod config;
mod wire;
