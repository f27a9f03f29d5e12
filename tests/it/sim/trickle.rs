//! A viewer whose streams take a few bytes at a time: wherever a write is cut, nothing is lost,
//! repeated or forgotten.

use corelay::config::Limits;
use corelay::name::TrackName;
use corelay::session::streams::{Dir, ReadEnd};
use corelay::wire::lite::data::{FrameHeader, GroupHeader};
use corelay::wire::lite::kind;
use corelay::wire::lite::subscribe::{Preferences, Subscribe};
use corelay::wire::put_varint;
use corelay::wire::version::Version::Lite06;

use super::fake::{Sessions, announce, describe};

/// A group's whole stream: `frames` frames of `size` bytes.
fn group(seq: u64, frames: u64, size: usize) -> Vec<u8> {
    let mut head = [0; 26];
    let header = GroupHeader { subscribe: 0, sequence: seq, frame_start: 0 };
    let len = header.encode_into(Lite06, &mut head);
    let mut bytes = head[..len].to_vec();
    for frame in 0..frames {
        let delta = if frame == 0 { i64::try_from(seq).expect("small") } else { 1 };
        let mut head = [0; 16];
        let len = FrameHeader { delta, size: size as u64 }.encode_into(&mut head);
        bytes.extend_from_slice(&head[..len]);
        bytes.resize(bytes.len() + size, u8::try_from(seq * 16 + frame).expect("small"));
    }
    bytes
}

fn subscribe(sessions: &mut Sessions, viewer: usize, id: u64, frame_start: u64) {
    let (broadcast, track) = (Sessions::path("room/a"), TrackName::new("video"));
    let prefs = Preferences { max_age_ms: 9999, frame_start, ..Preferences::default() };
    let mut bytes = Vec::new();
    put_varint(&mut bytes, kind::BI_SUBSCRIBE);
    Subscribe { id, broadcast, track, prefs }.encode(Lite06, &mut bytes);
    sessions.say(viewer, Dir::Bi, &bytes, ReadEnd::Blocked);
    sessions.settle();
}

/// The streams of the viewer, without the one of SETUP, in order.
fn streams(sessions: &Sessions, viewer: usize) -> Vec<Vec<u8>> {
    let written = &sessions.peers[&viewer].fake.written;
    let groups = written.iter().filter(|(id, bytes)| id.is_uni() && bytes[0] == 0);
    let mut groups: Vec<Vec<u8>> = groups.map(|(_, bytes)| bytes.clone()).collect();
    groups.sort();
    groups
}

/// Two subscriptions, the second from frame 1 of group 0 on; `first` bytes fit at first, then
/// `step` at a time.
fn trickle(first: usize, step: usize) {
    let mut sessions = Sessions::new(&Limits::default());
    let publisher = sessions.greet(Lite06);
    let viewer = sessions.greet(Lite06);
    announce(&mut sessions, publisher, Lite06, "room/a");
    subscribe(&mut sessions, viewer, 0, 0);
    describe(&mut sessions, publisher, Lite06);
    subscribe(&mut sessions, viewer, 1, 1);
    sessions.grant(viewer, first);
    for seq in 0..4 {
        sessions.say(publisher, Dir::Uni, &group(seq, 3, 7), ReadEnd::Fin);
        sessions.settle();
    }
    for _ in 0..600 / step {
        sessions.grant(viewer, step);
    }
    let mut expected: Vec<Vec<u8>> = (0..4).map(|seq| group(seq, 3, 7)).collect();
    for seq in 0..4 {
        let mut bytes = group(seq, 3, 7);
        bytes[2] = 1;
        if seq == 0 {
            // Frame 0 is left out, and frame 1 says its own time.
            bytes.drain(5..14);
            (bytes[4], bytes[5]) = (1, 2);
        }
        expected.push(bytes);
    }
    expected.sort();
    assert_eq!(streams(&sessions, viewer), expected, "{first} bytes, then {step} at a time");
    let usage = sessions.model.usage();
    assert_eq!((usage.cursors, usage.flights), (0, 0), "{first} bytes, then {step} at a time");
}

#[test]
fn streams_that_take_a_few_bytes_at_a_time_lose_none() {
    for first in 0..130 {
        for step in [1, 2, 3, 5, 8, 40, 600] {
            trickle(first, step);
        }
    }
}
