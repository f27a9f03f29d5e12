//! corelay: a Media over QUIC relay whose every core is a relay of its own.
//!
//! This page is the map. It says what the parts are, how a frame passes through them, which file a
//! change belongs in, and what must stay true. It speaks moq-lite 05 and 06 (*lite* for short; the
//! peers' own implementation is the crate moq-net). Words that recur:
//!
//! * *train*: UDP datagrams of one connection that one send hands to the kernel (GSO).
//! * *slot*: a buffer of the datapath into which quinn-proto writes a train.
//! * *block*: 8 to 64 KiB of the arena, filled once from front to back.
//! * *dirty*: in a list of things to look at this turn. *Settle* is what makes that list final.
//! * *live edge*: the newest frame of the newest group of a track.
//! * *expiry* ends a stream to one viewer because its content is too old for that viewer;
//!   *eviction* takes a group from everybody because its memory, or its age, is used up.
//! * *hold*: how long a busy shard gathers work before it turns again.
//!
//! # The picture
//!
//! ```text
//!         publishers, viewers (raw QUIC)
//!                  |        ^
//!   net      datagrams     trains         a UDP socket for each address, GRO in, GSO out
//!                  v        |
//!   quic     connections, timers          quinn-proto, sans-IO
//!                  v        |
//!   session  requests, groups in / out    one protocol machine a peer; wire knows the bytes
//!                  v        |
//!   model    tracks, groups, images, cursors in an arena
//!
//!   control  HTTP, grants, certificates, signals: its own thread, behind mailboxes (fanout)
//! ```
//!
//! A **shard** is one pinned thread and everything it owns. The design is for one on each core;
//! this version runs a single one. Nothing in it is shared or locked. The **control thread** is a
//! tokio runtime that never sees a frame; the two meet only in bounded mailboxes.
//!
//! # One turn
//!
//! [`shard::turn`] reads like this list; every step is bounded, and what is left stays marked:
//!
//! 1. receive: datagrams to their connections
//! 2. converse: what connections have to say, to their sessions; groups are copied into the model
//! 3. mail from control
//! 4. due deadlines
//! 5. settle: expiry and eviction on tracks whose live edge moved
//! 6. flush: every dirty session, control first, then media in order of priority
//! 7. transmit: one train for each connection, written straight into the datapath's slot
//! 8. submit; then sleep, if nothing is left
//!
//! # The idea: wire images
//!
//! What a viewer receives of a group after the stream's header is the same for every viewer whose
//! version encodes frames alike (an *encoding class*). So a group is kept as the bytes that came in
//! (its *image*), with an index of where frames begin, and a viewer is a *cursor*: an offset into
//! it. Payload is copied once, from the datagram into the image's block; from there delivering to a
//! viewer is cloning one slice, of as many frames as have come since the last. Nothing is encoded,
//! locked, allocated or woken for each viewer.
//!
//! # Where things are
//!
//! | level | module | owns |
//! |---|---|---|
//! | 0 | [`name`], [`steer`], [`config`], [`metrics`] | words, connection ids, limits, numbers |
//! | 1 | [`wire`] | bytes of messages; versions in `version.rs`, codes in `code.rs` |
//! | 1 | [`model`] | broadcasts and routes, tracks, groups, images, cursors, the arena |
//! | 1 | [`net`] | sockets and datagrams: `mmsg.rs` the kernel, `sim.rs` the simulation |
//! | 1 | [`quic`] | quinn-proto: who is let in, timers, budgets, TLS |
//! | 2 | [`session`] | one peer's protocol machine, over its own `Streams` trait |
//! | 2 | [`fanout`] | mailboxes and their messages |
//! | 3 | [`shard`] | the turn, the thread, and the glue between the layers |
//! | 3 | [`control`] | HTTP, grants, certificates, signals |
//!
//! An import goes down this table only, level-1 modules do not see each other, and `tests/tidy`
//! proves it.
//!
//! Which file does a change belong in?
//!
//! | change | file |
//! |---|---|
//! | a field of a message of lite-05 or -06 | `wire/lite/{announce,subscribe,data}.rs` by message |
//! | what such a field means to the model | `session/lite.rs` |
//! | which versions there are, and how they differ | `wire/version.rs` |
//! | a stream or session code | `wire/code.rs` |
//! | a reaction to a fault | `session/{request,announce,upstream,ingress}.rs` |
//! | finding frames in a body, another encoding class | `session/image.rs` |
//! | which group a viewer gets next, its expiry | `model/cursor.rs` |
//! | eviction: what is kept of a track, and how long | `model/group.rs` |
//! | what a block is, when it is reused | `model/arena.rs` |
//! | what is asked upstream, a track's end | `model/track.rs`, `session/upstream.rs` |
//! | choice of route | `model/origin.rs` |
//! | in which order a session's streams are served | `session/egress.rs` |
//! | a group's stream: its header, writes, priority and end | `session/media.rs` |
//! | short cuts for a viewer that keeps up | `model/deliver.rs` |
//! | short cuts for a group written whole at once | `model/flight.rs` |
//! | who is visited in a turn | `model/sweep.rs` |
//! | the write budget and its reserve, receive windows, stream credit | `quic/connection.rs` |
//! | admission, Retry, timers | `quic/endpoint.rs` |
//! | GSO and its fallback: what a socket error means | `net/mmsg.rs` |
//! | trains that wait to be sent, and how one is cut | `net/queue.rs` |
//! | options of a socket | `net/bind.rs` |
//! | sleeping, pinning, the hold of a busy shard | `shard/thread.rs` |
//! | a limit, a flag | `config/{limits,settings}.rs`, and the README's table |
//! | a number in `/metrics` | `metrics.rs` |
//!
//! # What must stay true
//!
//! * **No work for each viewer and write beyond a slice.** No lock, no allocation in `wire`,
//!   `model`, `session` for each frame, group or viewer; `tests/allocs.rs` and `benches/icount.rs`
//!   hold it.
//! * **Purity.** `wire`, `model`, `session` and `quic` get time, randomness and bytes and give
//!   bytes and deadlines, so the whole relay also runs on virtual time (`tests/it/sim`).
//! * **Bounds.** Everything that can grow has a limit in [`config::Limits`], counted when it is
//!   hit.
//! * **Fidelity.** What a publisher sent is what a viewer of the same class gets, byte for byte, as
//!   it arrives. A short group is reset, never finished.
//! * **Memory is written once.** Bytes of a block that were handed out are not written again while
//!   anyone holds a slice ([`model::arena`]).
//! * **A bad stream costs the stream, a bad session the session**, with the code in `wire/code.rs`.
//! * **A shard is never lost alone**: a panic in any thread ends the process.
//!
//! # Decisions
//!
//! * *Egress walks its own order of priority* and hands streams to quinn-proto with its fairness
//!   switched on. Without it, quinn-proto keeps a stream that has begun ahead of more urgent ones.
//! * *The write budget follows the congestion window* (window + 64 KiB, at least 128 KiB): bytes
//!   that quinn-proto does not have yet can still be dropped when they turn stale. 32 KiB of it is
//!   kept for control messages.
//! * *A publisher that resets its announcement answer* loses its routes but not its session, unlike
//!   in moq-net: declining to publish is no reason to lose what one watches.
//! * *A finished stream that is not acknowledged* is reset for age only half a second past its
//!   successor, so that a viewer's max_age of 0 does not reset what is already on its way.
//! * *A busy shard turns at most once each hold* (`--egress-hold`) and reads nothing in between,
//!   so that frames share trains and acknowledgements share wake-ups; the first datagram after idle
//!   never waits.
//! * *Timestamps of a track whose TRACK_INFO is unknown* cannot be compared, so ages are measured
//!   by arrival until it comes.

pub mod config;
pub mod control;
pub mod fanout;
pub mod metrics;
pub mod model;
pub mod name;
pub mod net;
pub mod quic;
pub mod session;
pub mod shard;
pub mod steer;
pub mod wire;
