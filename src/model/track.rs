//! Tracks: one upstream source, its groups in order, and everyone who reads them here.
//!
//! ```text
//! Live --END--> ending --FIN and every group seen (or grace)--> drained
//!   \--RESET, FIN without END, session lost--> Failed(code)
//! ```
//! A track belongs to one route (path, source peer); another publisher of the same path makes
//! another track. Invariant: what is wanted upstream is always derived from the readers and askers,
//! never stored as a count.

use std::collections::VecDeque;

use super::arena::BlockId;
use super::cursor::{NIL, Range};
use super::group::LaneEnd;
use super::peer::Notice;
use super::sweep::Woken;
use super::{GroupKey, Model, PeerKey, ReaderKey, TrackKey};
use crate::name::{GroupSeq, Path, TrackName};

/// Grace for groups that the end overtook when the track has no age of its own.
const END_GRACE_MS: u64 = 1000;
/// Longest grace, whatever the track's age.
const END_GRACE_MAX_MS: u64 = 30_000;

/// What a publisher says of a track (lite TRACK_INFO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// Advisory.
    pub priority: u8,
    /// Caps every subscriber's own.
    pub max_age_ms: u64,
    /// Ticks per second, not zero.
    pub timescale: u64,
}

/// What the readers of a track want together; sent upstream when it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Widest range.
    pub range: Range,
    /// Largest budget.
    pub max_age_ms: u64,
    /// Highest priority.
    pub priority: u8,
}

/// How a track stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Groups come or will come.
    Live,
    /// Upstream said everything; what is cached is all there is.
    Drained,
    /// Broken with a stream code.
    Failed(u64),
}

/// Why an end is no end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndError {
    /// A group at or past it came before.
    Passed,
    /// The answer ended without telling it.
    Untold,
}

/// One track of one route.
pub struct Track {
    /// The path it was asked for under; its route may cover a shorter one.
    pub path: Path,
    /// The peer it comes from.
    pub source: PeerKey,
    /// Its name.
    pub name: TrackName,
    /// Once upstream answered.
    pub info: Option<Info>,
    /// How it stands.
    pub state: State,
    /// First group of the upstream subscription.
    pub start: Option<GroupSeq>,
    /// First group that will not exist.
    pub end: Option<GroupSeq>,
    /// Ends of the list by sequence, as slots.
    pub oldest: u32,
    /// See `oldest`.
    pub newest: u32,
    /// Groups in arrival order; keys of dropped ones stay until they reach the front.
    pub arrivals: VecDeque<GroupKey>,
    /// Arrival number of the front of `arrivals`.
    pub arrival_base: u64,
    /// Slot of the live edge.
    pub edge: u32,
    /// Newest timestamp of the edge.
    pub edge_ts: u64,
    /// Ingress time of that boundary.
    pub edge_us: u64,
    /// In the list of moved tracks.
    pub moved: bool,
    /// Bytes of the last complete group, to size blocks by.
    pub group_hint: u32,
    /// Groups ever opened and ever completed.
    pub received: u64,
    /// See `received`.
    pub complete: u64,
    /// Groups with cursors, as slots.
    pub active: Vec<u32>,
    /// Readers.
    pub readers: Vec<ReaderKey>,
    pub(super) tail: Option<BlockId>,
    /// Peers that wait for the info: (peer, request stream).
    askers: Vec<(PeerKey, u64)>,
    wanted: bool,
    upstream_fin: bool,
    drain_at_us: Option<u64>,
    /// When it may go, while nobody uses it.
    idle_until_us: Option<u64>,
    idle_queued: bool,
}

impl Track {
    /// The track's own age; unknown until its info is.
    pub fn max_age_ms(&self) -> Option<u64> {
        self.info.map(|info| info.max_age_ms)
    }

    /// True while somebody waits for the info.
    pub fn is_asked(&self) -> bool {
        self.info.is_none() && !self.askers.is_empty()
    }
}

impl Model {
    /// The track `name` of `path` by way of `source`, made if it is new. `None` at the limit.
    pub fn open_track(
        &mut self,
        source: PeerKey,
        path: &Path,
        name: &TrackName,
    ) -> Option<TrackKey> {
        if let Some(found) = self.track_index.get(&(source, path.clone(), name.clone())) {
            return Some(*found);
        }
        let track = Track {
            path: path.clone(),
            source,
            name: name.clone(),
            info: None,
            state: State::Live,
            start: None,
            end: None,
            oldest: NIL,
            newest: NIL,
            arrivals: VecDeque::new(),
            arrival_base: 0,
            edge: NIL,
            edge_ts: 0,
            edge_us: 0,
            moved: false,
            group_hint: 0,
            received: 0,
            complete: 0,
            active: Vec::new(),
            readers: Vec::new(),
            tail: None,
            askers: Vec::new(),
            wanted: false,
            upstream_fin: false,
            drain_at_us: None,
            idle_until_us: Some(self.idle_end_us()),
            idle_queued: false,
        };
        let Ok(key) = self.tracks.insert(track) else {
            self.limit_hits.hit("tracks");
            return None;
        };
        self.track_index.insert((source, path.clone(), name.clone()), key);
        if let Some(held) = self.peers.get_mut(source) {
            held.sources.insert(key);
        }
        self.queue_idle(key);
        Some(key)
    }

