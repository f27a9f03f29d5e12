//! The moq-lite edge: wire messages of its versions <-> the session's requests and answers.
//!
//! The only file of `session` that knows message layouts, besides `image` for frames. Parsers
//! answer `Ok(None)` while a message is incomplete. Nothing here keeps state.

use super::setup::Declared;
use super::{Prefs, Request};
use crate::config::Limits;
use crate::model::cursor::Range;
use crate::model::deliver::{HEADER_MAX, Note};
use crate::model::track::{Demand, Info};
use crate::name::{Cost, GroupSeq, Hop, Hops, Path, TrackName};
use crate::wire::code::Violation;
use crate::wire::lite::announce::{Announce, AnnounceOk, AnnounceRequest};
use crate::wire::lite::data::GroupHeader;
use crate::wire::lite::subscribe::{Preferences, Response, Subscribe, Track, TrackInfo};
use crate::wire::lite::{Goaway, SETUP_MAX, Setup, kind};
use crate::wire::version::Version;
use crate::wire::{DecodeError, Reader, message, put_varint, write_varint};

/// Type of group streams.
pub(super) const UNI_GROUP: u64 = kind::UNI_GROUP;
/// Type of the SETUP stream.
pub(super) const UNI_SETUP: u64 = kind::UNI_SETUP;
/// What routes cost that come without a price (lite 6.4).
pub(super) const UNPRICED: Cost = Cost { warm: 0, cold: crate::name::VARINT_MAX };

/// What a parser found: the value and the bytes it took, or nothing yet.
type Parsed<T> = Result<Option<(T, usize)>, Violation>;

/// What arrived on an announcement stream.
pub(super) enum Announced {
    Ok(Hop),
    Start { suffix: Path, hops: Hops, cost: Cost },
    Active { suffix: Path, hops: Hops },
    Update { id: u64, hops: Hops, cost: Cost },
    End { id: u64 },
    Ended { suffix: Path },
    Unknown,
}

/// What arrived in answer to a SUBSCRIBE.
pub(super) enum Answer {
    Start(u64),
    End(u64),
    Drop,
}

fn wait<T>(result: Result<T, DecodeError>, violation: Violation) -> Result<Option<T>, Violation> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(DecodeError::Short) => Ok(None),
        Err(DecodeError::Invalid(_)) => Err(violation),
    }
}

/// Type of a stream and the bytes it took.
#[inline]
pub(super) fn stream_type(buffer: &[u8]) -> Option<(u64, usize)> {
    let mut reader = Reader::new(buffer);
    let kind = reader.varint().ok()?;
    Some((kind, reader.position()))
}

/// SETUP, behind the stream's type.
pub(super) fn setup(buffer: &[u8]) -> Result<Option<Declared>, Violation> {
    let Some((body, _)) = wait(message(buffer, SETUP_MAX), Violation::SetupMalformed)? else {
        return Ok(None);
    };
    let setup = Setup::decode(body).map_err(|_| Violation::SetupMalformed)?;
    let raw = setup.path.as_deref().unwrap_or("/");
    let path = raw.split('?').next().unwrap_or_default();
    Ok(Some(Declared {
        path: Path::parse(path).map_err(|_| Violation::SetupMalformed)?,
        role: setup.role,
        cost: setup.cost,
        hop: setup.hop,
    }))
}

/// A request stream from its type on.
pub(super) fn request(version: Version, buffer: &[u8], limits: &Limits) -> Parsed<Request> {
    let Some((kind, after)) = stream_type(buffer) else { return Ok(None) };
    let known = matches!(
        kind,
        kind::BI_ANNOUNCE | kind::BI_SUBSCRIBE | kind::BI_TRACK | kind::BI_PROBE | kind::BI_GOAWAY
    );
    if !known {
        return Err(Violation::UnknownStream);
    }
    if kind == kind::BI_PROBE {
        return Ok(Some((Request::Probe, after)));
    }
    let found = wait(message(&buffer[after..], limits.message_bytes), Violation::RequestMalformed)?;
    let Some((body, used)) = found else { return Ok(None) };
    let request = decode_request(version, kind, body).map_err(|_| Violation::RequestMalformed)?;
    let (path, track) = match &request {
        Request::Announce { prefix, .. } => (Some(prefix), None),
        Request::Subscribe { broadcast, track, .. } | Request::Track { broadcast, track } => {
            (Some(broadcast), Some(track))
        }
        Request::Probe | Request::Goaway => (None, None),
    };
    let long_path = path.is_some_and(|path| path.as_str().len() > limits.path_bytes);
    let long_track = track.is_some_and(|track| track.as_str().len() > limits.track_name_bytes);
    if long_path || long_track {
        return Err(Violation::RequestMalformed);
    }
    Ok(Some((request, after + used)))
}

