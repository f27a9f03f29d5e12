//! Groups coming in: stream -> model.
//!
//! Bytes are scanned, copied once into the group's image, and forwarded from there as they come
//! (cut-through). A fault ends this stream with its code and breaks the lane, so that no viewer
//! takes a short group for a whole one; the track and the session beside it go on.

use rustc_hash::FxHashMap;

use super::image::{Bounds, CLASS_LITE, Scan};
use super::lite;
use super::streams::{Dir, ReadEnd, StreamId, Streams};
use super::{Event, Inbound, Io, Session, State};
use crate::model::group::{LaneEnd, Refused};
use crate::model::{LaneKey, Model, TrackKey};
use crate::name::GroupSeq;
use crate::wire::code::{Violation, stream as code};
use crate::wire::version::Version;

/// Longest head of a unidirectional stream that is looked at whole: type, length and three varints.
const HEAD_MAX: usize = 40;

/// A unidirectional stream being read.
#[derive(Default)]
pub(super) struct GroupIn {
    head: Vec<u8>,
    lane: Option<(LaneKey, TrackKey)>,
    scan: Scan,
}

/// Why a stream is not read on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The peer's fault.
    Wrong(Violation),
    /// The model's answer.
    Refused(Refused, TrackKey),
    /// It is a SETUP, with this many bytes of the head before its body.
    Setup,
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Self {
        Self::Wrong(violation)
    }
}

/// What feeding needs besides the stream.
struct Feed<'a> {
    model: &'a mut Model,
    subs: &'a FxHashMap<u64, TrackKey>,
    version: Version,
    bounds: Bounds,
}

impl GroupIn {
    /// Takes the next bytes of the stream.
    #[inline]
    fn feed(&mut self, feed: &mut Feed<'_>, bytes: &[u8]) -> Result<(), Fault> {
        if let Some((lane, track)) = self.lane {
            return self.body(feed, lane, track, bytes);
        }
        // The head mostly comes whole, and is then read where it is.
        let known = self.head.len();
        if known > 0 {
            self.head.extend_from_slice(&bytes[..bytes.len().min(HEAD_MAX)]);
        }
        let whole = if known > 0 { &self.head } else { bytes };
        let Some((kind, after)) = lite::stream_type(whole) else {
            return self.wait(known, bytes);
        };
        match kind {
            lite::UNI_SETUP => {
                self.head.truncate(known);
                self.head.extend_from_slice(bytes);
                self.head.drain(..after);
                return Err(Fault::Setup);
            }
            lite::UNI_GROUP => {}
            _ => return Err(Fault::Wrong(Violation::UnknownStream)),
        }
        let Some((head, used)) = lite::group_head(feed.version, &whole[after..])? else {
            return self.wait(known, bytes);
        };
        let rest = &bytes[after + used - known..];
        let track = *feed.subs.get(&head.subscribe).ok_or(Violation::GroupUnknown)?;
        let lane = feed
            .model
            .open_group(track, GroupSeq(head.sequence), head.frame_start, CLASS_LITE)
            .map_err(|refused| Fault::Refused(refused, track))?;
        self.lane = Some((lane, track));
        self.head = Vec::new();
        self.body(feed, lane, track, rest)
    }

    /// Keeps a head that is not complete.
    fn wait(&mut self, known: usize, bytes: &[u8]) -> Result<(), Fault> {
        if known + bytes.len() >= HEAD_MAX {
            return Err(Fault::Wrong(Violation::GroupMalformed));
        }
        if known == 0 {
            self.head.extend_from_slice(bytes);
        }
        Ok(())
    }

    #[inline]
    fn body(
        &mut self,
        feed: &mut Feed<'_>,
        lane: LaneKey,
        track: TrackKey,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let Feed { model, bounds, .. } = feed;
        let ingress_us = model.now_us;
        self.scan.feed(bytes, bounds, &mut |mut boundary| {
            boundary.ingress_us = ingress_us;
            model.push_boundary(lane, boundary).map_err(|refused| Fault::Refused(refused, track))
        })?;
        model.counters.bytes_in += bytes.len() as u64;
        model.append(lane, bytes).map_err(|refused| Fault::Refused(refused, track))
    }
}