    /// Takes a track out of the index, unless another of its name has its place by now.
    fn unindex(&mut self, key: TrackKey) {
        let Some(track) = self.tracks.get(key) else { return };
        let name = (track.source, track.path.clone(), track.name.clone());
        if self.track_index.get(&name) == Some(&key) {
            self.track_index.remove(&name);
        }
    }

    /// Has the clock look at an idle track later, once however often it falls idle.
    fn queue_idle(&mut self, key: TrackKey) {
        let Some(track) = self.tracks.get_mut(key) else { return };
        if !std::mem::replace(&mut track.idle_queued, true) {
            let until_us = self.idle_end_us();
            self.idle.push_back((until_us, key));
        }
    }

    /// When a track may go that falls idle now.
    fn idle_end_us(&self) -> u64 {
        self.now_us.saturating_add(self.limits.track_idle_ms * 1000)
    }

    /// Answers `stream` of `peer` with the track's info now or when it comes.
    pub fn ask_info(&mut self, peer: PeerKey, track: TrackKey, stream: u64) {
        let Some(held) = self.tracks.get_mut(track) else { return };
        match held.info {
            Some(info) => self.notify(peer, Notice::Info { stream, info }),
            None => {
                held.askers.push((peer, stream));
                self.want(track.index());
            }
        }
    }

    /// A peer does not wait for the info any more.
    pub fn unask_info(&mut self, peer: PeerKey, track: TrackKey, stream: u64) {
        let Some(held) = self.tracks.get_mut(track) else { return };
        held.askers.retain(|held| *held != (peer, stream));
        self.want(track.index());
    }

    /// Upstream told what the track is.
    pub fn set_info(&mut self, key: TrackKey, info: Info) {
        let Some(track) = self.tracks.get_mut(key) else { return };
        track.info = Some(info);
        for (peer, stream) in std::mem::take(&mut track.askers) {
            self.notify(peer, Notice::Info { stream, info });
        }
        self.want(key.index());
    }

    /// Upstream told its first group.
    pub fn set_start(&mut self, key: TrackKey, start: GroupSeq) {
        if let Some(track) = self.tracks.get_mut(key) {
            track.start.get_or_insert(start);
        }
    }

    /// Upstream told the first group that will not exist. `Err` when one at or past it came.
    /// Unless `strict`, the end is then put behind it.
    pub fn set_end(&mut self, key: TrackKey, end: GroupSeq, strict: bool) -> Result<(), EndError> {
        let Some(track) = self.tracks.get_mut(key) else { return Ok(()) };
        let newest = match track.newest {
            NIL => None,
            newest => Some(self.groups[newest].seq),
        };
        if strict && newest.is_some_and(|newest| newest >= end) {
            return Err(EndError::Passed);
        }
        let end = newest.map_or(end, |newest| end.max(GroupSeq(newest.0.saturating_add(1))));
        if track.end == Some(end) {
            return Ok(());
        }
        track.end = Some(end);
        self.tell_readers(key.index());
        self.settle_end(key.index());
        Ok(())
    }

    /// Upstream finished its answer. `Err` when it had not told the end.
    pub fn finish_track(&mut self, key: TrackKey) -> Result<(), EndError> {
        let now_us = self.now_us;
        let Some(track) = self.tracks.get_mut(key) else { return Ok(()) };
        if track.end.is_none() {
            return Err(EndError::Untold);
        }
        track.upstream_fin = true;
        let grace_ms = match track.max_age_ms() {
            Some(age) if age > 0 => age.min(END_GRACE_MAX_MS),
            _ => END_GRACE_MS,
        };
        let at = now_us.saturating_add(grace_ms.saturating_mul(1000));
        track.drain_at_us = Some(at);
        self.drains.push((at, key));
        self.settle_end(key.index());
        Ok(())
    }

    /// Declares a track drained once upstream said everything and every group came.
    pub(super) fn settle_end(&mut self, slot: u32) {
        let track = &mut self.tracks[slot];
        let Some(end) = track.end.filter(|_| track.upstream_fin) else { return };
        let start = track.start.unwrap_or(end);
        let expected = end.0.saturating_sub(start.0);
        let grace_over = track.drain_at_us.is_some_and(|at| at <= self.now_us);
        if track.state == State::Live && (track.complete >= expected || grace_over) {
            track.state = State::Drained;
            self.tell_readers(slot);
        }
    }

