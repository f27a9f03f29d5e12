//! What a shard counts, and how it reads as text. A shard counts in plain integers that nobody
//! else touches and hands out copies ([`Snapshot`]); control renders them. Each counter and gauge
//! is one row, from which field, name and help are made, so none is declared and left out of the
//! text.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::name::ShardId;

/// The content type of what [`render`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Largest delivery time that is told apart; longer ones count as this.
const DELIVERY_US_MAX: u64 = 60_000_000;

/// Upper bounds of the delivery histogram's buckets, in microseconds.
const BUCKETS_US: [u64; 16] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

macro_rules! numbers {
    ($(#[$about:meta])* $table:ident { $(#[doc = $help:literal] $name:ident;)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $table {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl $table {
            /// Every name, in the order of [`Self::rows`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)*];

            /// Name, help and value of each.
            pub fn rows(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $help.trim_ascii(), self.$name),)*]
            }
        }
    };
}

numbers! {
    /// What a shard counts; nothing here ever falls.
    Counters {
        /// Sessions that were granted access
        sessions_opened;
        /// Sessions that ended
        sessions_closed;
        /// Handshakes that ended without a session
        handshakes_failed;
        /// Handshakes asked to prove their address
        handshakes_retried;
        /// Handshakes refused with an answer
        handshakes_refused;
        /// Connection attempts dropped without an answer
        incoming_dropped;
        /// Datagrams of no connection
        datagrams_unroutable;
        /// Messages received, each a datagram or a train
        rx_messages;
        /// Datagrams received
        rx_datagrams;
        /// Bytes of datagrams received
        rx_bytes;
        /// Receive calls that failed
        rx_errors;
        /// Messages larger than a receive buffer
        rx_truncated;
        /// Send calls' messages, each a datagram or a train
        tx_sends;
        /// Datagrams sent
        tx_datagrams;
        /// Bytes of datagrams sent
        tx_bytes;
        /// Times the kernel's send buffer was full
        tx_blocked;
        /// Times no send slot was free
        tx_slots_exhausted;
        /// Trains sent again one by one because the kernel refused segmentation
        tx_gso_refused;
        /// Datagrams too large for their path
        tx_too_big;
        /// Sends to an address that cannot be reached
        tx_unreachable;
        /// Sends that failed otherwise
        tx_errors;
        /// Turns of the loop
        turns;
        /// Turns that ended asleep
        parks;
        /// Frames taken from publishers
        frames_in;
        /// Bytes of group streams taken from publishers
        bytes_in;
        /// Groups that publishers opened
        groups_in;
        /// Groups that publishers reset
        groups_in_reset;
        /// Group streams opened to viewers
        groups_out;
        /// Group streams reset because their group was too old
        groups_out_reset_old;
        /// Group streams reset because their viewer held too much
        groups_out_reset_charge;
        /// Group streams reset for any other reason
        groups_out_reset_other;
        /// Groups not opened to a viewer because they were too old
        groups_skipped_old;
        /// Groups dropped because of their age
        groups_evicted_age;
        /// Groups dropped to make room
        groups_evicted_budget;
        /// Bytes of group streams written to viewers
        bytes_out;
        /// Subscriptions opened by viewers
        subscriptions_opened;
        /// Subscriptions refused
        subscriptions_refused;
        /// Subscriptions opened to publishers
        upstream_subscribes;
        /// Announcements taken
        announces_in;
        /// Announcements sent
        announces_out;
        /// Arena blocks allocated
        arena_blocks_allocated;
        /// Arena blocks used again
        arena_blocks_reused;
        /// Times no arena block was to be had
        arena_exhausted;
        /// Messages taken from mailboxes
        mail_received;
        /// Messages lost to a full mailbox
        mail_dropped;
        /// Times the shard did not answer control for a second
        stalls;
        /// Timers fired
        timers_fired;
    }
}

numbers! {
    /// What a shard holds now.
    Gauges {
        /// Sessions
        sessions;
        /// Connections without a session yet
        half_open;
        /// Subscriptions of viewers
        subscriptions;
        /// Tracks
        tracks;
        /// Groups
        groups;
        /// Cursors
        cursors;
        /// Bytes of arena blocks in use
        arena_bytes_leased;
        /// Bytes of arena blocks in use or waiting for use
        arena_bytes_allocated;
        /// Bytes charged to viewers
        charged_bytes;
    }
}

/// A counter per reason. Reasons are few and fixed in the program's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReasonCounts(BTreeMap<&'static str, u64>);

impl ReasonCounts {
    /// Counts `reason` once.
    pub fn hit(&mut self, reason: &'static str) {
        *self.0.entry(reason).or_default() += 1;
    }

    /// How often `reason` was hit.
    pub fn get(&self, reason: &str) -> u64 {
        self.0.get(reason).copied().unwrap_or(0)
    }

