//! Tests without sockets, threads or clocks.

mod wire;
