//! What must hold in every run. Each function was trusted only after a planted bug made it fail.

use corelay::model::Usage;

use super::client::Client;
use super::publisher::{Publication, Sent};
use super::viewer::{Received, Said, Subscription};
use super::wire::End;
use super::world::World;

/// Every bound of the model holds, and the charges add up.
pub(super) fn bounds(world: &World) {
    let model = world.shard.model();
    let limits = &world.limits;
    let usage = model.usage();
    let pairs = [
        ("readers", usage.readers, limits.readers),
        ("cursors", usage.cursors + usage.flights, limits.cursors),
        ("groups", usage.groups, limits.groups),
        ("lanes", usage.lanes, limits.groups),
        ("pages", usage.pages, limits.index_pages),
        ("tracks", usage.tracks, limits.tracks),
        ("broadcasts", usage.broadcasts, limits.broadcasts),
        ("peers", usage.peers, limits.connections),
        ("arena", model.arena.allocated(), limits.arena_bytes),
        ("leased", usage.leased, model.arena.allocated()),
    ];
    for (name, held, limit) in pairs {
        assert!(held <= limit, "{name}: {held} above {limit}");
    }
    let mut sum = 0;
    for (peer, charge) in model.charges() {
        // What puts it over is shed in the same turn.
        let most = limits.session_charge_bytes;
        assert!(charge <= most, "peer {peer:?} is charged {charge} above {most}");
        sum += charge;
    }
    assert_eq!(usage.charged, sum, "the sum of the charges");
}

/// The publication that a group came from: the one whose source its frames name, or any of the
/// track when no frame had content.
fn origins<'a>(
    world: &'a World,
    sub: &'a Subscription,
    group: &'a Received,
) -> impl Iterator<Item = &'a Publication> {
    let from =
        move |client: &&Client| group.source.is_none_or(|source| client.publisher.source == source);
    let of = |track: &&Publication| track.broadcast == sub.broadcast && track.name == sub.track;
    world
        .clients
        .iter()
        .filter(from)
        .flat_map(move |client| client.publisher.tracks.iter().filter(of))
}

/// No short group was shown as whole, and none has more than was sent. Bytes, order and duplicates
/// are checked as they come.
pub(super) fn content(world: &World) {
    for (place, client) in world.clients.iter().enumerate() {
        for sub in &client.viewer.subs {
            for (seq, group) in &sub.groups {
                let sent: Vec<Sent> = origins(world, sub, group)
                    .filter_map(|track| track.sent.get(seq))
                    .copied()
                    .collect();
                let upto = group.frame_start + group.frames;
                assert!(
                    sent.iter().any(|sent| upto <= sent.frames),
                    "client {place} got {upto} frames of {}/{} {seq}, of which {sent:?} was sent",
                    sub.broadcast,
                    sub.track,
                );
                // Frames were asked for that the group never had: then it is whole without any.
                let complete =
                    |sent: &Sent| sent.whole && upto == sent.frames.max(group.frame_start);
                assert!(
                    group.end != End::Fin || sent.iter().any(complete),
                    "client {place} was shown {}/{} {seq} as whole with {upto} frames of {sent:?}",
                    sub.broadcast,
                    sub.track,
                );
            }
        }
    }
}

/// Every subscription that lives is at the newest group of a track that is still made.
pub(super) fn current(world: &World, lag_ms: u64) {
    for (place, client) in world.clients.iter().enumerate() {
        if client.gone || client.lost.is_some() {
            continue;
        }
        for sub in client.viewer.subs.iter().filter(|sub| !sub.left) {
            let over = sub
                .said()
                .iter()
                .any(|said| matches!(said, Said::End(_) | Said::Fin | Said::Reset(_)));
            let live = live_edge(world, sub);
            let Some(live) = live.filter(|_| !over) else { continue };
            let edge = sub.edge();
            let up = edge.is_some_and(|edge| edge + lag_ms >= live);
            assert!(
                up,
                "client {place} is at {edge:?} of {}/{}, whose edge is {live}",
                sub.broadcast, sub.track,
            );
        }
    }
}

fn live_edge(world: &World, sub: &Subscription) -> Option<u64> {
    let alive = world.clients.iter().filter(|client| !client.gone && client.lost.is_none());
    let tracks = alive.flat_map(|client| &client.publisher.tracks);
    let made = |track: &&Publication| {
        track.broadcast == sub.broadcast
            && track.name == sub.track
            && track.rate.is_some()
            && track.upstream.is_some()
    };
    tracks.filter(made).map(|track| track.edge).max()
}

/// All sessions end, virtual time passes, and nothing is left but the header block.
pub(super) fn empty(world: &mut World) {
    let now = world.now;
    for place in 0..world.clients.len() {
        let client = world.at(place);
        if !client.gone && client.lost.is_none() {
            client.wire.close(now, 0);
        }
    }
    world.run(15_000);
    assert_eq!(world.shard.connections(), (0, 0), "connections are left");
    let model = world.shard.model();
    let usage = model.usage();
    let header = Usage { leased: usage.leased.min(8 << 10), ..Usage::default() };
    assert_eq!(usage, header, "something is left");
    assert_eq!(model.arena.pinned(), 0, "slices are left");
}
