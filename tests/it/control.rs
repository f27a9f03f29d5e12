//! Grants, and certificates made at start.

use std::time::{Duration, SystemTime};

use corelay::config::Auth;
use corelay::control::certificate;
use corelay::control::grant::{UNAUTHORIZED, decide};
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
