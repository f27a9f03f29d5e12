//! Sizes, limits and codes at their edges, and bytes that mean nothing.

use corelay::name::{Cost, VARINT_MAX};
use corelay::wire::code::{self, Scope, Violation};
use corelay::wire::lite::URI_MAX;
use corelay::wire::version::SUPPORTED;
use corelay::wire::{put_varint, unzigzag, varint_len, write_varint, zigzag};

use super::*;

fn varint(bytes: &[u8]) -> Result<u64, DecodeError> {
    Reader::new(bytes).varint()
}

#[test]
fn varints_of_every_size_are_minimal_and_come_back() {
    let sizes = [
        (0, 1),
        (63, 1),
        (64, 2),
        (16_383, 2),
        (16_384, 4),
        ((1 << 30) - 1, 4),
        (1 << 30, 8),
        (VARINT_MAX, 8),
    ];
    for (value, len) in sizes {
        let mut out = [0xaa; 9];
        assert_eq!(varint_len(value), len);
        assert_eq!(write_varint(&mut out, value), len);
        assert!(out[len..].iter().all(|byte| *byte == 0xaa), "{value} writes past its end");
        assert_eq!(varint(&out[..len]), Ok(value));
        for cut in 0..len {
            assert_eq!(varint(&out[..cut]), Err(DecodeError::Short), "{value} cut at {cut}");
        }
    }
}

#[test]
fn varints_need_not_be_minimal() {
    for bytes in ["05", "4005", "80000005", "c000000000000005"] {
        assert_eq!(varint(&hex(bytes)), Ok(5));
    }
    // 06 GROUP: subscription 0, group 5, every field of two bytes, so is the length.
    let read =
        read(Kind::Group, Version::Lite06, &hex("4006 4000 4005 4000".replace(' ', "").as_str()));
    assert_eq!(read.unwrap().bytes, hex("03000500"));
}

#[test]
fn zigzag_keeps_the_range_of_a_varint() {
    for value in [0, 1, -1, 63, -64, (1 << 61) - 1, -(1 << 61)] {
        assert!(zigzag(value) <= VARINT_MAX);
        assert_eq!(unzigzag(zigzag(value)), value);
    }
    assert_eq!(unzigzag(zigzag(i64::MIN)), i64::MIN);
    assert_eq!(unzigzag(zigzag(i64::MAX)), i64::MAX);
}

#[test]
fn a_length_above_the_limit_is_refused_before_the_body_comes() {
    let too_large = DecodeError::Invalid(What::TooLarge);
    for (max, len) in [(0, 1), (10, 11), (SETUP_MAX, SETUP_MAX as u64 + 1), (10, VARINT_MAX)] {
        let mut prefix = Vec::new();
        put_varint(&mut prefix, len);
        assert_eq!(wire::message(&prefix, max), Err(too_large), "{len} bytes");
        for typed in [Vec::from([0]), hex("4000")] {
            let buf = [&typed, &prefix[..]].concat();
            let announce = Announce::decode(&buf, Version::Lite06, max);
            assert_eq!(announce.map(|_| ()), Err(too_large), "{len} bytes");
            let response = Response::decode(&buf, Version::Lite06, max);
            assert_eq!(response.map(|_| ()), Err(too_large), "{len} bytes");
        }
    }
    assert_eq!(wire::message(&[10], 10), Err(DecodeError::Short));
    for version in SUPPORTED {
        assert_eq!(read(Kind::Group, *version, &[25]).map(|_| ()), Err(too_large));
        assert_eq!(read(Kind::Group, *version, &[24]).map(|_| ()), Err(DecodeError::Short));
    }
}

#[test]
fn a_field_longer_than_its_message_is_invalid_and_takes_no_memory() {
    let truncated = Err(DecodeError::Invalid(What::Truncated));
    // A track name and a uri of 2^62 - 1 bytes.
    let track = hex("0a0161ffffffffffffffff");
    assert_eq!(read(Kind::Track, Version::Lite06, &track).map(|_| ()), truncated);
    let uri = hex("08ffffffffffffffff");
    assert_eq!(read(Kind::Goaway, Version::Lite06, &uri).map(|_| ()), truncated);
    // The same field at the end of a stream's buffer waits instead.
    assert_eq!(Reader::new(&uri[1..]).string(), Err(DecodeError::Short));
    // A chain of 2^62 - 1 hops.
    let chain = hex("0a0100ffffffffffffffff");
    let hops = DecodeError::Invalid(What::TooManyHops);
    assert_eq!(read(Kind::Announce, Version::Lite05, &chain).map(|_| ()), Err(hops));
}

#[test]
fn a_uri_of_8192_bytes_is_the_longest() {
    for (len, ok) in [(URI_MAX, true), (URI_MAX + 1, false)] {
        let uri = "u".repeat(len);
        let mut out = Vec::new();
        Goaway { uri: &uri }.encode(&mut out);
        assert_eq!(read(Kind::Goaway, Version::Lite05, &out).is_ok(), ok);
    }
}

#[test]
fn an_unknown_announce_type_is_passed_over_and_an_unknown_response_is_not() {
    let unknown = hex("0403aabbcc");
    let passed = Announce::decode(&unknown, Version::Lite06, MESSAGE_MAX);
    assert_eq!(passed, Ok((Announce::Unknown, 5)));
    let refused = Response::decode(&unknown, Version::Lite06, MESSAGE_MAX);
    assert_eq!(refused, Err(DecodeError::Invalid(What::Kind)));
    let status = Announce::decode(&hex("03030000"), Version::Lite05, MESSAGE_MAX);
    assert_eq!(status, Err(DecodeError::Invalid(What::Status)));
}