    /// Every reason that was hit, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(&reason, &count)| (reason, count))
    }
}

/// An empty histogram of delivery times in microseconds, 1 us to 60 s within 1 %. Record with
/// `saturating_record`.
pub fn delivery_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, DELIVERY_US_MAX, 2).expect("the bounds are valid")
}

/// What one shard has counted and holds, at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Whose numbers.
    pub shard: ShardId,
    /// What rose.
    pub counters: Counters,
    /// What is.
    pub gauges: Gauges,
    /// Peers' wrongs, by reason.
    pub violations: ReasonCounts,
    /// Bounds that were hit, by the limit's name.
    pub limits: ReasonCounts,
    /// From a frame's ingress to its first write to a viewer, in microseconds.
    pub delivery_us: Histogram<u64>,
}

impl Snapshot {
    /// All zero.
    pub fn new(shard: ShardId) -> Self {
        Self {
            shard,
            counters: Counters::default(),
            gauges: Gauges::default(),
            violations: ReasonCounts::default(),
            limits: ReasonCounts::default(),
            delivery_us: delivery_histogram(),
        }
    }
}

/// The snapshots as OpenMetrics text ([`CONTENT_TYPE`]), each series labelled with its shard.
pub fn render(snapshots: &[Snapshot]) -> String {
    let mut registry = Registry::with_prefix("corelay");
    registry.register_collector(Box::new(Shards(snapshots.to_vec())));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("writing to a string cannot fail");
    out
}

#[derive(Debug)]
struct Shards(Vec<Snapshot>);

type Rows = Vec<(&'static str, &'static str, u64)>;

impl Collector for Shards {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        encoder
            .encode_descriptor("build", "The program", None, MetricType::Info)?
            .encode_info(&version)?;
        self.numbers(&mut encoder, MetricType::Counter, |snapshot| snapshot.counters.rows())?;
        self.numbers(&mut encoder, MetricType::Gauge, |snapshot| snapshot.gauges.rows())?;
        let violations = ("violations", "Wrongs of peers, by reason", "reason");
        self.reasons(&mut encoder, violations, |snapshot| &snapshot.violations)?;
        let limits = ("limit_hits", "Bounds that were hit, by limit", "limit");
        self.reasons(&mut encoder, limits, |snapshot| &snapshot.limits)?;
        self.delivery(&mut encoder)
    }
}

impl Shards {
    fn numbers(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        kind: MetricType,
        rows: fn(&Snapshot) -> Rows,
    ) -> fmt::Result {
        let shards: Vec<(u16, Rows)> = self.0.iter().map(|s| (s.shard.0, rows(s))).collect();
        let Some((_, first)) = shards.first() else { return Ok(()) };
        for (at, &(name, help, _)) in first.iter().enumerate() {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (shard, rows) in &shards {
                let labels = [("shard", *shard)];
                let mut series = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Gauge => series.encode_gauge(&rows[at].2)?,
                    _ => series.encode_counter::<NoLabelSet, u64, u64>(&rows[at].2, None)?,
                }
            }
        }
        Ok(())
    }

    fn reasons(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help, label): (&str, &str, &'static str),
        counts: fn(&Snapshot) -> &ReasonCounts,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for snapshot in &self.0 {
            let shard = snapshot.shard.0.to_string();
            for (reason, count) in counts(snapshot).iter() {
                let labels = [("shard", shard.as_str()), (label, reason)];
                let mut series = metric.encode_family(&labels)?;
                series.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn delivery(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "From a frame's ingress to its first write to a viewer, in seconds";
        let mut metric =
            encoder.encode_descriptor("delivery_seconds", help, None, MetricType::Histogram)?;
        for snapshot in &self.0 {
            let (sum, buckets) = seconds(&snapshot.delivery_us);
            let labels = [("shard", snapshot.shard.0)];
            let count = snapshot.delivery_us.len();
            let mut row = metric.encode_family(&labels)?;
            row.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// The sum in seconds, and (upper bound in seconds, count between it and the bound before it).
/// The last bound is infinite, which the encoder calls `f64::MAX`.
fn seconds(histogram: &Histogram<u64>) -> (f64, Vec<(f64, u64)>) {
    let mut sum_us = 0.0;
    let mut counts = [0; BUCKETS_US.len() + 1];
    for value in histogram.iter_recorded() {
        let us = histogram.median_equivalent(value.value_iterated_to());
        let count = value.count_since_last_iteration();
        sum_us += us as f64 * count as f64;
        let at = BUCKETS_US.iter().position(|&bound| us <= bound);
        counts[at.unwrap_or(BUCKETS_US.len())] += count;
    }
    let bounds = BUCKETS_US.iter().map(|&bound| bound as f64 / 1e6).chain([f64::MAX]);
    (sum_us / 1e6, bounds.zip(counts).collect())
}
