//! Announcements in both directions: what a peer publishes, and what we tell a peer of others.
//!
//! Telling is state against state: what this peer was told of each broadcast is compared with what
//! the model offers it now, so any number of changes in between costs one message, and a peer that
//! does not read makes nothing grow. Invariant: an id of ours names at most one broadcast, ever.

use std::collections::{BTreeMap, BTreeSet};

use super::lite::{self, Announced};
use super::request::Asked;
use super::streams::{ReadEnd, StreamId, Streams};
use super::{Inbound, Io, Session};
use crate::model::{BroadcastKey, Model, PeerKey};
use crate::name::{Cost, Hop, Hops, Path, is_hidden};
use crate::wire::code::Violation;
use crate::wire::version::Version;

/// Announcements written to one peer in one turn; the rest follows in the next.
const TOLD_PER_TURN: usize = 256;

/// What we tell a peer on one of its announcement streams.
pub(super) struct Telling {
    prefix: Path,
    exclude: Hop,
    told: BTreeMap<BroadcastKey, Told>,
    pending: BTreeSet<BroadcastKey>,
    next_id: u64,
}

struct Told {
    id: u64,
    suffix: Path,
    hops: Hops,
    cost: Cost,
}

/// What a peer told us on the announcement stream we opened.
#[derive(Default)]
pub(super) struct Heard {
    /// The stream could not be opened yet.
    pub(super) wanted: bool,
    buffer: Vec<u8>,
    hop: Option<Hop>,
    by_id: BTreeMap<u64, (Path, Option<BroadcastKey>)>,
    by_path: BTreeMap<Path, u64>,
    next_id: u64,
    /// Some announcements were passed over for want of room; their ids are not remembered.
    overflowed: bool,
}

impl Heard {
    /// What an id means that names nothing here: a fault, unless it may be one passed over.
    fn unknown(&self, id: u64) -> Result<(), Violation> {
        let passed_over = self.overflowed && id < self.next_id;
        if passed_over { Ok(()) } else { Err(Violation::AnnounceUnknown) }
    }
}

