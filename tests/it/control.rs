//! Grants, and certificates made at start.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use corelay::config::{Auth, Config, Loaded};
use corelay::control::grant::{UNAUTHORIZED, decide};
use corelay::control::{self, ControlError, Setup, certificate};
use corelay::fanout::mailbox::{Doorbell, mailbox};
use corelay::fanout::message::{ToControl, ToShard};
use corelay::name::{Facts, Path, Role, ShardId};

fn path(raw: &str) -> Path {
    Path::parse(raw).expect("path")
}

fn auth(public: Option<&str>) -> Auth {
    Auth { public: public.map(path) }
}

fn facts(dialed: &str, role: Option<Role>) -> Facts {
    Facts { shard: ShardId(0), session: 1, path: path(dialed), role }
}

#[test]
fn open_access_grants_everything_below_the_dialed_path() {
    for public in [None, Some("")] {
        for dialed in ["", "room", "room/a"] {
            let grant = decide(&auth(public), &facts(dialed, None)).expect("granted");
            assert_eq!(grant.root, path(dialed));
            assert!(grant.publish && grant.subscribe);
        }
    }
}

#[test]
fn a_public_prefix_refuses_what_is_not_below_it() {
    let auth = auth(Some("room"));
    assert_eq!(decide(&auth, &facts("room", None)).map(|g| g.root), Ok(path("room")));
    assert_eq!(decide(&auth, &facts("room/a", None)).map(|g| g.root), Ok(path("room/a")));
    for dialed in ["", "roommate", "other/room"] {
        assert_eq!(decide(&auth, &facts(dialed, None)), Err(UNAUTHORIZED));
    }
    assert_eq!(UNAUTHORIZED, 2);
}

#[test]
fn a_declared_role_leaves_its_half() {
    let rights = |role| {
        let grant = decide(&auth(None), &facts("room", role)).expect("granted");
        (grant.publish, grant.subscribe)
    };
    assert_eq!(rights(None), (true, true));
    assert_eq!(rights(Some(Role::Publisher)), (true, false));
    assert_eq!(rights(Some(Role::Subscriber)), (false, true));
}

#[test]
fn a_generated_certificate_serves_and_has_a_hash() {
    let hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let made = certificate::generate(&hosts, now).expect("certificate");
    let hex = made.sha256_hex();
    assert_eq!(hex.len(), 64);
    assert!(hex.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
    // SubjectAltName holds the name as text and both addresses as bytes.
    let der: &[u8] = &made.chain[0];
    let holds = |part: &[u8]| der.windows(part.len()).any(|window| window == part);
    assert!(holds(b"\x82\x09localhost"));
    assert!(holds(&[0x87, 4, 127, 0, 0, 1]));
    assert!(holds(&[0x87, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]));
    // 2027-01-15 08:00:00 is now: a day back, 13 days on.
    assert!(holds(b"270114080000Z") && holds(b"270128080000Z"));
}

/// Passes on what is logged.
struct Lines(mpsc::Sender<String>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Who listens may have left.
        let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for a line with `text`.
fn wait_for(lines: &mpsc::Receiver<String>, text: &str) {
    let limit = Duration::from_secs(30);
    while !lines.recv_timeout(limit).unwrap_or_else(|_| panic!("'{text}' is logged")).contains(text)
    {
    }
}

#[test]
fn a_shard_that_does_not_answer_is_reported_and_so_is_its_return() {
    let no_file = |_: &std::path::Path| Err(io::Error::from(io::ErrorKind::NotFound));
    let loaded = Config::load([OsString::from("corelay")], &BTreeMap::new(), &no_file);
    let Ok(Loaded::Run(config)) = loaded else { panic!("the defaults: {loaded:?}") };
    let (bell, wake) = (Doorbell::new().expect("a doorbell"), Doorbell::new().expect("a doorbell"));
    let (to_shard, mut inbox) = mailbox::<ToShard, _>(8, bell);
    let (mut outbox, from_shard) = mailbox::<ToControl, _>(8, wake.clone());
    let (log, seen) = mpsc::channel();
    let shard = thread::Builder::new().name("shard".to_owned()).spawn(move || {
        wait_for(&seen, "shard 0 has not turned");
        assert!(matches!(inbox.pop(), Some(ToShard::Ping)), "control asks, and once");
        assert!(inbox.pop().is_none(), "control asks, and once");
        outbox.push(ToControl::Pong).expect("room");
        outbox.flush();
        wait_for(&seen, "shard 0 turns again");
        outbox.push(ToControl::Ended).expect("room");
        outbox.flush();
    });
    let setup = Setup {
        config: Arc::new(*config),
        to_shard,
        from_shard,
        wake,
        certificate_sha256: None,
        web: None,
        internal: None,
    };
    let lines = move || Lines(log.clone());
    let log = tracing_subscriber::fmt().with_writer(lines).with_ansi(false).finish();
    let ended = tracing::subscriber::with_default(log, || control::run(setup));
    assert!(matches!(ended, Err(ControlError::ShardEnded)), "{ended:?}");
    shard.expect("a thread").join().expect("the shard saw what it waited for");
}
