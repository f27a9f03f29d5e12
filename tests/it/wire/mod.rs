//! The byte formats against recorded bytes, and at their edges.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod edges;
mod vectors;

use corelay::name::{Hop, Hops, Role};
use corelay::wire::lite::announce::{Announce, AnnounceOk, AnnounceRequest};
use corelay::wire::lite::data::{Datagram, FrameHeader, GROUP_HEADER_MAX, GroupHeader};
use corelay::wire::lite::subscribe::{Fetch, Preferences, Response, Subscribe, Track, TrackInfo};
use corelay::wire::lite::{Goaway, Probe, SETUP_MAX, Setup};
use corelay::wire::version::Version;
use corelay::wire::{self, DecodeError, MESSAGE_MAX, Reader, What};
use serde_json::{Value, json};

/// One kind of message, as the decoders split them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Varint,
    Zigzag,
    Setup,
    Goaway,
    Probe,
    AnnounceRequest,
    AnnounceOk,
    Announce,
    Subscribe,
    SubscribeUpdate,
    Response,
    Track,
    TrackInfo,
    Fetch,
    Group,
    Frame,
    Datagram,
}

const KINDS: [Kind; 17] = [
    Kind::Varint,
    Kind::Zigzag,
    Kind::Setup,
    Kind::Goaway,
    Kind::Probe,
    Kind::AnnounceRequest,
    Kind::AnnounceOk,
    Kind::Announce,
    Kind::Subscribe,
    Kind::SubscribeUpdate,
    Kind::Response,
    Kind::Track,
    Kind::TrackInfo,
    Kind::Fetch,
    Kind::Group,
    Kind::Frame,
    Kind::Datagram,
];

impl Kind {
    /// How many varints precede the length of its body; `None` without such a length.
    fn prefix(self, version: Version) -> Option<usize> {
        match self {
            Self::Varint | Self::Zigzag | Self::Frame | Self::Datagram => None,
            Self::Response => Some(1),
            Self::Announce => Some(usize::from(version.has_typed_announce())),
            _ => Some(0),
        }
    }
}

/// A decoded message: the bytes it took, its fields under the names of the vectors, and the bytes
/// it encodes to.
#[derive(Debug, PartialEq)]
struct Read {
    used: usize,
    fields: Value,
    bytes: Vec<u8>,
}

fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd hex");
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn hops(hops: &Hops) -> Vec<u64> {
    hops.as_slice().iter().map(|hop| hop.0).collect()
}

/// Decodes one message of `kind` from the front of `buf`, and encodes it again.
fn read(kind: Kind, version: Version, buf: &[u8]) -> Result<Read, DecodeError> {
    let mut out = Vec::new();
    let max = if kind == Kind::Setup { SETUP_MAX } else { MESSAGE_MAX };
    let (used, fields) = match kind {
        Kind::Varint | Kind::Zigzag => read_number(kind, buf, &mut out)?,
        Kind::Announce => {
            let (announce, used) = Announce::decode(buf, version, max)?;
            if announce.fits(version) {
                announce.encode(version, &mut out);
            }
            (used, announce_fields(&announce))
        }
        Kind::Response => {
            let (response, used) = Response::decode(buf, version, max)?;
            response.encode(&mut out);
            let fields = match response {
                Response::Start { group } | Response::End { group } => json!({ "group": group }),
                Response::Drop { start, end, error } => {
                    json!({ "start": start, "end": end, "error": error })
                }
            };
            (used, fields)
        }
        Kind::Group | Kind::Frame | Kind::Datagram => read_media(kind, version, buf, &mut out)?,
        _ => {
            let (body, used) = wire::message(buf, max)?;
            (used, read_body(kind, version, body, &mut out)?)
        }
    };
    Ok(Read { used, fields, bytes: out })
}

fn read_number(kind: Kind, buf: &[u8], out: &mut Vec<u8>) -> Result<(usize, Value), DecodeError> {
    let mut reader = Reader::new(buf);
    let value = reader.varint()?;
    wire::put_varint(out, value);
    let signed = wire::unzigzag(value);
    assert_eq!(wire::zigzag(signed), value);
    let fields = match kind {
        Kind::Varint => json!({ "value": value, "type": value }),
        _ => json!({ "signed": signed, "mapped": value }),
    };
    Ok((reader.position(), fields))
}

fn read_media(
    kind: Kind,
    version: Version,
    buf: &[u8],
    out: &mut Vec<u8>,
) -> Result<(usize, Value), DecodeError> {
    match kind {
        Kind::Group => {
            let (GroupHeader { subscribe, sequence, frame_start }, used) =
                GroupHeader::decode(buf, version)?;
            let mut bytes = [0; GROUP_HEADER_MAX];
            let header = GroupHeader { subscribe, sequence, frame_start };
            let len = header.encode_into(version, &mut bytes);
            assert_eq!(bytes[0], 0, "the stream's type leads");
            out.extend_from_slice(&bytes[1..len]);
            let fields =
                json!({ "subscribe": subscribe, "sequence": sequence, "frame_start": frame_start });
            Ok((used, fields))
        }
        Kind::Frame => {
            let (header, used) = FrameHeader::decode(buf)?;
            let mut bytes = [0; 16];
            let len = header.encode_into(&mut bytes);
            out.extend_from_slice(&bytes[..len]);
            Ok((used, json!({ "delta": header.delta, "size": header.size })))
        }
        _ => {
            let Datagram { subscribe, sequence, timestamp, payload } = Datagram::decode(buf)?;
            Datagram { subscribe, sequence, timestamp, payload }.encode(out);
            let fields = json!({
                "subscribe": subscribe, "sequence": sequence, "timestamp": timestamp,
                "payload": String::from_utf8_lossy(payload),
            });
            Ok((buf.len(), fields))
        }
    }
}