impl Session {
    /// The peer asks what is published below `prefix`.
    pub(super) fn tell<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        id: StreamId,
        prefix: &Path,
        exclude: Option<Hop>,
    ) {
        if self.telling.len() >= self.terms.limits.session_announce_streams {
            io.model.limit_hits.hit("session_announce_streams");
            self.violate(io, id, Violation::TooManyRequests);
            return;
        }
        self.inbound.insert(id, Inbound::Asked(Asked::Announcements));
        let exclude = exclude.unwrap_or(self.peer_hop);
        let grant = self.grant.as_ref().filter(|grant| grant.subscribe);
        let Some(Ok(prefix)) = grant.map(|grant| grant.root.join(prefix)) else {
            let mut bytes = Vec::new();
            lite::put_announce_ok(self.terms.hop, 0, &mut bytes);
            self.say(io, id, &bytes, false);
            return;
        };
        io.model.watch(self.key);
        let pending = io.model.take_changes(self.key);
        for telling in self.telling.values_mut() {
            telling.pending.extend(pending.iter().copied());
        }
        let fresh = Telling { prefix, exclude, told: BTreeMap::new(), pending, next_id: 0 };
        let offers = |key: &&BroadcastKey| fresh.offer(io.model, self.key, **key).is_some();
        let active = fresh.pending.iter().filter(offers).count() as u64;
        let mut bytes = Vec::new();
        lite::put_announce_ok(self.terms.hop, active, &mut bytes);
        self.telling.insert(id, fresh);
        self.untold = true;
        self.calm = false;
        self.say(io, id, &bytes, false);
        io.model.touch(self.key);
    }

    /// The peer does not listen to announcements on `id` any more.
    pub(super) fn stop_telling(&mut self, model: &mut Model, id: StreamId) {
        self.telling.remove(&id);
        if self.telling.is_empty() {
            model.unwatch(self.key);
        }
    }

    /// Tells what changed, as far as the peer reads and the turn allows.
    pub(super) fn flush_announcements<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        if self.telling.is_empty() {
            return;
        }
        let changes = io.model.take_changes(self.key);
        let mut messages: Vec<(StreamId, Vec<u8>)> = Vec::new();
        self.untold = false;
        for (id, telling) in &mut self.telling {
            for key in &changes {
                // What came and went untold is nothing to a peer that did not read.
                let moot = io.model.broadcast(*key).is_none() && !telling.told.contains_key(key);
                if moot {
                    telling.pending.remove(key)
                } else {
                    telling.pending.insert(*key)
                };
            }
            if self.outboxes.contains_key(id) {
                continue;
            }
            let mut bytes = Vec::new();
            for _ in 0..TOLD_PER_TURN {
                let Some(key) = telling.pending.pop_first() else { break };
                telling.update(io.model, (self.key, self.version), key, &mut bytes);
            }
            self.untold |= !telling.pending.is_empty();
            if !bytes.is_empty() {
                messages.push((*id, bytes));
            }
        }
        for (id, bytes) in messages {
            self.say(io, id, &bytes, false);
        }
        if self.untold && self.outboxes.is_empty() {
            io.model.touch(self.key);
        }
    }

    /// What the peer's answer on our announcement stream brings.
    pub(super) fn read_announcements<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let max = self.terms.limits.message_bytes;
        let buffer = &mut self.heard.buffer;
        let end = io.streams.read(id, &mut |chunk| {
            buffer.extend_from_slice(chunk);
            true
        });
        let buffer = std::mem::take(&mut self.heard.buffer);
        let mut used = 0;
        loop {
            let rest = &buffer[used..];
            let parsed = match self.heard.hop {
                None => lite::announce_ok(rest, max)
                    .map(|found| found.map(|(hop, len)| (Announced::Ok(hop), len))),
                Some(_) => lite::announced(self.version, rest, max),
            };
            match parsed {
                Ok(None) => break,
                Ok(Some((announced, len))) => {
                    used += len;
                    if let Err(violation) = self.on_announced(io, announced) {
                        self.violate(io, id, violation);
                        return;
                    }
                }
                Err(violation) => {
                    self.violate(io, id, violation);
                    return;
                }
            }
        }
        self.heard.buffer = buffer[used..].to_vec();
        self.end_announcements(io, id, end);
    }

    fn end_announcements<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId, end: ReadEnd) {
        match end {
            ReadEnd::Blocked | ReadEnd::Paused => return,
            ReadEnd::Fin if !self.heard.buffer.is_empty() => {
                self.violate(io, id, Violation::AnnounceMalformed);
                return;
            }
            // A peer that breaks its answer off publishes nothing; that is no reason to end what it
            // watches, so its routes go and the session stays.
            ReadEnd::Fin | ReadEnd::Reset(_) => {}
        }
        self.outbound.remove(&id);
        self.outboxes.remove(&id);
        io.streams.reset(id, crate::wire::code::stream::CANCELLED);
        let heard = std::mem::take(&mut self.heard);
        for (_, key) in heard.by_id.into_values() {
            if let Some(key) = key {
                io.model.retract(self.key, key);
            }
        }
    }

    fn on_announced<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        announced: Announced,
    ) -> Result<(), Violation> {
        match announced {
            Announced::Ok(hop) => self.heard.hop = Some(hop),
            Announced::Start { suffix, hops, cost } => {
                if self.heard.by_path.contains_key(&suffix) {
                    return Err(Violation::AnnounceDuplicate);
                }
                self.start_route(io, suffix, hops, cost);
            }
            Announced::Active { suffix, hops } => match self.heard.by_path.get(&suffix).copied() {
                Some(id) => self.update_route(io, id, hops, lite::UNPRICED)?,
                None => self.start_route(io, suffix, hops, lite::UNPRICED),
            },
            Announced::Update { id, hops, cost } => self.update_route(io, id, hops, cost)?,
            Announced::End { id } => {
                let Some((suffix, key)) = self.heard.by_id.remove(&id) else {
                    return self.heard.unknown(id);
                };
                self.heard.by_path.remove(&suffix);
                if let Some(key) = key {
                    io.model.retract(self.key, key);
                }
            }
            Announced::Ended { suffix } => {
                if let Some(id) = self.heard.by_path.remove(&suffix)
                    && let Some((_, Some(key))) = self.heard.by_id.remove(&id)
                {
                    io.model.retract(self.key, key);
                }
            }
            Announced::Unknown => {}
        }
        Ok(())
    }

    fn start_route<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        suffix: Path,
        hops: Hops,
        cost: Cost,
    ) {
        io.streams.expect_media();
        io.model.counters.announces_in += 1;
        let id = self.heard.next_id;
        self.heard.next_id += 1;
        let limits = &self.terms.limits;
        let long = suffix.as_str().len() > limits.path_bytes;
        if long || self.heard.by_id.len() >= limits.session_announces {
            let limit = if long { "path_bytes" } else { "session_announces" };
            io.model.limit_hits.hit(limit);
            self.heard.overflowed = true;
            return;
        }
        let key = self.take_route(io.model, &suffix, hops, cost);
        self.heard.by_path.insert(suffix.clone(), id);
        self.heard.by_id.insert(id, (suffix, key));
    }

    fn update_route<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        id: u64,
        hops: Hops,
        cost: Cost,
    ) -> Result<(), Violation> {
        let Some((suffix, old)) = self.heard.by_id.get(&id).cloned() else {
            return self.heard.unknown(id);
        };
        let key = self.take_route(io.model, &suffix, hops, cost);
        if let (None, Some(old)) = (key, old) {
            io.model.retract(self.key, old);
        }
        if let Some(held) = self.heard.by_id.get_mut(&id) {
            held.1 = key;
        }
        Ok(())
    }

    /// Enters a route, unless it is a loop, is too long, or lies outside the grant or the limits;
    /// those are passed over without a word (lite 6.3, 18.1).
    fn take_route(
        &self,
        model: &mut Model,
        suffix: &Path,
        mut hops: Hops,
        cost: Cost,
    ) -> Option<BroadcastKey> {
        let grant = self.grant.as_ref().filter(|grant| grant.publish)?;
        let path = grant.root.join(suffix).ok()?;
        if hops.contains(self.terms.hop) || hops.push(self.heard.hop?).is_err() {
            return None;
        }
        let cost = if self.goaway { Cost::MAX } else { cost.plus(self.link_cost) };
        model.announce(self.key, &path, hops, cost).ok()
    }
}

