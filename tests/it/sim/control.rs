//! The shard and the control thread's mail.

use corelay::config::Config;
use corelay::fanout::message::{ToControl, ToShard};
use corelay::name::{Facts, Grant, Path, Role};
use corelay::wire::lite::subscribe::Preferences;
use corelay::wire::version::Version::Lite06;
use quinn_proto::ConnectionError;

use super::client::Spec;
use super::publisher::Rate;
use super::viewer::Said;
use super::world::World;
use super::{once, oracle};

const NAME: (&str, &str) = ("room/a", "video");

/// Control decides who may do what.
fn guarded(config: &mut Config) {
    config.auth.public = Some(Path::parse("open").expect("short"));
}

fn asked(world: &mut World) -> Facts {
    match world.told() {
        Some(ToControl::Ask(facts)) => *facts,
        other => panic!("the shard asks, and does not say {other:?}"),
    }
}

fn grant(facts: &Facts) -> ToShard {
    let grant = Grant { root: facts.path.clone(), publish: true, subscribe: true };
    ToShard::Granted { session: facts.session, grant: Box::new(grant) }
}

fn code(world: &World, place: usize) -> Option<u64> {
    match &world.clients[place].lost {
        Some(ConnectionError::ApplicationClosed(close)) => Some(close.error_code.into_inner()),
        _ => None,
    }
}

fn rate() -> Rate {
    let interval = std::time::Duration::from_millis(40);
    Rate { interval, frames: 5, bytes: 300, spread: 100 }
}

#[test]
fn requests_wait_for_the_grant_and_are_then_served() {
    once("control::requests_wait_for_the_grant_and_are_then_served", |seed| {
        let mut world = World::with(seed, guarded);
        let publisher = world.add(Spec::new(Lite06, Role::Publisher));
        world.at(publisher).publish(NAME, 5000, Some(rate()));
        world.connect();
        world.run(100);
        let facts = asked(&mut world);
        assert_eq!((facts.role, facts.path.as_str()), (Some(Role::Publisher), ""));
        world.tell(grant(&facts));
        let viewer = world.add(Spec::new(Lite06, Role::Subscriber));
        world.connect();
        let sub = world.at(viewer).subscribe(NAME, Preferences::default());
        world.run(1000);
        assert!(world.clients[viewer].sub(sub).said().is_empty(), "nothing before the grant");
        assert!(world.clients[viewer].viewer.announced.is_empty());
        let facts = asked(&mut world);
        world.tell(grant(&facts));
        world.run(1000);
        assert!(!world.clients[viewer].sub(sub).whole().is_empty(), "served after it");
        assert!(world.clients[viewer].viewer.announced.contains(NAME.0));
        oracle::empty(&mut world);
    });
}

#[test]
fn a_refused_session_is_closed_with_the_code_that_control_gave() {
    once("control::a_refused_session_is_closed_with_the_code_that_control_gave", |seed| {
        let mut world = World::with(seed, guarded);
        let viewer = world.add(Spec::new(Lite06, Role::Subscriber));
        world.connect();
        world.run(100);
        let session = asked(&mut world).session;
        world.tell(ToShard::Refused { session, code: 2 });
        world.run(100);
        assert_eq!(code(&world, viewer), Some(2));
        // The session is gone when a late answer comes.
        world.tell(ToShard::Refused { session, code: 2 });
        oracle::empty(&mut world);
    });
}

#[test]
fn a_full_mailbox_refuses_who_cannot_be_asked_for() {
    once("control::a_full_mailbox_refuses_who_cannot_be_asked_for", |seed| {
        let mut world = World::with(seed, |config| {
            guarded(config);
            config.limits.mailbox_slots = 4;
        });
        for _ in 0..6 {
            world.add(Spec::new(Lite06, Role::Subscriber));
        }
        world.connect();
        world.run(100);
        let codes: Vec<_> = (0..6).map(|place| code(&world, place)).collect();
        assert_eq!(codes.iter().filter(|code| **code == Some(1)).count(), 2, "{codes:?}");
        assert_eq!(world.shard.snapshot().counters.mail_dropped, 2);
        for _ in 0..4 {
            let facts = asked(&mut world);
            world.tell(grant(&facts));
        }
        world.run(1000);
        assert_eq!(world.shard.model().usage().peers, 4);
        oracle::empty(&mut world);
    });
}

#[test]
fn numbers_are_sent_on_request() {
    once("control::numbers_are_sent_on_request", |seed| {
        let mut world = World::new(seed);
        world.add(Spec::new(Lite06, Role::Subscriber));
        world.connect();
        world.tell(ToShard::Snapshot { ticket: 9 });
        world.run(10);
        let Some(ToControl::Snapshot { ticket: 9, snapshot }) = world.told() else {
            panic!("the numbers come with their ticket")
        };
        assert_eq!((snapshot.gauges.sessions, snapshot.counters.sessions_opened), (1, 1));
        oracle::empty(&mut world);
    });
}

#[test]
fn closing_ends_every_session_without_an_error() {
    once("control::closing_ends_every_session_without_an_error", |seed| {
        let mut world = World::new(seed);
        let publisher = world.add(Spec::new(Lite06, Role::Publisher));
        world.at(publisher).publish(NAME, 5000, Some(rate()));
        let viewer = world.add(Spec::new(Lite06, Role::Subscriber));
        world.connect();
        world.known(NAME.0);
        let sub = world.at(viewer).subscribe(NAME, Preferences::default());
        world.run(1000);
        world.tell(ToShard::Close);
        world.run(100);
        assert!(world.ended, "the shard says that it is done");
        assert_eq!((code(&world, publisher), code(&world, viewer)), (Some(0), Some(0)));
        assert_eq!(world.clients[viewer].sub(sub).said(), [Said::Start(0)]);
        oracle::empty(&mut world);
    });
}
