//! Recorded bytes of other implementations: decoded, compared, encoded again, cut everywhere.

use std::collections::BTreeMap;

use corelay::name::{Path, TrackName};
use corelay::wire::lite::data::GroupHeader;
use corelay::wire::lite::subscribe::{Preferences, Subscribe};

use super::*;

const FRAMES: &str = "FRAMES (group stream body or FETCH response)";
const ANNOUNCES: &str = "announce stream after ANNOUNCE_OK (cost 0/0)";

fn vectors() -> Vec<Value> {
    serde_json::from_str(include_str!("../../vectors/lite.json")).unwrap()
}

fn text<'a>(vector: &'a Value, key: &str) -> &'a str {
    vector[key].as_str().unwrap_or_else(|| panic!("{vector} has no {key}"))
}

fn version(vector: &Value) -> Version {
    Version::parse(text(vector, "version")).unwrap()
}

/// The kind of message that a vector holds, by its name there: a closed list.
fn kind(name: &str) -> Kind {
    if let Some(stream) = name.strip_prefix("STREAM_TYPE.") {
        assert!(stream_type(stream) <= 6);
        return Kind::Varint;
    }
    match name {
        "varint" | "any message" => Kind::Varint,
        "varint.zigzag" => Kind::Zigzag,
        "SETUP" => Kind::Setup,
        "GOAWAY" => Kind::Goaway,
        "PROBE" => Kind::Probe,
        "ANNOUNCE_REQUEST" => Kind::AnnounceRequest,
        "ANNOUNCE_OK" => Kind::AnnounceOk,
        "ANNOUNCE"
        | "ANNOUNCE_*"
        | "ANNOUNCE(active)"
        | "ANNOUNCE(ended)"
        | "ANNOUNCE active"
        | "ANNOUNCE ended"
        | "ANNOUNCE(status 2 = restart)"
        | "ANNOUNCE_START"
        | "ANNOUNCE_END"
        | "ANNOUNCE_UPDATE"
        | "ANNOUNCE_UPDATE(RESTART)"
        | ANNOUNCES => Kind::Announce,
        "SUBSCRIBE" => Kind::Subscribe,
        "SUBSCRIBE_UPDATE" => Kind::SubscribeUpdate,
        "SUBSCRIBE_START" | "SUBSCRIBE_END" | "SUBSCRIBE_DROP" => Kind::Response,
        "TRACK" => Kind::Track,
        "TRACK_INFO" => Kind::TrackInfo,
        "FETCH" => Kind::Fetch,
        "GROUP" | "GROUP(with stream type)" => Kind::Group,
        "FRAME" | FRAMES => Kind::Frame,
        "DATAGRAM" => Kind::Datagram,
        other => panic!("no decoder is named for {other}"),
    }
}

fn stream_type(name: &str) -> u64 {
    use corelay::wire::lite::kind as types;
    match name {
        "bi.Session" => 0,
        "bi.Announce" => types::BI_ANNOUNCE,
        "bi.Subscribe" => types::BI_SUBSCRIBE,
        "bi.Fetch" => types::BI_FETCH,
        "bi.Probe" => types::BI_PROBE,
        "bi.Goaway" => types::BI_GOAWAY,
        "bi.Track" => types::BI_TRACK,
        "uni.Group" => types::UNI_GROUP,
        "uni.Setup" => types::UNI_SETUP,
        other => panic!("no stream type is named {other}"),
    }
}

/// The bytes of a vector from where its decoder starts: a group's stream type is not its business.
fn bytes(vector: &Value) -> Vec<u8> {
    let mut bytes = hex(text(vector, "hex"));
    if text(vector, "message") == "GROUP(with stream type)" {
        assert_eq!(bytes.remove(0), 0);
    }
    bytes
}

#[test]
fn every_vector_is_covered() {
    let mut counts: BTreeMap<(String, Kind), usize> = BTreeMap::new();
    let mut all = 0;
    for vector in vectors() {
        let (class, name) = (text(&vector, "kind"), text(&vector, "message"));
        // The message that later versions dropped: there is nothing to encode.
        if name != "SUBSCRIBE_OK" {
            *counts.entry((class.to_owned(), kind(name))).or_default() += 1;
        }
        all += 1;
    }
    assert_eq!(all, 416);
    assert_eq!(counts.values().sum::<usize>() + 2, all);
    for kind in KINDS {
        let sum: usize = counts.iter().filter(|(key, _)| key.1 == kind).map(|(_, n)| n).sum();
        assert!(sum > 0, "no vector holds a {kind:?}");
    }
    let classes: Vec<&str> = counts.keys().map(|key| key.0.as_str()).collect();
    for class in ["codec", "decode_error", "decode_ok", "encode_error", "session"] {
        assert!(classes.contains(&class), "no vector is a {class}");
    }
}

