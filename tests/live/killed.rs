//! A publisher whose process is killed in the middle of a group.
//!
//! The publisher is this test binary again, started for one test with an environment that makes it
//! publish: a killed process says nothing, unlike a session that is dropped.

use std::process::Stdio;

use moq_net::announce::Kind;
use moq_net::{Error, track};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use crate::client::{
    Dial, FRAME_BYTES, FRAMES, LITE_05, LITE_06, MAX_AGE, Seen, bare, read_end, read_until,
    say_setup, say_subscribe,
};
use crate::interop::next_kind;
use crate::relay::{Relay, within};

/// The one test here.
const TEST: &str = "killed::a_killed_publisher_is_reset_for_its_viewers_and_can_be_replaced";
const URL: &str = "LIVE_PUBLISH_URL";
const SHA256: &str = "LIVE_PUBLISH_SHA256";
const VERSION: &str = "LIVE_PUBLISH_VERSION";
const SEED: &str = "LIVE_PUBLISH_SEED";

const NAME: &str = "room/cam";
/// Frames of the second group, which never ends.
const PART: u64 = FRAMES / 2;

/// Starts this binary as a publisher that never ends by itself.
fn publisher_process(dial: &Dial, seed: u64) -> Child {
    Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", TEST, "--nocapture"])
        .env(URL, &dial.url)
        .env(SHA256, &dial.sha256)
        .env(VERSION, &dial.version)
        .env(SEED, seed.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the publisher starts")
}

/// What such a process does: one whole group, a part of the next, and then nothing.
async fn be_publisher(url: String) {
    let var = |name| std::env::var(name).expect("the parent set it");
    let dial = Dial { url, sha256: var(SHA256), version: var(VERSION) };
    let publisher = dial.publish(NAME, var(SEED).parse().expect("a number")).await;
    for frames in [FRAMES, PART] {
        let mut group = publisher.track.append_group().expect("the track is open");
        publisher.write(&mut group, 0..frames);
        if frames == FRAMES {
            group.finish().expect("the group is open");
        } else {
            // Until the relay is gone, and with it the test.
            let _ = publisher.connection.closed().await;
        }
    }
}

/// Watches two publishers of one name, one after the other. Says `progress` when it is in the
/// middle of a group, and when the first publisher's broadcast is gone.
async fn watch_both(dial: Dial, progress: Sender<()>) {
    let viewer = dial.watch().await;
    let mut announced = viewer.origin.consume().announced();
    assert_eq!(next_kind(&mut announced).await, Kind::Announced);
    let mut track = viewer.subscribe(NAME, MAX_AGE).await;
    let mut seen = Seen::default();
    let broken = read_and_say(&mut seen, &mut track, &progress).await;
    assert!(broken.is_err(), "the track of a killed publisher ended as if it were whole");
    assert_eq!(seen.frames % FRAMES, PART, "{broken:?}");
    while next_kind(&mut announced).await != Kind::Retracted {}
    progress.send(()).await.expect("the test listens");
    while next_kind(&mut announced).await != Kind::Announced {}
    let mut track = viewer.subscribe(NAME, MAX_AGE).await;
    let group = within("a group of the successor", track.recv_group()).await;
    let mut group = group.expect("the track works").expect("a group");
    Seen::default().read(&mut group, 2, PART).await.expect("half a group");
}

async fn read_and_say(
    seen: &mut Seen,
    track: &mut track::Subscriber,
    progress: &Sender<()>,
) -> Result<(), Error> {
    while let Some(mut group) = within("waiting for a group", track.recv_group()).await? {
        if group.sequence == 1 {
            seen.read(&mut group, 1, PART).await?;
            progress.send(()).await.expect("the test listens");
        }
        seen.read(&mut group, 1, u64::MAX).await?;
    }
    Ok(())
}

/// Watches the first publisher without a library, which would break its groups with its track
/// whatever their streams came to: the stream of a short group is reset, never finished.
async fn watch_streams(connection: moq_noq::Connection, version: &str, progress: Sender<()>) {
    say_setup(&connection, "/").await;
    let (_ask, answer) = say_subscribe(&connection, version, NAME).await;
    loop {
        let accepted = within("waiting for a stream", connection.accept_uni()).await;
        let mut stream = accepted.expect("the relay lives");
        let mut bytes = read_until(&mut stream, PART * FRAME_BYTES).await;
        let is_group = bytes.first() == Some(&0);
        // The group that was whole may come first, and the relay's SETUP does.
        let (rest, reset) = if is_group && stream_number(&bytes) == 1 {
            progress.send(()).await.expect("the test listens");
            read_end(stream).await
        } else {
            let end = read_end(stream).await;
            assert_eq!(end.1, None, "a whole group was reset");
            end
        };
        bytes.extend(rest);
        if is_group {
            let whole = bytes.len() as u64 > FRAMES * FRAME_BYTES;
            assert_eq!(whole, reset.is_none(), "{} bytes end with {reset:?}", bytes.len());
        }
        if reset.is_some() {
            break;
        }
    }
    assert!(read_end(answer).await.1.is_some(), "the subscription ended as if it were whole");
    progress.send(()).await.expect("the test listens");
}

/// Number of the group on a stream: type, length, subscription, number; each is one byte here.
fn stream_number(bytes: &[u8]) -> u8 {
    bytes[3]
}

/// Waits for a viewer's word, unless a viewer fails first.
async fn heard(said: &mut Receiver<()>, tasks: &mut JoinSet<()>) {
    loop {
        tokio::select! {
            biased;
            word = said.recv() => return word.expect("the test holds a sender"),
            Some(ended) = tasks.join_next() => ended.expect("the viewer saw what was sent"),
        }
    }
}

/// A broadcast of a publisher that was killed in the middle of a group breaks for its viewers, who
/// never take a short group for whole; and its name is free for the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_publisher_is_reset_for_its_viewers_and_can_be_replaced() {
    if let Ok(url) = std::env::var(URL) {
        be_publisher(url).await;
        return;
    }
    let relay = Relay::start(&["--quic-idle-timeout", "2s"]);
    let mut child = publisher_process(&Dial::new(&relay, LITE_06), 1);
    let (progress, mut said) = channel(1);
    let mut tasks = JoinSet::new();
    let viewers = [LITE_05, LITE_06, LITE_05, LITE_06];
    for version in viewers {
        tasks.spawn(watch_both(Dial::new(&relay, version), progress.clone()));
    }
    for _ in viewers {
        within("the viewers being inside a group", heard(&mut said, &mut tasks)).await;
    }
    let bare_viewers = [LITE_05, LITE_06];
    for version in bare_viewers {
        let (endpoint, connection) = bare(&relay, version).await;
        let progress = progress.clone();
        tasks.spawn(async move {
            watch_streams(connection, version, progress).await;
            drop(endpoint);
        });
    }
    for _ in bare_viewers {
        within("the streams being inside a group", heard(&mut said, &mut tasks)).await;
    }
    child.kill().await.expect("it ran");
    for _ in 0..viewers.len() + bare_viewers.len() {
        within("the broadcast going away", heard(&mut said, &mut tasks)).await;
    }
    let _successor = publisher_process(&Dial::new(&relay, LITE_05), 2);
    while let Some(viewer) = within("the viewers ending", tasks.join_next()).await {
        viewer.expect("the viewer saw what was sent");
    }
}
