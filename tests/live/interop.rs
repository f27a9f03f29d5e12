//! The official client library as publisher and viewer, through the program.
//!
//! Every viewer compares every byte. `LIVE_VIEWERS` and `LIVE_SECONDS` make the paced tests larger
//! than the suite has time for.

use std::sync::Arc;
use std::time::Duration;

use moq_net::announce::{self, Kind};
use moq_net::{StreamError, group, origin, track};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::client::{
    Dial, FRAME_BYTES, FRAMES, LITE_05, LITE_06, MAX_AGE, Publisher, RATE, Seen, bare, close_of,
    read_end, say_setup, say_subscribe,
};
use crate::relay::{Relay, within};

const NAME: &str = "room/cam";

fn size(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Publishes at 60 frames a second to viewers that were there before, until the track ends.
async fn play(publisher: &str, viewers: &str) {
    let (count, seconds) = (size("LIVE_VIEWERS", 8), size("LIVE_SECONDS", 5));
    let groups = seconds * RATE / FRAMES;
    let relay = Relay::start(&[]);
    let publisher = Dial::new(&relay, publisher).publish(NAME, 0).await;
    let ready = Arc::new(Barrier::new(usize::try_from(count).expect("a size") + 1));
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let (dial, ready) = (Dial::new(&relay, viewers), Arc::clone(&ready));
        tasks.spawn(async move {
            let viewer = dial.watch().await;
            let mut track = viewer.subscribe(NAME, MAX_AGE).await;
            ready.wait().await;
            let mut seen = Seen::default();
            seen.read_all(&mut track, 0).await.expect("the track ends, it does not break");
            let end = within("the track's end", track.finished()).await.expect("an end");
            (seen, end)
        });
    }
    within("every viewer subscribing", ready.wait()).await;
    publisher.play(groups).await;
    publisher.track.finish().expect("the track is open");
    let mut frames = 0;
    while let Some(viewer) = within("the viewers ending", tasks.join_next()).await {
        let (mut seen, end) = viewer.expect("the viewer saw what was sent");
        assert_eq!(end, groups);
        // To a viewer that fell behind, the newest group is sent first.
        seen.groups.sort_unstable();
        // A subscription of lite-05 begins with the group that it finds.
        let first = if viewers == LITE_05 { seen.groups[0] } else { 0 };
        assert!(seen.groups.iter().copied().eq(first..groups), "groups {:?}", seen.groups);
        assert_eq!(seen.frames, (groups - first) * FRAMES);
        frames += seen.frames;
    }
    eprintln!("{count} viewers compared {frames} frames, {} bytes", frames * FRAME_BYTES);
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_lite_05_get_every_byte_from_a_publisher_of_lite_05() {
    play(LITE_05, LITE_05).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_lite_06_get_every_byte_from_a_publisher_of_lite_06() {
    play(LITE_06, LITE_06).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_lite_06_get_every_byte_from_a_publisher_of_lite_05() {
    play(LITE_05, LITE_06).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_lite_05_get_every_byte_from_a_publisher_of_lite_06() {
    play(LITE_06, LITE_05).await;
}

pub(crate) async fn next_kind(announced: &mut announce::Consumer) -> Kind {
    within("an announcement", announced.next()).await.expect("the session lives").kind
}

/// Two whole groups and the beginning of a third.
async fn publish_two_and_a_bit(relay: &Relay) -> (Publisher, group::Producer) {
    let publisher = Dial::new(relay, LITE_06).publish(NAME, 0).await;
    for _ in 0..2 {
        let mut group = publisher.track.append_group().expect("the track is open");
        publisher.write(&mut group, 0..FRAMES);
        group.finish().expect("the group is open");
    }
    let mut open = publisher.track.append_group().expect("the track is open");
    publisher.write(&mut open, 0..10);
    (publisher, open)
}

/// Reads the groups of `cached` and up to frame 10 of group 2, in whatever order they come.
async fn catch_up(track: &mut track::Subscriber, cached: &[u64]) -> group::Consumer {
    let (mut seen, mut open) = (Seen::default(), None);
    while seen.groups.len() < cached.len() || open.is_none() {
        let group = within("a cached group", track.recv_group()).await;
        let mut group = group.expect("the track works").expect("it is not over");
        let until = if group.sequence == 2 { 10 } else { u64::MAX };
        seen.read(&mut group, 0, until).await.expect("the group works");
        if group.sequence == 2 {
            open = Some(group);
        }
    }
    seen.groups.sort_unstable();
    assert_eq!(seen.groups, cached);
    open.expect("the loop ended")
}

/// Reads the rest of group 2, and that nothing else comes before the track ends.
async fn finish(mut track: track::Subscriber, mut open: group::Consumer) {
    let mut seen = Seen::default();
    seen.read(&mut open, 0, u64::MAX).await.expect("the rest of the group");
    seen.read_all(&mut track, 0).await.expect("the track ends");
    assert_eq!((seen.groups, seen.frames), (vec![2], FRAMES - 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_viewer_of_lite_06_gets_what_its_age_allows() {
    let relay = Relay::start(&[]);
    let (publisher, mut open) = publish_two_and_a_bit(&relay).await;
    let cases = [
        // The first is the one that has the relay fetch them.
        (LITE_06, MAX_AGE, &[0, 1][..]),
        (LITE_06, MAX_AGE, &[0, 1]),
        (LITE_06, Duration::ZERO, &[]),
        (LITE_05, MAX_AGE, &[]),
    ];
    let mut viewers = Vec::new();
    for (version, max_age, cached) in cases {
        let viewer = Dial::new(&relay, version).watch().await;
        let mut track = viewer.subscribe(NAME, max_age).await;
        let group = catch_up(&mut track, cached).await;
        viewers.push((viewer, track, group));
    }
    publisher.write(&mut open, 10..FRAMES);
    open.finish().expect("the group is open");
    publisher.track.finish().expect("the track is open");
    for (_viewer, track, group) in viewers {
        finish(track, group).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_see_announcements_come_and_go() {
    let relay = Relay::start(&[]);
    for (publisher, viewer) in [(LITE_05, LITE_06), (LITE_06, LITE_05)] {
        let publisher = Dial::new(&relay, publisher).publish(NAME, 0).await;
        let viewer = Dial::new(&relay, viewer).watch().await;
        let mut announced = viewer.origin.consume().announced();
        let first = within("an announcement", announced.next()).await.expect("the session lives");
        assert_eq!((first.prefix.as_str(), first.kind), (NAME, Kind::Announced));
        publisher.broadcast.unannounce();
        assert_eq!(next_kind(&mut announced).await, Kind::Retracted);
        publisher.broadcast.announce(origin::Route::default()).expect("announced");
        assert_eq!(next_kind(&mut announced).await, Kind::Announced);
        drop(publisher);
        assert_eq!(next_kind(&mut announced).await, Kind::Retracted);
    }
}

/// Below one root, names are relative to it; beside it, nothing is seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_root_holds_what_is_below_it() {
    let relay = Relay::start(&[]);
    let publisher = Dial::at(&relay, "club/room", LITE_06).publish("cam", 0).await;
    let outside = Dial::at(&relay, "other", LITE_06).publish("cam", 0).await;
    let viewer = Dial::at(&relay, "club", LITE_05).watch().await;
    let mut announced = viewer.origin.consume().announced();
    let first = within("an announcement", announced.next()).await.expect("the session lives");
    assert_eq!(first.prefix.as_str(), "room/cam");
    drop((outside, publisher));
    let last = within("an announcement", announced.next()).await.expect("the session lives");
    assert_eq!((last.prefix.as_str(), last.kind), ("room/cam", Kind::Retracted));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_track_that_its_broadcast_lacks_is_refused() {
    let relay = Relay::start(&[]);
    for version in [LITE_05, LITE_06] {
        let _publisher = Dial::new(&relay, LITE_06).publish(NAME, 0).await;
        let viewer = Dial::new(&relay, version).watch().await;
        let consumer = viewer.origin.consume();
        let source = within("waiting for the broadcast", consumer.routed_broadcast(NAME)).await;
        let track = source.expect("a broadcast").track("sound").expect("a track");
        let refused = within("the refusal", track.subscribe(track::Subscription::default())).await;
        match refused {
            Ok(_) => panic!("a track that nobody has was subscribed to"),
            Err(error) => assert_eq!(error.stream(), Some(&StreamError::NotFound)),
        }
        assert!(viewer.connection.connected());
    }
}

/// A library does not ask for what was not announced, so this does.
#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_that_nobody_announced_is_refused() {
    const UNROUTABLE: u64 = 0x36;
    let relay = Relay::start(&[]);
    for version in [LITE_05, LITE_06] {
        let (_endpoint, connection) = bare(&relay, version).await;
        say_setup(&connection, "/").await;
        let (_ask, answer) = say_subscribe(&connection, version, "room/alice").await;
        assert_eq!(read_end(answer).await, (vec![], Some(UNROUTABLE)), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_is_not_public_is_refused() {
    let relay = Relay::start(&["--auth-public", "open/**"]);
    for version in [LITE_05, LITE_06] {
        let (_endpoint, connection) = bare(&relay, version).await;
        say_setup(&connection, "/closed").await;
        assert_eq!(close_of(&connection).await.0, 2);
        let dial = Dial::at(&relay, "open", version);
        let publisher = dial.publish(NAME, 0).await;
        let viewer = dial.watch().await;
        let mut announced = viewer.origin.consume().announced();
        assert_eq!(next_kind(&mut announced).await, Kind::Announced);
        drop(publisher);
        assert_eq!(next_kind(&mut announced).await, Kind::Retracted);
    }
}
