//! Tests over real sockets of this host. What the host lacks is skipped with a message.

mod net;
