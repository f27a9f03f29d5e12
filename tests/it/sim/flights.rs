//! Streams that were written whole and ended at once, to viewers that are slow to acknowledge them:
//! they are reset when they are past their age or evicted, and outlive their subscription.

use corelay::config::Limits;
use corelay::name::TrackName;
use corelay::session::streams::{Dir, ReadEnd, StreamId};
use corelay::wire::code::stream as code;
use corelay::wire::lite::data::{FrameHeader, GroupHeader};
use corelay::wire::lite::kind;
use corelay::wire::lite::subscribe::{Preferences, Subscribe};
use corelay::wire::put_varint;
use corelay::wire::version::Version::Lite06;

use super::fake::{Sessions, announce, describe};

/// Milliseconds between groups; `describe` keeps them for 500.
const STEP_MS: u64 = 100;

/// A publisher, and a viewer that acknowledges.
pub(super) struct Scene {
    pub(super) sessions: Sessions,
    publisher: usize,
    pub(super) prompt: usize,
    /// Its request.
    pub(super) request: StreamId,
    next: u64,
}

pub(super) fn preferences(max_age_ms: u64) -> Preferences {
    Preferences { max_age_ms, start: Some(0), ..Preferences::default() }
}

impl Scene {
    pub(super) fn new(limits: &Limits) -> Self {
        let mut sessions = Sessions::new(limits);
        let publisher = sessions.greet(Lite06);
        let prompt = sessions.greet(Lite06);
        announce(&mut sessions, publisher, Lite06, "room/a");
        let request = StreamId(0);
        let mut scene = Self { sessions, publisher, prompt, request, next: 0 };
        scene.request = scene.subscribe(prompt, 0, 9999);
        describe(&mut scene.sessions, publisher, Lite06);
        scene
    }

    fn subscribe(&mut self, viewer: usize, id: u64, max_age_ms: u64) -> StreamId {
        let (broadcast, track) = (Sessions::path("room/a"), TrackName::new("video"));
        let mut bytes = Vec::new();
        put_varint(&mut bytes, kind::BI_SUBSCRIBE);
        let prefs = preferences(max_age_ms);
        Subscribe { id, broadcast, track, prefs }.encode(Lite06, &mut bytes);
        let stream = self.sessions.say(viewer, Dir::Bi, &bytes, ReadEnd::Blocked);
        self.sessions.settle();
        stream
    }

    /// A viewer that acknowledges nothing.
    fn silent(&mut self, max_age_ms: u64) -> (usize, StreamId) {
        let viewer = self.sessions.greet(Lite06);
        let stream = self.subscribe(viewer, 0, max_age_ms);
        self.sessions.peers.get_mut(&viewer).expect("open").fake.silent = true;
        (viewer, stream)
    }

    /// The next groups, of a frame each.
    pub(super) fn publish(&mut self, count: u64) {
        for _ in 0..count {
            let mut head = [0; 26];
            let header = GroupHeader { subscribe: 0, sequence: self.next, frame_start: 0 };
            let len = header.encode_into(Lite06, &mut head);
            let mut bytes = head[..len].to_vec();
            let mut head = [0; 16];
            let delta = i64::try_from(self.next * STEP_MS).expect("small");
            let len = FrameHeader { delta, size: 9 }.encode_into(&mut head);
            bytes.extend_from_slice(&head[..len]);
            bytes.extend_from_slice(&[7; 9]);
            self.next += 1;
            self.sessions.say(self.publisher, Dir::Uni, &bytes, ReadEnd::Fin);
            self.sessions.pass(STEP_MS);
        }
    }

    /// Codes of the viewer's streams that were reset, in order.
    fn resets(&self, viewer: usize) -> Vec<u64> {
        self.sessions.peers[&viewer].fake.resets.values().copied().collect()
    }

    fn out(&self) -> (usize, usize) {
        let usage = self.sessions.model.usage();
        (usage.flights, usage.cursors)
    }
}

#[test]
fn what_is_not_acknowledged_is_reset_when_it_is_past_its_age() {
    let mut scene = Scene::new(&Limits::default());
    let (silent, _) = scene.silent(9999);
    // A group is 500 ms past its successor when the sixth after it begins. The first is a cursor.
    scene.publish(6);
    assert_eq!((scene.out(), scene.resets(silent)), ((5, 1), vec![]));
    scene.publish(1);
    // The turn that has something to reset opens its group by the walk, which makes a cursor.
    assert_eq!((scene.out(), scene.resets(silent)), ((5, 1), vec![code::OLD]));
    scene.publish(10);
    assert_eq!((scene.out(), scene.resets(silent)), ((0, 6), vec![code::OLD; 11]));
    assert_eq!(scene.resets(scene.prompt), Vec::<u64>::new());
    let charges: Vec<usize> = scene.sessions.model.charges().map(|(_, bytes)| bytes).collect();
    assert_eq!(charges.iter().filter(|bytes| **bytes > 0).count(), 1, "{charges:?}");
    scene.sessions.close(silent);
    assert_eq!((scene.out(), scene.sessions.model.usage().charged), ((0, 0), 0));
}

#[test]
fn an_update_that_shortens_the_age_counts_for_what_is_on_its_way() {
    let mut scene = Scene::new(&Limits::default());
    let (silent, request) = scene.silent(9999);
    scene.publish(6);
    let mut bytes = Vec::new();
    preferences(0).encode_update(Lite06, &mut bytes);
    scene.sessions.more(silent, request, &bytes, ReadEnd::Blocked);
    scene.publish(1);
    assert_eq!(scene.resets(silent), vec![code::OLD]);
}

#[test]
fn what_outlives_its_subscription_is_acknowledged_or_reset_like_the_rest() {
    let mut scene = Scene::new(&Limits::default());
    let (silent, request) = scene.silent(9999);
    scene.publish(4);
    assert_eq!(scene.out(), (3, 1));
    scene.sessions.more(silent, request, &[], ReadEnd::Fin);
    scene.sessions.settle();
    assert_eq!(scene.out(), (0, 4));
    scene.publish(4);
    assert_eq!(scene.resets(silent), vec![code::OLD; 2]);
    let peer = scene.sessions.peers.get_mut(&silent).expect("open");
    peer.fake.silent = false;
    scene.sessions.acknowledge(silent);
    assert_eq!((scene.out(), scene.sessions.model.usage().readers), ((0, 0), 1));
}

#[test]
fn what_must_go_for_its_memory_is_reset_at_once() {
    let limits = Limits { track_groups: 4, ..Limits::default() };
    let mut scene = Scene::new(&limits);
    let (silent, _) = scene.silent(9999);
    scene.publish(4);
    assert_eq!((scene.out(), scene.resets(silent)), ((3, 1), vec![]));
    // The group that needs a place is refused while the oldest is on its way out.
    scene.publish(3);
    let resets = scene.resets(silent);
    assert!(!resets.is_empty() && resets.iter().all(|code| *code == code::EVICTED), "{resets:?}");
    assert!(scene.sessions.model.usage().groups <= 4);
}