    /// Breaks a track: its readers are reset with `code`, its askers refused.
    pub fn fail_track(&mut self, key: TrackKey, code: u64) {
        let Some(track) = self.tracks.get_mut(key) else { return };
        for (peer, stream) in std::mem::take(&mut track.askers) {
            self.notify(peer, Notice::Refused { stream, code });
        }
        let Some(track) = self.tracks.get_mut(key).filter(|held| held.state == State::Live) else {
            return;
        };
        track.state = State::Failed(code);
        self.unindex(key);
        let mut at = self.tracks[key.index()].oldest;
        while at != NIL {
            let newer = self.groups[at].newer;
            let lane = self.groups[at].lane;
            let lane = self.lanes.key_at(lane).expect("a group keeps its lane");
            self.end_lane(lane, LaneEnd::Reset(code));
            at = newer;
        }
        self.tell_readers(key.index());
        self.want(key.index());
    }

    /// A source is gone: what was not drained fails with `code`.
    pub(super) fn fail_source(&mut self, source: PeerKey, code: u64) {
        let mine = self.peers.get(source).map(|peer| peer.sources.clone());
        for key in mine.unwrap_or_default() {
            let track = &mut self.tracks[key.index()];
            if track.end.is_some() && track.state == State::Live {
                // Told its end before it left: what arrived is served, what is open is broken.
                self.break_open_lanes(key, code);
                let track = &mut self.tracks[key.index()];
                track.upstream_fin = true;
                track.drain_at_us = Some(self.now_us);
                self.settle_end(key.index());
            }
            self.fail_track(key, code);
            self.unindex(key);
        }
    }

    fn break_open_lanes(&mut self, key: TrackKey, code: u64) {
        let mut at = self.tracks[key.index()].oldest;
        while at != NIL {
            let newer = self.groups[at].newer;
            let lane = self.groups[at].lane;
            if self.lanes[lane].end == LaneEnd::Open {
                let lane = self.lanes.key_at(lane).expect("a group keeps its lane");
                self.end_lane(lane, LaneEnd::Reset(code));
            }
            at = newer;
        }
    }

    /// What is wanted of the track upstream; `None` when nobody reads it.
    pub fn demand(&self, key: TrackKey) -> Option<Demand> {
        let track = self.tracks.get(key)?;
        let mut demand: Option<Demand> = None;
        for slot in &track.readers {
            let reader = &self.readers[slot.index()];
            let one = Demand {
                range: Range { frame_start: 0, frame_end: None, ..reader.range },
                max_age_ms: reader.max_age_ms,
                priority: reader.priority,
            };
            demand = Some(demand.map_or(one, |all| Demand {
                range: Range {
                    start: all.range.start.min(one.range.start),
                    end: all.range.end.zip(one.range.end).map(|(a, b)| a.max(b)),
                    ..Range::ALL
                },
                max_age_ms: all.max_age_ms.max(one.max_age_ms),
                priority: all.priority.max(one.priority),
            }));
        }
        demand
    }

    /// Has the source look again at what is wanted of this track.
    pub(super) fn want(&mut self, slot: u32) {
        let end_us = self.idle_end_us();
        let track = &mut self.tracks[slot];
        let idle = track.readers.is_empty() && track.askers.is_empty();
        match (idle, track.idle_until_us) {
            (true, None) => {
                // A name that nobody answered for is not worth keeping: requests for made-up names
                // would fill the table.
                let unknown = track.info.is_none() && track.oldest == NIL;
                track.idle_until_us = Some(if unknown { self.now_us } else { end_us });
                track.idle_queued |= unknown;
                let key = self.tracks.key_at(slot).expect("just used");
                if unknown {
                    self.idle.push_front((self.now_us, key));
                } else {
                    self.queue_idle(key);
                }
            }
            (false, Some(_)) => track.idle_until_us = None,
            _ => {}
        }
        let track = &mut self.tracks[slot];
        if !track.wanted {
            track.wanted = true;
            let source = track.source;
            let key = self.tracks.key_at(slot).expect("just used");
            if let Some(peer) = self.peers.get_mut(source) {
                peer.demand.push(key);
                self.mark_control(source.index());
            }
        }
    }

    /// Takes the tracks whose demand `peer` should look at again.
    pub fn take_demand(&mut self, peer: PeerKey) -> Vec<TrackKey> {
        let taken = self
            .peers
            .get_mut(peer)
            .map(|peer| std::mem::take(&mut peer.demand))
            .unwrap_or_default();
        for key in &taken {
            if let Some(track) = self.tracks.get_mut(*key) {
                track.wanted = false;
            }
        }
        taken
    }