fn decode_request(version: Version, kind: u64, body: &[u8]) -> Result<Request, DecodeError> {
    match kind {
        kind::BI_ANNOUNCE => {
            let request = AnnounceRequest::decode(body, version)?;
            let exclude = version.has_exclude_hop().then_some(request.exclude_hop);
            Ok(Request::Announce { prefix: request.prefix, exclude })
        }
        kind::BI_SUBSCRIBE => {
            let request = Subscribe::decode(body, version)?;
            Ok(Request::Subscribe {
                id: request.id,
                broadcast: request.broadcast,
                track: request.track,
                prefs: prefs(version, &request.prefs),
            })
        }
        kind::BI_TRACK => {
            let request = Track::decode(body)?;
            Ok(Request::Track { broadcast: request.broadcast, track: request.track })
        }
        _ => Goaway::decode(body).map(|_| Request::Goaway),
    }
}

fn prefs(version: Version, wire: &Preferences) -> Prefs {
    let end = wire.end.map(GroupSeq);
    let range = Range {
        start: GroupSeq(wire.start.unwrap_or(0)),
        end,
        frame_start: wire.frame_start,
        frame_end: wire.frame_end,
    };
    let pinned = !version.start_is_floor() && wire.start.is_none();
    Prefs {
        // A pinned start with an end keeps the end: nothing below the edge is wanted anyway.
        range: (!pinned || end.is_some()).then_some(range),
        max_age_ms: wire.max_age_ms,
        priority: wire.priority,
    }
}

/// A SUBSCRIBE_UPDATE.
pub(super) fn update(version: Version, buffer: &[u8], max: usize) -> Parsed<Prefs> {
    let Some((body, used)) = wait(message(buffer, max), Violation::UpdateMalformed)? else {
        return Ok(None);
    };
    let wire = Preferences::decode_update(body, version).map_err(|_| Violation::UpdateMalformed)?;
    Ok(Some((prefs(version, &wire), used)))
}

/// The head of a group stream, behind its type.
#[inline]
pub(super) fn group_head(version: Version, buffer: &[u8]) -> Parsed<GroupHeader> {
    wait(GroupHeader::decode(buffer, version), Violation::GroupMalformed)
}

/// ANNOUNCE_OK: the announcer's origin.
pub(super) fn announce_ok(buffer: &[u8], max: usize) -> Parsed<Hop> {
    let Some((body, used)) = wait(message(buffer, max), Violation::AnnounceMalformed)? else {
        return Ok(None);
    };
    let ok = AnnounceOk::decode(body).map_err(|_| Violation::AnnounceMalformed)?;
    Ok(Some((ok.hop, used)))
}

/// One announcement.
pub(super) fn announced(version: Version, buffer: &[u8], max: usize) -> Parsed<Announced> {
    let decoded = wait(Announce::decode(buffer, version, max), Violation::AnnounceMalformed)?;
    let Some((announce, used)) = decoded else { return Ok(None) };
    let announced = match announce {
        Announce::Start { suffix, hops, cost } => Announced::Start { suffix, hops, cost },
        Announce::Active { suffix, hops } => Announced::Active { suffix, hops },
        Announce::Update { id, hops, cost } => Announced::Update { id, hops, cost },
        Announce::End { id } => Announced::End { id },
        Announce::Ended { suffix } => Announced::Ended { suffix },
        Announce::Unknown => Announced::Unknown,
    };
    Ok(Some((announced, used)))
}

/// TRACK_INFO.
pub(super) fn info(version: Version, buffer: &[u8], max: usize) -> Result<Option<Info>, Violation> {
    let Some((body, _)) = wait(message(buffer, max), Violation::ResponseMalformed)? else {
        return Ok(None);
    };
    let wire = TrackInfo::decode(body, version).map_err(|_| Violation::ResponseMalformed)?;
    Ok(Some(Info {
        priority: wire.priority,
        max_age_ms: wire.max_age_ms,
        timescale: wire.timescale,
    }))
}

/// One message of the answer to a SUBSCRIBE.
pub(super) fn answer(version: Version, buffer: &[u8], max: usize) -> Parsed<Answer> {
    let decoded = wait(Response::decode(buffer, version, max), Violation::ResponseMalformed)?;
    let Some((response, used)) = decoded else { return Ok(None) };
    let answer = match response {
        Response::Start { group } => Answer::Start(group),
        Response::End { group } => Answer::End(group),
        Response::Drop { .. } => Answer::Drop,
    };
    Ok(Some((answer, used)))
}

/// Our SETUP, type included. PROBE is not offered.
pub(super) fn put_setup(hop: Hop, out: &mut Vec<u8>) {
    put_varint(out, kind::UNI_SETUP);
    Setup { probe: 0, path: None, role: None, cost: None, hop: Some(hop) }.encode(out);
}

/// Our request for everything a peer publishes.
pub(super) fn put_announce_request(version: Version, hop: Hop, out: &mut Vec<u8>) {
    put_varint(out, kind::BI_ANNOUNCE);
    AnnounceRequest { prefix: Path::default(), exclude_hop: hop }.encode(version, out);
}

