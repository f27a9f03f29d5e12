//! The official client library as publisher and viewer, through the program.
//!
//! Every viewer compares every byte. `LIVE_VIEWERS` and `LIVE_SECONDS` make the paced tests larger
//! than the suite has time for.

use std::sync::Arc;
use std::time::Duration;

use moq_net::announce::{self, Kind};
use moq_net::{Error, StreamError, group, origin, track};
use tokio::sync::{Barrier, mpsc};
use tokio::task::JoinSet;

use crate::client::{
    Dial, FRAME_BYTES, FRAMES, LITE_05, LITE_06, MAX_AGE, Publisher, RATE, Seen, bare, close_of,
    say_setup,
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
        let (seen, end) = viewer.expect("the viewer saw what was sent");
        assert_eq!(end, groups);
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

/// The test below, for the process that it starts.
const KILLED: &str = "interop::a_killed_publisher_is_reset_for_its_viewers_and_can_be_replaced";
const PUBLISH_URL: &str = "LIVE_PUBLISH_URL";
const PUBLISH_SHA256: &str = "LIVE_PUBLISH_SHA256";
const PUBLISH_VERSION: &str = "LIVE_PUBLISH_VERSION";
const PUBLISH_SEED: &str = "LIVE_PUBLISH_SEED";

/// Starts this test binary as a publisher that never ends by itself.
fn publisher_process(dial: &Dial, seed: u64) -> tokio::process::Child {
    tokio::process::Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", KILLED, "--nocapture"])
        .env(PUBLISH_URL, &dial.url)
        .env(PUBLISH_SHA256, &dial.sha256)
        .env(PUBLISH_VERSION, &dial.version)
        .env(PUBLISH_SEED, seed.to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the publisher starts")
}

/// What such a process does.
async fn be_publisher(url: String) {
    let var = |name| std::env::var(name).expect("the parent set it");
    let dial = Dial { url, sha256: var(PUBLISH_SHA256), version: var(PUBLISH_VERSION) };
    let seed = var(PUBLISH_SEED).parse().expect("a number");
    let publisher = dial.publish(NAME, seed).await;
    publisher.track.used().await.expect("a viewer");
    tokio::select! {
        // The relay is gone, and with it the test.
        _ = publisher.connection.closed() => {}
        () = publisher.play(u64::MAX) => {}
    }
}

/// Watches two publishers of one name, one after the other. Says `progress` when it is in the
/// middle of a group, and when the first publisher's broadcast is gone.
async fn watch_both(dial: Dial, progress: mpsc::Sender<()>) -> (Seen, Error) {
    let viewer = dial.watch().await;
    let mut announced = viewer.origin.consume().announced();
    assert_eq!(next_kind(&mut announced).await, Kind::Announced);
    let mut track = viewer.subscribe(NAME, MAX_AGE).await;
    let mut seen = Seen::default();
    let error = match read_and_say(&mut seen, &mut track, &progress).await {
        Ok(()) => panic!("the track of a killed publisher ended as if it were whole"),
        Err(error) => error,
    };
    while next_kind(&mut announced).await != Kind::Retracted {}
    progress.send(()).await.expect("the test listens");
    while next_kind(&mut announced).await != Kind::Announced {}
    let mut track = viewer.subscribe(NAME, MAX_AGE).await;
    let group = within("a group of the successor", track.recv_group()).await;
    let mut group = group.expect("the track works").expect("a group");
    Seen::default().read(&mut group, 2, u64::MAX).await.expect("a whole group");
    (seen, error)
}

async fn read_and_say(
    seen: &mut Seen,
    track: &mut track::Subscriber,
    progress: &mpsc::Sender<()>,
) -> Result<(), Error> {
    while let Some(mut group) = within("waiting for a group", track.recv_group()).await? {
        seen.read(&mut group, 1, FRAMES / 3).await?;
        if seen.groups.len() == 1 {
            progress.send(()).await.expect("the test listens");
        }
        seen.read(&mut group, 1, u64::MAX).await?;
    }
    Ok(())
}

async fn next_kind(announced: &mut announce::Consumer) -> Kind {
    within("an announcement", announced.next()).await.expect("the session lives").kind
}

/// A broadcast of a publisher that was killed in the middle of a group breaks for its viewers, who
/// never take a short group for whole; and its name is free for the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_publisher_is_reset_for_its_viewers_and_can_be_replaced() {
    if let Ok(url) = std::env::var(PUBLISH_URL) {
        be_publisher(url).await;
        return;
    }
    let relay = Relay::start(&["--quic-idle-timeout", "2s"]);
    let mut child = publisher_process(&Dial::new(&relay, LITE_06), 1);
    let (progress, mut said) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    let viewers = [LITE_05, LITE_06, LITE_05, LITE_06];
    for version in viewers {
        tasks.spawn(watch_both(Dial::new(&relay, version), progress.clone()));
    }
    drop(progress);
    for _ in viewers {
        within("the viewers being inside a group", said.recv()).await.expect("no viewer failed");
    }
    child.kill().await.expect("it ran");
    for _ in viewers {
        within("the broadcast going away", said.recv()).await.expect("no viewer failed");
    }
    let _successor = publisher_process(&Dial::new(&relay, LITE_05), 2);
    while let Some(viewer) = within("the viewers ending", tasks.join_next()).await {
        let (seen, error) = viewer.expect("the viewer saw what was sent");
        assert!(!seen.frames.is_multiple_of(FRAMES), "{} frames before {error}", seen.frames);
    }
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

/// The code that the library means by a reset, which it maps as WebTransport does.
fn unmap(code: u64) -> u64 {
    let shifted = code - 0x52e4_a40f_a8db;
    shifted - shifted / 0x1f
}

/// A library does not ask for what was not announced, so this does.
#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_that_nobody_announced_is_refused() {
    const UNROUTABLE: u64 = 0x36;
    let relay = Relay::start(&[]);
    let named = b"\x02\x17\x00\x0aroom/alice\x05video\x07";
    for (version, rest) in
        [(LITE_06, &b"\x47\xd0\x00\x00\x00\x00"[..]), (LITE_05, b"\x00\x47\xd0\x00\x00")]
    {
        let (_endpoint, connection) = bare(&relay, version).await;
        say_setup(&connection, "/").await;
        let (mut ask, mut answer) = connection.open_bi().await.expect("a stream");
        let mut request = [named, rest].concat();
        request[1] = u8::try_from(request.len() - 2).expect("a short request");
        ask.write_all(&request).await.expect("written");
        let refused = within("the refusal", answer.read_to_end(64)).await;
        match refused {
            Err(moq_noq::ReadToEndError::Read(moq_noq::ReadError::Reset(code))) => {
                assert_eq!(unmap(code.into_inner()), UNROUTABLE, "{version}");
            }
            other => panic!("{version}: {other:?}"),
        }
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