    /// The upstream subscription ended because nobody reads: what it brought goes with it, the info
    /// stays for a while, and the next reader starts afresh.
    pub fn pause_track(&mut self, key: TrackKey) {
        if self.tracks.get(key).is_none() {
            return;
        }
        self.break_open_lanes(key, 0);
        self.drop_idle_groups(key.index());
        let track = &mut self.tracks[key.index()];
        if track.state == State::Drained {
            track.state = State::Live;
        }
        track.start = None;
        track.end = None;
        track.upstream_fin = false;
        track.drain_at_us = None;
        track.edge = NIL;
        track.received = 0;
        track.complete = 0;
    }

    /// Drops every group that no cursor reads.
    fn drop_idle_groups(&mut self, slot: u32) {
        let mut at = self.tracks[slot].oldest;
        while at != NIL {
            let newer = self.groups[at].newer;
            let lane = self.groups[at].lane;
            self.groups[at].dead = true;
            if self.groups[at].cursors == 0 && self.lanes[lane].end != LaneEnd::Open {
                self.drop_group(at);
            }
            at = newer;
        }
        if self.tracks[slot].oldest == NIL
            && let Some(tail) = self.tracks[slot].tail.take()
        {
            self.arena.release(tail);
        }
    }

    /// Queues every reader of the track at its peer, with news.
    fn tell_readers(&mut self, slot: u32) {
        for index in 0..self.tracks[slot].readers.len() {
            let reader = self.tracks[slot].readers[index];
            self.readers[reader.index()].news = true;
            self.readers[reader.index()].easy = false;
            self.queue_reader(reader);
            let peer = self.readers[reader.index()].peer;
            self.mark_control(peer);
        }
    }

    /// Has every reader of the track look at what is new in this turn.
    pub(super) fn queue_readers(&mut self, key: TrackKey) {
        if self.woken.last() != Some(&Woken::Track(key)) {
            self.woken.push(Woken::Track(key));
        }
    }

    /// Queues one reader at its peer.
    pub(super) fn queue_reader(&mut self, key: ReaderKey) {
        let reader = &mut self.readers[key.index()];
        if reader.queued || reader.gone {
            return;
        }
        reader.queued = true;
        let peer = reader.peer;
        self.peers[peer].readers.push(key);
        self.mark(peer);
    }

    /// Work of the turn after everything was read: expiry and eviction on tracks whose edge moved.
    pub fn settle(&mut self) {
        while let Some(key) = self.moved.pop() {
            let Some(track) = self.tracks.get_mut(key) else { continue };
            track.moved = false;
            // The edge itself never expires.
            if track.active.iter().any(|group| *group != track.edge) {
                self.expire(key.index());
            }
            self.evict_aged(key.index());
        }
        self.offer = None;
        self.take_woken();
        if self.visiting.is_empty() {
            std::mem::swap(&mut self.visiting, &mut self.dirty);
        }
    }

    /// Moves the clock, and does what was due by it: ends of grace, idle tracks.
    pub fn tick(&mut self, now_us: u64) {
        self.now_us = now_us;
        let mut index = 0;
        while index < self.drains.len() {
            let (at, key) = self.drains[index];
            let waits = self.tracks.get(key).is_some_and(|held| held.drain_at_us == Some(at));
            if at > now_us && waits {
                index += 1;
                continue;
            }
            self.drains.swap_remove(index);
            if self.tracks.get(key).is_some() {
                self.settle_end(key.index());
            }
        }
        while let Some((until_us, key)) = self.idle.front().copied() {
            if until_us > now_us {
                break;
            }
            self.idle.pop_front();
            self.retire_track(key);
        }
    }

    /// When `tick` must be called next.
    pub fn deadline_us(&self) -> Option<u64> {
        let idle = self.idle.front().map(|(until_us, _)| *until_us);
        let drain = self.drains.iter().map(|(at, _)| *at).min();
        [idle, drain].into_iter().flatten().min()
    }

    /// Frees a track that nobody uses; one in use is looked at again when it falls idle.
    fn retire_track(&mut self, key: TrackKey) {
        let Some(track) = self.tracks.get_mut(key) else { return };
        track.idle_queued = false;
        match track.idle_until_us {
            None => return,
            Some(until_us) if until_us > self.now_us => {
                self.queue_idle(key);
                return;
            }
            Some(_) => {}
        }
        self.break_open_lanes(key, 0);
        self.drop_idle_groups(key.index());
        if self.tracks[key.index()].oldest != NIL {
            // Streams of the last readers still await acknowledgement.
            self.queue_idle(key);
            return;
        }
        self.unindex(key);
        let track = self.tracks.remove(key).expect("just used");
        if let Some(peer) = self.peers.get_mut(track.source) {
            peer.sources.remove(&key);
            peer.retired.push(key);
            self.mark_control(track.source.index());
        }
    }
}