impl Telling {
    /// What this stream's peer is offered of a broadcast: suffix, hops, cost.
    fn offer(&self, model: &Model, peer: PeerKey, key: BroadcastKey) -> Option<(Path, Hops, Cost)> {
        let (path, route) = model.offer(peer, self.exclude, key)?;
        let suffix = path.strip(&self.prefix)?;
        if is_hidden(suffix) {
            return None;
        }
        let suffix = Path::parse(suffix).ok()?;
        Some((suffix, route.hops.clone(), route.cost))
    }

    /// Writes what brings the peer from what it was told of `key` to what it is offered now.
    fn update(
        &mut self,
        model: &mut Model,
        (peer, version): (PeerKey, Version),
        key: BroadcastKey,
        out: &mut Vec<u8>,
    ) {
        let before = out.len();
        match (self.offer(model, peer, key), self.told.get_mut(&key)) {
            (None, None) => {}
            (None, Some(_)) => {
                let told = self.told.remove(&key).expect("just seen");
                lite::put_route_end(version, told.id, &told.suffix, out);
            }
            (Some((suffix, hops, cost)), None) => {
                lite::put_route_start(version, &suffix, &hops, cost, out);
                let id = self.next_id;
                self.next_id += 1;
                self.told.insert(key, Told { id, suffix, hops, cost });
            }
            (Some((suffix, hops, cost)), Some(told)) => {
                let visible = lite::shows_cost(version) && told.cost != cost;
                if told.hops != hops || visible {
                    lite::put_route_update(version, (told.id, &suffix), &hops, cost, out);
                    told.hops = hops;
                    told.cost = cost;
                }
            }
        }
        model.counters.announces_out += u64::from(out.len() > before);
    }
}
