//! The official client library in both roles, the content that its publishers send, and a bare QUIC
//! client for what a library hides.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moq_net::{Error, Timestamp, broadcast, group, origin, track};
use moq_tokio::connect::Addr;

use crate::relay::{Relay, within};

/// Frames of a group.
pub(crate) const FRAMES: u64 = 60;
/// Frames of a second.
pub(crate) const RATE: u64 = 60;
/// Bytes of a frame.
pub(crate) const FRAME_BYTES: u64 = 1200;
/// Turns off the skipping of late groups.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(30);
/// The track of every broadcast here.
pub(crate) const TRACK: &str = "video";

pub(crate) const LITE_05: &str = "moq-lite-05";
pub(crate) const LITE_06: &str = "moq-lite-06";

/// The frame of a place in a broadcast; broadcasts with different seeds share no frame.
pub(crate) fn payload(seed: u64, group: u64, frame: u64) -> Bytes {
    let mut state = seed << 48 | group << 16 | frame;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    (0..FRAME_BYTES / 8).flat_map(|_| next().to_be_bytes()).collect()
}

/// When that frame is shown.
pub(crate) fn timestamp(group: u64, frame: u64) -> Timestamp {
    Timestamp::from_millis((group * FRAMES + frame) * 1000 / RATE).expect("it is small")
}

/// Where and how to connect.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) url: String,
    pub(crate) sha256: String,
    pub(crate) version: String,
}

impl Dial {
    /// At the root of `relay`.
    pub(crate) fn new(relay: &Relay, version: &str) -> Self {
        Self::at(relay, "", version)
    }

    pub(crate) fn at(relay: &Relay, root: &str, version: &str) -> Self {
        let (sha256, version) = (relay.sha256.clone(), version.to_owned());
        Self { url: relay.url(root), sha256, version }
    }

    fn client(&self) -> moq_tokio::Client {
        let mut config = moq_tokio::connect::Config::default();
        config.tls.fingerprint = vec![self.sha256.clone()];
        config.once = Some(true);
        config.version = vec![self.version.parse().expect("a version")];
        config.init(moq_tokio::quic::Config::default()).expect("a client")
    }

    async fn connect(&self, client: moq_tokio::Client) -> moq_tokio::Connection {
        let addr = Addr::new(self.url.parse().expect("a URL"));
        let connection =
            within("connecting", client.connect(addr).established()).await.expect("a session");
        let version = connection.version().expect("a version");
        assert_eq!(version, self.version.parse().expect("a version"));
        connection
    }

    /// Announces a broadcast with one track.
    pub(crate) async fn publish(&self, name: &str, seed: u64) -> Publisher {
        let origin = moq_tokio::origin::spawn();
        let broadcast = origin.create_broadcast(name).expect("a broadcast");
        let info = track::Info::default().with_max_age(MAX_AGE);
        let track = broadcast.create_track(TRACK, info).expect("a track");
        broadcast.announce(origin::Route::default()).expect("announced");
        let connection = self.connect(self.client().with_publisher(&origin)).await;
        Publisher { broadcast, track, connection, seed, _origin: origin }
    }

    /// Connects as a viewer.
    pub(crate) async fn watch(&self) -> Viewer {
        let origin = moq_tokio::origin::spawn();
        let connection = self.connect(self.client().with_subscriber(origin.clone())).await;
        Viewer { origin, connection }
    }
}

/// A session that publishes one broadcast.
pub(crate) struct Publisher {
    pub(crate) broadcast: broadcast::Producer,
    pub(crate) track: track::Producer,
    pub(crate) connection: moq_tokio::Connection,
    seed: u64,
    _origin: origin::Producer,
}

impl Publisher {
    /// Writes these frames of a group, as fast as they are taken.
    pub(crate) fn write(&self, group: &mut group::Producer, frames: std::ops::Range<u64>) {
        let sequence = group.sequence;
        for frame in frames {
            let data = payload(self.seed, sequence, frame);
            group.write_frame(timestamp(sequence, frame), data).expect("the group is open");
        }
    }

    /// Writes whole groups at the rate of their timestamps.
    pub(crate) async fn play(&self, groups: u64) {
        let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / RATE));
        for _ in 0..groups {
            let mut group = self.track.append_group().expect("the track is open");
            for frame in 0..FRAMES {
                tick.tick().await;
                self.write(&mut group, frame..frame + 1);
            }
            group.finish().expect("the group is open");
        }
    }
}

/// A session that watches.
pub(crate) struct Viewer {
    pub(crate) origin: origin::Producer,
    pub(crate) connection: moq_tokio::Connection,
}

impl Viewer {
    /// Waits for a broadcast and subscribes to its track.
    pub(crate) async fn subscribe(&self, name: &str, max_age: Duration) -> track::Subscriber {
        let consumer = self.origin.consume();
        let source = within("waiting for the broadcast", consumer.routed_broadcast(name)).await;
        let track = source.expect("a broadcast").track(TRACK).expect("a track");
        let options = track::Subscription::default().with_max_age(max_age);
        within("subscribing", track.subscribe(options)).await.expect("a subscription")
    }
}

/// What a viewer got and compared.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Groups that ended as whole.
    pub(crate) groups: Vec<u64>,
    /// Frames, those of a group that was cut included.
    pub(crate) frames: u64,
}

