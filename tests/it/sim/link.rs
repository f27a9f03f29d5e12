//! One direction of a link, on virtual time: datagrams go in, and come out later, twice, out of
//! order or not at all.
//!
//! A rate makes a queue: what does not fit it is lost, as in a router. Reordering holds a datagram
//! back for a while; without it, and without jitter, order is kept.

use std::time::{Duration, Instant};

use super::random::Random;

/// How a direction treats what it carries.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) delay: Duration,
    /// At most so much is added to the delay.
    pub(super) jitter: Duration,
    /// Datagrams of a thousand that are lost, sent twice, held back.
    pub(super) loss: u64,
    pub(super) duplicate: u64,
    pub(super) reorder: u64,
    /// Bytes per second.
    pub(super) rate: Option<u64>,
    /// Bytes that may wait for the rate.
    pub(super) queue: u64,
    /// Longer datagrams are lost.
    pub(super) mtu: usize,
}

impl Terms {
    /// Only a delay.
    pub(super) fn clean(delay_ms: u64) -> Self {
        Self {
            delay: Duration::from_millis(delay_ms),
            jitter: Duration::ZERO,
            loss: 0,
            duplicate: 0,
            reorder: 0,
            rate: None,
            queue: 64 << 10,
            mtu: 65_535,
        }
    }
}

/// One direction.
pub(super) struct Link {
    pub(super) terms: Terms,
    random: Random,
    busy_until: Instant,
    /// Datagrams and bytes that entered, and datagrams that were lost.
    pub(super) entered: u64,
    pub(super) entered_bytes: u64,
    pub(super) lost: u64,
}

impl Link {
    pub(super) fn new(terms: Terms, random: Random, now: Instant) -> Self {
        Self { terms, random, busy_until: now, entered: 0, entered_bytes: 0, lost: 0 }
    }

    /// Takes a datagram of `len` bytes and says when it comes out: never, once or twice.
    pub(super) fn carry(
        &mut self,
        now: Instant,
        len: usize,
    ) -> impl Iterator<Item = Instant> + use<> {
        self.entered += 1;
        self.entered_bytes += len as u64;
        let first = self.through(now, len);
        self.lost += u64::from(first.is_none());
        let twice = first.is_some() && self.random.chance(self.terms.duplicate);
        let second = if twice { self.through(now, len) } else { None };
        first.into_iter().chain(second)
    }

    fn through(&mut self, now: Instant, len: usize) -> Option<Instant> {
        if len > self.terms.mtu || self.random.chance(self.terms.loss) {
            return None;
        }
        let mut at = now;
        if let Some(rate) = self.terms.rate {
            let start = self.busy_until.max(now);
            let waiting = start.duration_since(now).as_micros() * u128::from(rate) / 1_000_000;
            if waiting + len as u128 > u128::from(self.terms.queue) {
                return None;
            }
            self.busy_until = start + Duration::from_micros(len as u64 * 1_000_000 / rate);
            at = self.busy_until;
        }
        at += self.terms.delay;
        if !self.terms.jitter.is_zero() {
            let most = u64::try_from(self.terms.jitter.as_micros()).expect("short");
            at += Duration::from_micros(self.random.below(most));
        }
        if self.random.chance(self.terms.reorder) {
            at += self.terms.delay / 2 + Duration::from_millis(3);
        }
        Some(at)
    }
}