fn announce_fields(announce: &Announce) -> Value {
    match announce {
        Announce::Start { suffix, hops: chain, cost } => json!({
            "suffix": suffix.as_str(), "hops": hops(chain),
            "cost": { "warm": cost.warm, "cold": cost.cold },
        }),
        Announce::End { id } => json!({ "id": id }),
        Announce::Update { id, hops: chain, cost } => json!({
            "id": id, "hops": hops(chain), "cost": { "warm": cost.warm, "cold": cost.cold },
        }),
        Announce::Active { suffix, hops: chain } => {
            json!({ "suffix": suffix.as_str(), "hops": hops(chain) })
        }
        Announce::Ended { suffix } => json!({ "suffix": suffix.as_str() }),
        Announce::Unknown => json!({}),
    }
}

fn read_body(
    kind: Kind,
    version: Version,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<Value, DecodeError> {
    Ok(match kind {
        Kind::Setup => {
            let setup = Setup::decode(body)?;
            setup.encode(out);
            setup_fields(&setup)
        }
        Kind::Goaway => {
            let goaway = Goaway::decode(body)?;
            goaway.encode(out);
            json!({ "uri": goaway.uri })
        }
        Kind::Probe => {
            let probe = Probe::decode(body)?;
            probe.encode(out);
            json!({ "bitrate": probe.bitrate, "rtt_ms": probe.rtt_ms })
        }
        Kind::AnnounceRequest => {
            let request = AnnounceRequest::decode(body, version)?;
            request.encode(version, out);
            json!({ "prefix": request.prefix.as_str(), "exclude_hop": request.exclude_hop.0 })
        }
        Kind::AnnounceOk => {
            let ok = AnnounceOk::decode(body)?;
            ok.encode(out);
            json!({ "hop": ok.hop.0, "active": ok.active })
        }
        _ => read_request(kind, version, body, out)?,
    })
}

fn read_request(
    kind: Kind,
    version: Version,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<Value, DecodeError> {
    Ok(match kind {
        Kind::Subscribe => {
            let request = Subscribe::decode(body, version)?;
            request.encode(version, out);
            let mut fields = preference_fields(&request.prefs);
            fields["id"] = json!(request.id);
            fields["broadcast"] = json!(request.broadcast.as_str());
            fields["track"] = json!(request.track.as_str());
            fields
        }
        Kind::SubscribeUpdate => {
            let prefs = Preferences::decode_update(body, version)?;
            prefs.encode_update(version, out);
            preference_fields(&prefs)
        }
        Kind::Track => {
            let track = Track::decode(body)?;
            track.encode(out);
            json!({ "broadcast": track.broadcast.as_str(), "track": track.track.as_str() })
        }
        Kind::TrackInfo => {
            let TrackInfo { priority, max_age_ms, timescale } = TrackInfo::decode(body, version)?;
            TrackInfo { priority, max_age_ms, timescale }.encode(version, out);
            json!({
                "priority": priority, "max_age_ms": max_age_ms, "timescale": timescale,
                "ordered": 0,
            })
        }
        Kind::Fetch => {
            let fetch = Fetch::decode(body, version)?;
            fetch.encode(version, out);
            json!({
                "broadcast": fetch.broadcast.as_str(), "track": fetch.track.as_str(),
                "priority": fetch.priority, "group": fetch.group,
                "start_frame": fetch.frame_start, "end_frame": fetch.frame_end,
            })
        }
        other => panic!("{other:?} has no body"),
    })
}

fn setup_fields(setup: &Setup) -> Value {
    let mut fields = json!({});
    let role = setup.role.map(|role| if role == Role::Publisher { 1 } else { 2 });
    let probe = Some(setup.probe).filter(|level| *level > 0);
    for (name, value) in [
        ("probe(0x1)", json!(probe)),
        ("path(0x2)", json!(setup.path)),
        ("role(0x3)", json!(role)),
        ("cost(0x4)", json!(setup.cost)),
        ("hop(0x5)", json!(setup.hop.map(|Hop(id)| id))),
    ] {
        if !value.is_null() {
            fields[name] = value;
        }
    }
    fields
}

fn preference_fields(prefs: &Preferences) -> Value {
    json!({
        "priority": prefs.priority, "max_age_ms": prefs.max_age_ms,
        "start_group": prefs.start, "end_group": prefs.end,
        "start_frame": prefs.frame_start, "end_frame": prefs.frame_end,
    })
}