impl Seen {
    /// Reads frames of `group` and compares them, until it ends or frame `until` is there.
    pub(crate) async fn read(
        &mut self,
        group: &mut group::Consumer,
        seed: u64,
        until: u64,
    ) -> Result<(), Error> {
        let sequence = group.sequence;
        while group.index() < until {
            let frame = group.index();
            let Some(got) = within("reading a frame", group.read_frame()).await? else {
                assert_eq!(frame, FRAMES, "group {sequence} is short and ended as whole");
                self.groups.push(sequence);
                return Ok(());
            };
            assert!(
                got.payload == payload(seed, sequence, frame),
                "group {sequence} frame {frame} differs"
            );
            assert_eq!(got.timestamp, timestamp(sequence, frame));
            self.frames += 1;
        }
        Ok(())
    }

    /// Reads groups until the track ends, whole or with an error.
    pub(crate) async fn read_all(
        &mut self,
        track: &mut track::Subscriber,
        seed: u64,
    ) -> Result<(), Error> {
        while let Some(mut group) = within("waiting for a group", track.recv_group()).await? {
            self.read(&mut group, seed, u64::MAX).await?;
        }
        Ok(())
    }
}

/// A QUIC connection without a library on top; the endpoint must live as long.
pub(crate) async fn bare(relay: &Relay, version: &str) -> (moq_noq::Endpoint, moq_noq::Connection) {
    let mut trust = moq_tokio::tls::Connect::default();
    trust.fingerprint = vec![relay.sha256.clone()];
    let mut tls = trust.build().expect("a TLS set-up");
    tls.alpn_protocols = vec![version.as_bytes().to_vec()];
    let crypto = moq_noq::crypto::rustls::QuicClientConfig::try_from(tls).expect("TLS 1.3");
    let address = relay.listening[0];
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let endpoint = moq_noq::Endpoint::client(any.parse().expect("an address")).expect("a socket");
    let connecting = endpoint
        .connect_with(moq_noq::ClientConfig::new(Arc::new(crypto)), address, "localhost")
        .expect("a connection");
    let connection = within("the handshake", connecting).await.expect("a handshake");
    (endpoint, connection)
}

/// Says SETUP with `path` on a bare connection.
pub(crate) async fn say_setup(connection: &moq_noq::Connection, path: &str) {
    let len = u8::try_from(path.len()).expect("a short path");
    let mut setup = vec![1, len + 3, 1, 2, len];
    setup.extend_from_slice(path.as_bytes());
    let mut stream = connection.open_uni().await.expect("a stream");
    stream.write_all(&setup).await.expect("written");
    stream.finish().expect("finished");
}

/// The code and the reason that a connection was closed with.
pub(crate) async fn close_of(connection: &moq_noq::Connection) -> (u64, String) {
    match within("the relay closing", connection.closed()).await {
        moq_noq::ConnectionError::ApplicationClosed(close) => {
            (close.error_code.into_inner(), String::from_utf8_lossy(&close.reason).into_owned())
        }
        other => panic!("not closed by the relay: {other}"),
    }
}

/// Subscribes to the track of a broadcast on a bare connection.
pub(crate) async fn say_subscribe(
    connection: &moq_noq::Connection,
    version: &str,
    broadcast: &str,
) -> (moq_noq::SendStream, moq_noq::RecvStream) {
    let (mut ask, answer) = connection.open_bi().await.expect("a stream");
    let mut body = vec![0];
    for text in [broadcast, TRACK] {
        body.push(u8::try_from(text.len()).expect("a short name"));
        body.extend_from_slice(text.as_bytes());
    }
    // Priority, 2000 ms of age, and every bound open; lite-05 has an order in between.
    body.extend_from_slice(match version {
        LITE_05 => b"\x07\x00\x47\xd0\x00\x00",
        _ => b"\x07\x47\xd0\x00\x00\x00\x00",
    });
    let len = u8::try_from(body.len()).expect("a short request");
    ask.write_all(&[&[2, len], &body[..]].concat()).await.expect("written");
    (ask, answer)
}

/// What is left on a stream, and the library's code if it was reset instead of finished.
pub(crate) async fn read_end(mut stream: moq_noq::RecvStream) -> (Vec<u8>, Option<u64>) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match within("reading a stream", stream.read(&mut buffer)).await {
            Ok(Some(count)) => bytes.extend_from_slice(&buffer[..count]),
            Ok(None) => return (bytes, None),
            Err(moq_noq::ReadError::Reset(code)) => return (bytes, Some(unmap(code.into_inner()))),
            Err(error) => panic!("the stream fails: {error}"),
        }
    }
}

/// The next bytes of a stream, more than `count` unless it ends.
pub(crate) async fn read_until(stream: &mut moq_noq::RecvStream, count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while bytes.len() as u64 <= count {
        let read = within("reading a stream", stream.read(&mut buffer)).await;
        let Some(count) = read.expect("nothing was killed yet") else { break };
        bytes.extend_from_slice(&buffer[..count]);
    }
    bytes
}

/// The code that the library means by a reset, which it maps as WebTransport does.
fn unmap(code: u64) -> u64 {
    let shifted = code - 0x52e4_a40f_a8db;
    shifted - shifted / 0x1f
}
