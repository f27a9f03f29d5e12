//! One pinned core's world: its datapath, QUIC endpoint, sessions and model, and nothing else's.
//!
//! The only place that knows every layer; it holds no protocol rules. `turn` is the order of work,
//! `thread` is where time, pinning and sleeping happen. Invariant: a session exists exactly while
//! its connection carries its key, and its model peer with it.

pub mod edge;
pub mod streams;
pub mod thread;
pub mod turn;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use self::edge::{Edge, Throttle};
use crate::config::{Config, Congestion};
use crate::metrics::{Gauges, ReasonCounts, Snapshot};
use crate::model::{Model, PeerKey};
use crate::name::{Hop, Path, ShardId, VARINT_MAX};
use crate::net::Net;
use crate::quic::connection::Grants;
use crate::quic::endpoint::{Endpoint, Settings};
use crate::session::{Event, Session, Terms};
use crate::wire::version::Version;

/// What a shard is made of besides its network.
pub struct Make {
    /// Bounds and flags.
    pub config: Arc<Config>,
    /// TLS of the endpoint.
    pub tls: Arc<rustls::ServerConfig>,
    /// Versions served, in order of preference.
    pub versions: Vec<Version>,
    /// Randomness; fixed in simulations.
    pub seed: [u8; 32],
    /// Where control is.
    pub edge: Edge,
}

/// Everything one core owns.
pub struct Shard<N> {
    /// Its datapath.
    pub net: N,
    quic: Endpoint,
    model: Model,
    sessions: Vec<Option<Box<Session>>>,
    connections: Vec<u32>,
    terms: Rc<Terms>,
    versions: Vec<Version>,
    edge: Edge,
    open_access: bool,
    config: Arc<Config>,
    setup_due: VecDeque<(u64, PeerKey)>,
    epoch: Instant,
    now: Instant,
    touched: Vec<u32>,
    sending: VecDeque<u32>,
    fired: Vec<usize>,
    events: Vec<Event>,
    reply: Vec<u8>,
    samples: Vec<(u64, u64)>,
    delivery_us: Histogram<u64>,
    violations: ReasonCounts,
    throttle: Throttle,
    closing: bool,
    turns: u64,
}

/// The endpoint's settings as the configuration has them.
fn settings(config: &Config, shard: ShardId, seed: [u8; 32]) -> Settings {
    let quic = &config.quic;
    let limits = &config.limits;
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Settings {
        shard,
        seed,
        idle_timeout: (!quic.idle_timeout.is_zero()).then_some(quic.idle_timeout),
        keep_alive: quic.keep_alive,
        mtu_discovery: quic.mtu_discovery,
        bbr: quic.congestion == Congestion::Delay,
        gso: quic.gso,
        stream_receive_window: narrow(quic.stream_receive_window),
        grants: Grants {
            streams_max: narrow(quic.max_streams),
            receive_window: narrow(quic.receive_window),
            send_window: quic.send_window,
        },
        ack_frequency: quic.ack_frequency,
        connections_max: limits.connections,
        handshakes_max: limits.handshakes,
        handshakes_retry: limits.handshakes_retry,
        incoming_buffer_bytes: limits.incoming_buffer_bytes as u64,
    }
}

impl<N: Net> Shard<N> {
    /// A shard that serves on `net` from `now` on.
    pub fn new(
        net: N,
        make: Make,
        now: Instant,
    ) -> Result<Self, quinn_proto::crypto::rustls::NoInitialCipherSuite> {
        let Make { config, tls, versions, seed, edge } = make;
        let shard = ShardId(0);
        let quic = Endpoint::new(settings(&config, shard, seed), tls)?;
        let mut random = [0; 8];
        random.copy_from_slice(&seed[..8]);
        // Self-chosen origin ids stay below 2^53, which every peer can represent (lite 22b).
        let chosen = u64::from_be_bytes(random) >> 11 | 1;
        let hop = Hop(config.cluster.id.unwrap_or(chosen).min(VARINT_MAX));
        Ok(Self {
            net,
            quic,
            model: Model::new(&config.limits),
            sessions: Vec::new(),
            connections: Vec::new(),
            terms: Rc::new(Terms { hop, limits: config.limits.clone() }),
            versions,
            open_access: config.auth.public.as_ref().is_none_or(Path::is_empty),
            edge,
            setup_due: VecDeque::new(),
            epoch: now,
            now,
            touched: Vec::new(),
            sending: VecDeque::new(),
            fired: Vec::new(),
            events: Vec::new(),
            reply: Vec::new(),
            samples: Vec::new(),
            delivery_us: Histogram::new_with_bounds(1, 60_000_000, 2).expect("fixed bounds"),
            violations: ReasonCounts::default(),
            throttle: Throttle::new(config.limits.log_lines_per_s),
            config,
            closing: false,
            turns: 0,
        })
    }

    /// How long new data may be held while the shard is busy.
    pub fn egress_hold(&self) -> Duration {
        self.config.egress.hold
    }

    /// The model, for tests that look inside.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Connections that exist, and those whose handshake is not done.
    pub fn connections(&self) -> (usize, usize) {
        self.quic.counts()
    }

    /// Everything there is to know in numbers.
    pub fn snapshot(&self) -> Snapshot {
        let mut counters = self.model.counters.clone();
        let net = self.net.counters();
        counters.turns = self.turns;
        counters.rx_messages = net.rx_messages;
        counters.rx_datagrams = net.rx_datagrams;
        counters.rx_bytes = net.rx_bytes;
        counters.rx_errors = net.rx_errors;
        counters.rx_truncated = net.rx_truncated;
        counters.tx_sends = net.tx_sends;
        counters.tx_datagrams = net.tx_datagrams;
        counters.tx_bytes = net.tx_bytes;
        counters.tx_blocked = net.tx_blocked;
        counters.tx_slots_exhausted = net.tx_slots_exhausted;
        counters.tx_gso_refused = net.tx_gso_refused;
        counters.tx_too_big = net.tx_too_big;
        counters.tx_unreachable = net.tx_unreachable;
        counters.tx_errors = net.tx_errors;
        let quic = self.quic.counted;
        counters.handshakes_failed = quic.failed;
        counters.handshakes_retried = quic.retried;
        counters.handshakes_refused = quic.refused;
        counters.incoming_dropped = quic.dropped;
        counters.datagrams_unroutable = quic.unroutable;
        counters.timers_fired = quic.timers;
        counters.arena_blocks_allocated = self.model.arena.stats.allocated;
        counters.arena_blocks_reused = self.model.arena.stats.reused;
        counters.arena_exhausted = self.model.arena.stats.exhausted;
        counters.parks = self.edge.parks;
        counters.mail_received = self.edge.received;
        counters.mail_dropped = self.edge.dropped;
        Snapshot {
            shard: ShardId(0),
            counters,
            gauges: self.gauges(),
            violations: self.violations.clone(),
            limits: self.model.limit_hits.clone(),
            delivery_us: self.delivery_us.clone(),
        }
    }

    fn gauges(&self) -> Gauges {
        let usage = self.model.usage();
        let (_, half_open) = self.quic.counts();
        Gauges {
            sessions: usage.peers as u64,
            half_open: half_open as u64,
            subscriptions: usage.readers as u64,
            tracks: usage.tracks as u64,
            groups: usage.groups as u64,
            cursors: (usage.cursors + usage.flights) as u64,
            arena_bytes_leased: usage.leased as u64,
            arena_bytes_allocated: self.model.arena.allocated() as u64,
            charged_bytes: usage.charged as u64,
        }
    }
}