#[test]
fn the_largest_group_number_survives_an_optional_field() {
    let prefs = Preferences { start: Some(VARINT_MAX), ..Default::default() };
    let mut out = Vec::new();
    prefs.encode_update(Version::Lite05, &mut out);
    let read = read(Kind::SubscribeUpdate, Version::Lite05, &out).unwrap();
    assert_eq!(read.fields["start_group"], json!(VARINT_MAX - 1));
}

#[test]
fn prices_are_clamped_to_a_varint() {
    let cost = Cost { warm: u64::MAX, cold: VARINT_MAX };
    let mut out = Vec::new();
    Announce::Update { id: 0, hops: Hops::default(), cost }.encode(Version::Lite06, &mut out);
    let read = read(Kind::Announce, Version::Lite06, &out).unwrap();
    assert_eq!(read.fields["cost"], json!({ "warm": VARINT_MAX, "cold": VARINT_MAX }));
}

#[test]
fn a_printed_setup_does_not_show_the_query() {
    let setup = Setup { path: Some("/room?jwt=secret".to_owned()), ..Setup::default() };
    let printed = format!("{setup:?} {setup:#?}");
    assert!(printed.contains("/room"));
    assert!(!printed.contains("jwt") && !printed.contains("secret"));
}

#[test]
fn versions_are_found_by_name_and_alpn() {
    for version in SUPPORTED {
        assert_eq!(Version::parse(version.name()), Some(*version));
        assert_eq!(Version::from_alpn(version.alpn()), Some(*version));
    }
    assert_eq!(SUPPORTED.first().map(|version| version.alpn()), Some(&b"moq-lite-06"[..]));
    assert_eq!(Version::parse("moq-lite-07-wip"), None);
    assert_eq!(Version::from_alpn(b"moq-lite-06-wip"), None);
}

#[test]
fn stream_codes_come_back_from_the_http3_range() {
    let mut last = None;
    for plain in (0..10_000).chain([u64::from(u32::MAX) - 1, u64::from(u32::MAX)]) {
        let mapped = code::map(plain);
        assert!(last < Some(mapped), "{plain} is not mapped in order");
        // RFC 9114 8.1: reserved codes have the form 0x1f * N + 0x21.
        assert_ne!((mapped - 0x21) % 0x1f, 0, "{plain} is mapped to a reserved code");
        assert_eq!(code::unmap(mapped), plain);
        last = Some(mapped);
    }
    assert_eq!(code::map(0x36), 0x52e4_a40f_a912);
    assert_eq!(code::map(1), 0x52e4_a40f_a8dc);
}

#[test]
fn codes_outside_the_http3_range_stand_for_themselves() {
    let (first, last) = (code::map(0), code::map(u64::from(u32::MAX)));
    for plain in [0, 1, 0x47, 10_000, first - 1, last + 1, VARINT_MAX] {
        assert_eq!(code::unmap(plain), plain);
    }
    assert_eq!(code::unmap(code::map(0x1d) + 1), code::stream::INTERNAL);
    assert_eq!(code::map(VARINT_MAX), last);
}

#[test]
fn violations_end_what_they_break() {
    let wanted = [
        (Violation::SecondSetup, Scope::Session, 0x3),
        (Violation::AnnounceReset, Scope::Session, 0x1),
        (Violation::SetupTimeout, Scope::Session, 0x11),
        (Violation::RequestMalformed, Scope::Stream, 0x1),
        (Violation::RequestTrailing, Scope::Stream, 0x12),
        (Violation::UpdateMalformed, Scope::Stream, 0x12),
        (Violation::GroupTruncated, Scope::Stream, 0x37),
        (Violation::FrameTooLarge, Scope::Stream, 0x38),
        (Violation::TooManyFrames, Scope::Stream, 0x32),
    ];
    for (violation, scope, code) in wanted {
        assert_eq!((violation.scope(), violation.code()), (scope, code), "{}", violation.as_str());
    }
}

/// Bytes without meaning: of three lengths, and of three ranges so that inner lengths are often
/// right.
fn noise(state: &mut u64, out: &mut Vec<u8>) {
    let mut next = |bound: u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) % bound
    };
    out.clear();
    let mut one_of = |choices: [u64; 3]| choices[usize::try_from(next(3)).unwrap()];
    let (len, range) = (one_of([4, 16, 64]), one_of([3, 16, 256]));
    for _ in 0..next(len) {
        out.push(u8::try_from(next(range)).unwrap());
    }
}

#[test]
fn no_bytes_make_a_decoder_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::new();
    for kind in KINDS {
        for version in SUPPORTED {
            let mut decoded = 0;
            for _ in 0..10_000 {
                noise(&mut state, &mut bytes);
                check_noise(kind, *version, &bytes, &mut decoded);
                // The same bytes as the body of a complete message.
                if let Some(varints) = kind.prefix(*version) {
                    let mut framed = vec![0; varints];
                    put_varint(&mut framed, bytes.len() as u64);
                    framed.extend_from_slice(&bytes);
                    check_noise(kind, *version, &framed, &mut decoded);
                }
            }
            assert!(decoded > 0, "nothing decodes as {kind:?}");
        }
    }
}

/// Whatever decodes must encode to something that decodes alike.
fn check_noise(kind: Kind, version: Version, bytes: &[u8], decoded: &mut usize) {
    let Ok(found) = read(kind, version, bytes) else { return };
    *decoded += 1;
    assert!(found.used <= bytes.len());
    if found.bytes.is_empty() {
        return;
    }
    let again = read(kind, version, &found.bytes).unwrap();
    assert_eq!((&again.fields, &again.bytes), (&found.fields, &found.bytes), "{kind:?} {bytes:x?}");
}