impl Session {
    /// Reads a unidirectional stream of the peer.
    pub(super) fn read_group<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let limits = &self.terms.limits;
        let bounds = Bounds {
            frame_bytes: limits.frame_bytes as u64,
            group_bytes: limits.group_bytes as u64,
            group_frames: limits.group_frames as u64,
        };
        let group = match self.inbound.get_mut(&id) {
            Some(Inbound::Group(group)) => group,
            Some(_) => return self.read_request(io, id),
            None => return,
        };
        let model = &mut *io.model;
        let mut feed = Feed { model, subs: &self.subs, version: self.version, bounds };
        let mut fault = None;
        let end = io.streams.read(id, &mut |bytes| match group.feed(&mut feed, bytes) {
            Ok(()) => true,
            Err(found) => {
                fault = Some(found);
                false
            }
        });
        let lane = group.lane;
        if let Some(fault) = fault {
            self.fault(io, id, fault);
            return;
        }
        if let Some((lane, _)) = lane {
            io.model.wake(lane);
        }
        match end {
            ReadEnd::Blocked | ReadEnd::Paused => {}
            ReadEnd::Fin => self.end_group(io, id),
            ReadEnd::Reset(code) => {
                if let Some((lane, _)) = lane {
                    io.model.end_lane(lane, LaneEnd::Reset(code));
                }
                self.forget_uni(id);
            }
        }
    }

    fn end_group<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let Some(Inbound::Group(group)) = self.inbound.get(&id) else { return };
        let whole = group.scan.is_whole();
        if let Some((lane, track)) = group.lane {
            io.streams.accommodate(Dir::Uni, self.groups_in + 1);
            let end = if whole { LaneEnd::Fin } else { LaneEnd::Reset(code::WRONG_SIZE) };
            io.model.end_lane(lane, end);
            if !whole {
                io.events.push(Event::Violation(Violation::GroupTruncated));
            }
            let _ = track;
        }
        self.forget_uni(id);
    }

    fn fault<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId, fault: Fault) {
        let lane = match self.inbound.get_mut(&id) {
            Some(Inbound::Group(group)) => group.lane,
            _ => None,
        };
        let broken = match fault {
            Fault::Setup => {
                self.become_setup(io, id);
                return;
            }
            Fault::Wrong(violation) => {
                let early = violation == Violation::UnknownStream && !self.setup_seen;
                let violation = if early { Violation::SetupMalformed } else { violation };
                self.violate(io, id, violation);
                violation.code()
            }
            Fault::Refused(refused, track) => {
                let code = refusal_code(refused);
                io.streams.stop(id, code);
                self.forget_uni(id);
                if refused == Refused::PastEnd && self.version.strict_end() {
                    io.events.push(Event::Violation(Violation::GroupPastEnd));
                    io.model.fail_track(track, Violation::GroupPastEnd.code());
                }
                code
            }
        };
        if let Some((lane, _)) = lane {
            io.model.end_lane(lane, LaneEnd::Reset(broken));
        }
    }

    fn become_setup<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let Some(Inbound::Group(group)) = self.inbound.get_mut(&id) else { return };
        let buffer = std::mem::take(&mut group.head);
        if self.state != State::Setup {
            self.violate(io, id, Violation::SecondSetup);
            return;
        }
        self.inbound.insert(id, Inbound::Setup(buffer));
        self.feed_setup(io, id);
        self.read_request(io, id);
    }
}

fn refusal_code(refused: Refused) -> u64 {
    match refused {
        Refused::Duplicate | Refused::PastEnd => code::INTERNAL,
        Refused::Old => code::OLD,
        Refused::Full => code::EVICTED,
        Refused::Gone => code::CANCELLED,
    }
}