/// ANNOUNCE_OK.
pub(super) fn put_announce_ok(hop: Hop, active: u64, out: &mut Vec<u8>) {
    AnnounceOk { hop, active }.encode(out);
}

/// A broadcast appears.
pub(super) fn put_route_start(
    version: Version,
    suffix: &Path,
    hops: &Hops,
    cost: Cost,
    out: &mut Vec<u8>,
) {
    let (suffix, hops) = (suffix.clone(), hops.clone());
    let announce = match version.has_typed_announce() {
        true => Announce::Start { suffix, hops, cost },
        false => Announce::Active { suffix, hops },
    };
    announce.encode(version, out);
}

/// Its route changes.
pub(super) fn put_route_update(
    version: Version,
    (id, suffix): (u64, &Path),
    hops: &Hops,
    cost: Cost,
    out: &mut Vec<u8>,
) {
    let hops = hops.clone();
    let announce = match version.has_typed_announce() {
        true => Announce::Update { id, hops, cost },
        false => Announce::Active { suffix: suffix.clone(), hops },
    };
    announce.encode(version, out);
}

/// It disappears.
pub(super) fn put_route_end(version: Version, id: u64, suffix: &Path, out: &mut Vec<u8>) {
    let announce = match version.has_typed_announce() {
        true => Announce::End { id },
        false => Announce::Ended { suffix: suffix.clone() },
    };
    announce.encode(version, out);
}

/// True when a change of price is visible to the peer.
pub(super) fn shows_cost(version: Version) -> bool {
    version.has_cost()
}

/// TRACK, type included.
pub(super) fn put_track(broadcast: &Path, track: &TrackName, out: &mut Vec<u8>) {
    put_varint(out, kind::BI_TRACK);
    Track { broadcast: broadcast.clone(), track: track.clone() }.encode(out);
}

fn preferences(version: Version, demand: &Demand) -> Preferences {
    let start = demand.range.start.0;
    Preferences {
        priority: demand.priority,
        max_age_ms: demand.max_age_ms,
        start: (version.start_is_floor() || start > 0).then_some(start),
        end: demand.range.end.map(|end| end.0),
        frame_start: 0,
        frame_end: None,
    }
}

/// SUBSCRIBE, type included.
pub(super) fn put_subscribe(
    version: Version,
    id: u64,
    (broadcast, track): (&Path, &TrackName),
    demand: &Demand,
    out: &mut Vec<u8>,
) {
    put_varint(out, kind::BI_SUBSCRIBE);
    let prefs = preferences(version, demand);
    Subscribe { id, broadcast: broadcast.clone(), track: track.clone(), prefs }
        .encode(version, out);
}

/// SUBSCRIBE_UPDATE.
pub(super) fn put_update(version: Version, demand: &Demand, out: &mut Vec<u8>) {
    preferences(version, demand).encode_update(version, out);
}

/// TRACK_INFO.
pub(super) fn put_info(version: Version, info: &Info, out: &mut Vec<u8>) {
    let Info { priority, max_age_ms, timescale } = *info;
    TrackInfo { priority, max_age_ms, timescale }.encode(version, out);
}

/// START.
pub(super) fn put_start(group: GroupSeq, out: &mut Vec<u8>) {
    Response::Start { group: group.0 }.encode(out);
}

/// END.
pub(super) fn put_end(group: GroupSeq, out: &mut Vec<u8>) {
    Response::End { group: group.0 }.encode(out);
}

/// Writes the head of a group stream, type included, and returns how many bytes it takes.
pub(super) fn put_group_head(
    version: Version,
    (subscribe, seq, frame_start): (u64, GroupSeq, u64),
    out: &mut [u8; HEADER_MAX],
) -> usize {
    let out = out.first_chunk_mut().expect("a header is shorter than that");
    GroupHeader { subscribe, sequence: seq.0, frame_start }.encode_into(version, out)
}

/// What is the same for all viewers in the head of a group from its first frame: what follows the
/// subscription.
pub(super) fn group_tail(version: Version, seq: GroupSeq) -> Note {
    let mut bytes = [0; HEADER_MAX];
    let len = put_group_head(version, (0, seq, 0), &mut bytes);
    // The type, the length, and the subscription 0 take a byte each.
    let tail = *bytes[3..].first_chunk().expect("a head is longer than its tail");
    Note { by: 0, len: u8::try_from(len - 3).expect("two varints"), bytes: tail }
}

/// As `put_group_head`, with what `group_tail` made.
#[inline(always)]
pub(super) fn put_group_head_of(subscribe: u64, tail: &Note, out: &mut [u8; HEADER_MAX]) -> usize {
    let name = write_varint(&mut out[2..], subscribe);
    out[2 + name..][..tail.bytes.len()].copy_from_slice(&tail.bytes);
    let body = name + usize::from(tail.len);
    out[0] = u8::try_from(UNI_GROUP).expect("one byte");
    out[1] = u8::try_from(body).expect("three varints");
    2 + body
}