#[test]
fn recorded_messages_decode_and_encode_to_the_same_bytes() {
    let mut checked = 0;
    for vector in vectors() {
        if !matches!(text(&vector, "kind"), "codec" | "session") {
            continue;
        }
        match text(&vector, "message") {
            FRAMES => check_frames(&vector),
            ANNOUNCES => check_announces(&vector),
            _ => check_message(&vector),
        }
        checked += 1;
    }
    assert_eq!(checked, 374);
}

fn check_message(vector: &Value) {
    let (kind, version, bytes) = (kind(text(vector, "message")), version(vector), bytes(vector));
    let read = read(kind, version, &bytes).unwrap_or_else(|error| panic!("{vector}: {error:?}"));
    let payload = if kind == Kind::Frame { number(&read.fields["size"]) } else { 0 };
    assert_eq!(read.used + payload, bytes.len(), "{vector}");
    compare(vector, version, &read.fields);
    check_encoding(vector, kind, version, &bytes[..read.used], &read);
    check_cuts(vector, kind, version, &bytes[..read.used]);
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

fn check_encoding(vector: &Value, kind: Kind, version: Version, bytes: &[u8], read: &Read) {
    // The hops of an ended route mean nothing and are not kept; one vector has some.
    let hops =
        text(vector, "message") == "ANNOUNCE(ended)" && vector["fields"]["hops"] != json!([]);
    if kind == Kind::Setup || hops {
        assert_eq!(hops, text(vector, "id") == "c0359", "{vector}");
        assert_eq!(read.bytes.len() + usize::from(hops), bytes.len(), "{vector}");
        let again = super::read(kind, version, &read.bytes).unwrap();
        assert_eq!(again.fields, read.fields, "{vector}");
        assert_eq!(again.bytes, read.bytes, "{vector}");
        return;
    }
    assert_eq!(read.bytes, bytes, "{vector}");
}

/// A message that is cut waits for more; one whose body is cut, and whose length says so, is
/// invalid.
fn check_cuts(vector: &Value, kind: Kind, version: Version, bytes: &[u8]) {
    let head = if kind == Kind::Datagram { datagram_head(bytes) } else { bytes.len() };
    for cut in 0..head {
        let short = match kind {
            Kind::Datagram => DecodeError::Invalid(What::Truncated),
            _ => DecodeError::Short,
        };
        assert_eq!(read(kind, version, &bytes[..cut]), Err(short), "{vector} cut at {cut}");
    }
    let Some(varints) = kind.prefix(version) else { return };
    let mut reader = Reader::new(bytes);
    for _ in 0..varints {
        reader.varint().unwrap();
    }
    let lead = &bytes[..reader.position()];
    let (body, _) = wire::message(reader.rest(), MESSAGE_MAX).unwrap();
    for cut in 0..body.len() {
        let mut framed = lead.to_vec();
        wire::put_varint(&mut framed, cut as u64);
        framed.extend_from_slice(&body[..cut]);
        match read(kind, version, &framed) {
            Err(DecodeError::Invalid(_)) => {}
            other => panic!("{vector} with a body of {cut} bytes: {other:?}"),
        }
    }
    let mut longer = lead.to_vec();
    wire::put_varint(&mut longer, body.len() as u64 + 1);
    longer.extend_from_slice(body);
    longer.push(0);
    // One byte more is refused, by whichever field would have to hold it.
    assert!(matches!(read(kind, version, &longer), Err(DecodeError::Invalid(_))), "{vector}");
}

fn datagram_head(bytes: &[u8]) -> usize {
    let mut reader = Reader::new(bytes);
    for _ in 0..3 {
        reader.varint().unwrap();
    }
    reader.position()
}

/// Compares decoded fields with those of a vector: a structure, or the other side's debug text.
fn compare(vector: &Value, version: Version, ours: &Value) {
    if let Some(said) = vector["fields"].as_str() {
        for fragment in fragments(ours) {
            assert!(said.contains(&fragment), "{vector}: {fragment} is not in {said}");
        }
        return;
    }
    let name = text(vector, "message");
    for (key, theirs) in vector["fields"].as_object().unwrap() {
        let wanted = match key.as_str() {
            "note" => continue,
            "params" => {
                assert_eq!(ours, &json!({}), "{vector}");
                continue;
            }
            "hops" if name == "ANNOUNCE(ended)" => continue,
            // A floor of zero is no floor.
            "start_group" if version.start_is_floor() && theirs.is_null() => json!(0),
            // A measured zero travels as one.
            "bitrate" | "rtt_ms" if *theirs == json!(0) => json!(1),
            _ => theirs.clone(),
        };
        assert_eq!(ours[key], wanted, "{key} of {vector}");
    }
    if name == "SETUP" {
        let theirs = vector["fields"].as_object().unwrap();
        let params = theirs.keys().filter(|key| key.contains("(0x")).count();
        assert_eq!(ours.as_object().unwrap().len(), params, "{vector}");
    }
    if let Some(stream) = name.strip_prefix("STREAM_TYPE.") {
        assert_eq!(ours["type"], json!(stream_type(stream)));
    }
}

/// What the other side's debug text must say, given our fields.
fn fragments(ours: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in ours.as_object().unwrap() {
        match (key.as_str(), value) {
            ("delta" | "size", value) => found.push(format!("{key}={value}")),
            ("broadcast" | "prefix", value) => found.push(format!("{key}: Path({value})")),
            ("suffix", value) => found.push(format!("Path({value})")),
            ("track" | "uri", value) => found.push(format!("{key}: {value}")),
            ("hop", value) => found.push(format!("Hop {{ id: {value} }}")),
            ("hops", Value::Array(ids)) => {
                let ids: Vec<String> = ids.iter().map(|id| format!("Hop {{ id: {id} }}")).collect();
                found.push(format!("Hops([{}])", ids.join(", ")));
            }
            ("cost", cost) => {
                found.push(format!("warm: {}, cold: {}", cost["warm"], cost["cold"]));
            }
            ("path(0x2)", value) => found.push(format!("path: Some({value})")),
            ("cost(0x4)", value) => found.push(format!("cost: Some({value})")),
            ("hop(0x5)", value) => found.push(format!("hop: Some(Hop {{ id: {value} }})")),
            ("role(0x3)", value) => {
                let role = if *value == json!(1) { "Publisher" } else { "Subscriber" };
                found.push(format!("role: Some({role})"));
            }
            ("end_group" | "bitrate", Value::Number(n)) => found.push(format!("{key}: Some({n})")),
            (
                "id" | "group" | "subscribe" | "sequence" | "frame_start" | "active" | "priority"
                | "start_frame" | "exclude_hop",
                value,
            ) => found.push(format!("{key}: {value}")),
            _ => {}
        }
    }
    assert!(!found.is_empty(), "nothing to compare in {ours}");
    found
}

fn check_frames(vector: &Value) {
    let bytes = bytes(vector);
    let mut at = 0;
    let mut timestamp = 0;
    for frame in vector["fields"]["frames"].as_array().unwrap() {
        let read = read(Kind::Frame, version(vector), &bytes[at..]).unwrap();
        assert_eq!(read.fields["delta"], frame["delta"]);
        assert_eq!(read.bytes, bytes[at..at + read.used]);
        check_cuts(vector, Kind::Frame, version(vector), &bytes[at..at + read.used]);
        timestamp += read.fields["delta"].as_i64().unwrap();
        assert_eq!(json!(timestamp), frame["timestamp"]);
        at += read.used;
        let payload = text(frame, "payload").as_bytes();
        assert_eq!(number(&read.fields["size"]), payload.len());
        assert_eq!(bytes[at..at + payload.len()], *payload);
        at += payload.len();
    }
    assert_eq!(at, bytes.len());
}

fn check_announces(vector: &Value) {
    let bytes = bytes(vector);
    let mut at = 0;
    for told in vector["fields"]["announcements"].as_array().unwrap() {
        let read = read(Kind::Announce, version(vector), &bytes[at..]).unwrap();
        let (name, theirs) = told.as_object().unwrap().iter().next().unwrap();
        let theirs = if theirs.is_object() { theirs.clone() } else { json!({ "id": theirs }) };
        for (key, value) in theirs.as_object().unwrap() {
            assert_eq!(read.fields[key], *value, "{name} of {vector}");
        }
        assert_eq!(read.bytes, bytes[at..at + read.used]);
        check_cuts(vector, Kind::Announce, version(vector), &bytes[at..at + read.used]);
        at += read.used;
    }
    assert_eq!(at, bytes.len());
}

#[test]
fn odd_but_legal_messages_decode() {
    let mut checked = 0;
    for vector in vectors().iter().filter(|vector| text(vector, "kind") == "decode_ok") {
        let (kind, bytes) = (kind(text(vector, "message")), bytes(vector));
        let read = read(kind, version(vector), &bytes).unwrap();
        assert_eq!(read.used, bytes.len(), "{vector}");
        let said = text(&vector["verdict"], "decoded");
        match kind {
            Kind::Varint => assert_eq!(read.fields["value"].to_string(), said),
            Kind::Setup if said.contains("Increase") => {
                assert_eq!(read.fields, json!({ "probe(0x1)": 2 }));
            }
            Kind::Setup => assert_eq!(read.fields, json!({}), "{vector}"),
            Kind::Announce if said == "Skipped" => assert_eq!(read.fields, json!({})),
            Kind::Announce => {
                let ids = read.fields["hops"].as_array().unwrap();
                assert_eq!(ids.len(), said.matches("Hop {").count(), "{vector}");
                let suffix = format!("Path({})", read.fields["suffix"]);
                assert!(said.contains(&suffix), "{vector}");
            }
            Kind::Subscribe => assert_eq!(read.fields["broadcast"], json!("a")),
            other => panic!("no expectation for {other:?}"),
        }
        checked += 1;
    }
    assert_eq!(checked, 14);
}

#[test]
fn refused_messages_are_refused_for_the_same_reason() {
    let mut checked = 0;
    for vector in vectors().iter().filter(|vector| text(vector, "kind") == "decode_error") {
        let (name, version, mut bytes) = (text(vector, "message"), version(vector), bytes(vector));
        if vector["hex_truncated"] == json!(true) {
            let len = Reader::new(&bytes).varint().unwrap();
            bytes.resize(usize::try_from(len).unwrap() + 2, b'a');
        }
        let error = match name {
            "any message" => wire::message(&bytes, MESSAGE_MAX).unwrap_err(),
            _ => read(kind(name), version, &bytes).unwrap_err(),
        };
        let DecodeError::Invalid(what) = error else {
            assert_eq!(text(&vector["verdict"], "error"), "Short", "{vector}");
            checked += 1;
            continue;
        };
        let said = match what {
            What::Trailing => "Long",
            What::Duplicate => "Duplicate",
            What::TooMany => "TooMany",
            What::TooManyHops | What::TooManySegments => "BoundsExceeded",
            What::FrameBounds => "InvalidSubscribeLocation",
            What::TooLarge if name == "any message" => "MessageTooLarge",
            What::Utf8 | What::RepeatedHop | What::Timescale | What::TooLarge => "InvalidValue",
            other => panic!("{vector}: {other:?}"),
        };
        assert!(text(&vector["verdict"], "error").starts_with(said), "{vector}: {what:?}");
        checked += 1;
    }
    assert_eq!(checked, 23);
}

#[test]
fn what_a_version_cannot_say_does_not_fit_it() {
    let mut checked = 0;
    for vector in vectors().iter().filter(|vector| text(vector, "kind") == "encode_error") {
        let version = version(vector);
        match text(vector, "message") {
            "GROUP" => {
                let header = GroupHeader { subscribe: 0, sequence: 0, frame_start: 1 };
                assert!(!header.fits(version));
                assert!(header.fits(Version::Lite06));
            }
            "SUBSCRIBE" => {
                let prefs = Preferences { end: Some(1), frame_end: Some(0), ..Default::default() };
                assert!(!prefs.fits(version));
                assert!(!Preferences { frame_start: 1, ..Default::default() }.fits(version));
                assert!(prefs.fits(Version::Lite06));
                assert_eq!(widened(prefs, version), Preferences { frame_end: None, ..prefs });
            }
            // No version here has the message, and there is no codec for it.
            "SUBSCRIBE_OK" => {}
            other => panic!("no expectation for {other}"),
        }
        checked += 1;
    }
    assert_eq!(checked, 5);
}

/// What the other side reads of preferences that say too much.
fn widened(prefs: Preferences, version: Version) -> Preferences {
    let (broadcast, track) = (Path::parse("a").unwrap(), TrackName::new("v"));
    let mut out = Vec::new();
    Subscribe { id: 0, broadcast, track, prefs }.encode(version, &mut out);
    let (body, _) = wire::message(&out, MESSAGE_MAX).unwrap();
    Subscribe::decode(body, version).unwrap().prefs
}
