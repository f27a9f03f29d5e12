//! Broadcasts and the routes to them: who announced what, and which route is best.
//!
//! Announcing is state, not events: a watcher has a set of broadcasts that changed and compares
//! what it told its peer with `offer`. Invariant: a broadcast exists exactly while it has a route.

use std::collections::BTreeSet;

use super::{BroadcastKey, Model, PeerKey};
use crate::name::{Cost, Hop, Hops, Path};

/// One way to a broadcast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The session that announced it.
    pub peer: PeerKey,
    /// Origins passed, the announcer last.
    pub hops: Hops,
    /// Price, link included.
    pub cost: Cost,
    /// Counts up, to prefer the newest.
    order: u64,
}

/// A path somebody announced.
#[derive(Debug)]
pub struct Broadcast {
    /// The path.
    pub path: Path,
    routes: Vec<Route>,
}

/// Why an announcement is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unannounced {
    /// The broadcast table is full.
    Full,
}

/// FNV-1a over the path and hops, so that peers spread over equal forwarded routes (lite 18.3).
fn spread(path: &Path, hops: &Hops) -> u64 {
    const SEED: u64 = 0x420C_0DEC_B00B;
    const PRIME: u64 = 0x0100_0000_01b3;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    let hash = path.as_str().bytes().fold(SEED, step);
    hops.as_slice().iter().flat_map(|hop| hop.0.to_be_bytes()).fold(hash, step)
}

impl Broadcast {
    /// The best route, not counting those of `except`.
    fn best(&self, except: Option<PeerKey>) -> Option<&Route> {
        self.routes.iter().filter(|route| Some(route.peer) != except).min_by_key(|route| {
            let forwarded = route.hops.as_slice().len() > 1;
            let hash = if forwarded { spread(&self.path, &route.hops) } else { 0 };
            let anonymous = route.hops.first().is_none();
            let length = route.hops.as_slice().len();
            (anonymous, route.cost, forwarded, length, hash, std::cmp::Reverse(route.order))
        })
    }
}

impl Model {
    /// Adds or replaces the route of `peer` to `path`.
    pub fn announce(
        &mut self,
        peer: PeerKey,
        path: &Path,
        hops: Hops,
        cost: Cost,
    ) -> Result<BroadcastKey, Unannounced> {
        self.routes_made += 1;
        let order = self.routes_made;
        let key = match self.paths.get(path) {
            Some(key) => *key,
            None => {
                let fresh = Broadcast { path: path.clone(), routes: Vec::new() };
                let Ok(key) = self.broadcasts.insert(fresh) else {
                    self.limit_hits.hit("broadcasts");
                    return Err(Unannounced::Full);
                };
                self.paths.insert(path.clone(), key);
                key
            }
        };
        let broadcast = &mut self.broadcasts[key.index()];
        match broadcast.routes.iter_mut().find(|route| route.peer == peer) {
            Some(route) => {
                route.hops = hops;
                route.cost = cost;
            }
            None => broadcast.routes.push(Route { peer, hops, cost, order }),
        }
        if let Some(held) = self.peers.get_mut(peer) {
            held.routes.insert(key);
        }
        self.changed(key);
        Ok(key)
    }

    /// Takes back the route of `peer`.
    pub fn retract(&mut self, peer: PeerKey, key: BroadcastKey) {
        let Some(broadcast) = self.broadcasts.get_mut(key) else { return };
        broadcast.routes.retain(|route| route.peer != peer);
        if let Some(held) = self.peers.get_mut(peer) {
            held.routes.remove(&key);
        }
        if broadcast.routes.is_empty() {
            let gone = self.broadcasts.remove(key).expect("just used");
            self.paths.remove(&gone.path);
        }
        self.changed(key);
    }

    /// Takes back every route of `peer`.
    pub(super) fn retract_peer(&mut self, peer: PeerKey) {
        for key in self.routes_of(peer) {
            self.retract(peer, key);
        }
    }

    fn routes_of(&self, peer: PeerKey) -> Vec<BroadcastKey> {
        let routes = self.peers.get(peer).map(|peer| peer.routes.iter().copied().collect());
        routes.unwrap_or_default()
    }

    /// The peer is draining: its routes cost the maximum from now on.
    pub fn price_out(&mut self, peer: PeerKey) {
        for key in self.routes_of(peer) {
            for route in &mut self.broadcasts[key.index()].routes {
                if route.peer == peer {
                    route.cost = Cost::MAX;
                }
            }
            self.changed(key);
        }
    }

    fn changed(&mut self, key: BroadcastKey) {
        for index in 0..self.watchers.len() {
            let peer = self.watchers[index];
            if let Some(held) = self.peers.get_mut(peer)
                && let Some(watched) = &mut held.watched
            {
                watched.insert(key);
                self.mark_control(peer.index());
            }
        }
    }

    /// The peer wants to hear of changes from now on; everything that exists counts as changed.
    pub fn watch(&mut self, peer: PeerKey) {
        let all: BTreeSet<BroadcastKey> = self.broadcasts.keys().collect();
        let Some(held) = self.peers.get_mut(peer) else { return };
        if held.watched.is_none() {
            self.watchers.push(peer);
        }
        held.watched = Some(all);
        self.mark_control(peer.index());
    }

    /// The peer does not want to hear of changes any more.
    pub fn unwatch(&mut self, peer: PeerKey) {
        self.watchers.retain(|held| *held != peer);
        if let Some(held) = self.peers.get_mut(peer) {
            held.watched = None;
        }
    }

    /// Takes the broadcasts that changed for a watcher.
    pub fn take_changes(&mut self, peer: PeerKey) -> BTreeSet<BroadcastKey> {
        let held = self.peers.get_mut(peer).and_then(|peer| peer.watched.as_mut());
        held.map(std::mem::take).unwrap_or_default()
    }

    /// A broadcast that still exists.
    pub fn broadcast(&self, key: BroadcastKey) -> Option<&Broadcast> {
        self.broadcasts.get(key)
    }

    /// What `peer` is told of a broadcast: the best route, unless it came from that peer or passed
    /// it, or has no room for one more hop.
    pub fn offer(&self, peer: PeerKey, exclude: Hop, key: BroadcastKey) -> Option<(&Path, &Route)> {
        let broadcast = self.broadcasts.get(key)?;
        let route = broadcast.best(None)?;
        let full = route.hops.as_slice().len() >= crate::name::HOPS_MAX;
        let loops = route.peer == peer || route.hops.contains(exclude);
        (!full && !loops).then_some((&broadcast.path, route))
    }

    /// The route a request of `peer` for `path` takes: the longest announced path that covers it,
    /// by somebody else.
    pub fn route(&self, peer: PeerKey, path: &Path) -> Option<(BroadcastKey, PeerKey)> {
        let mut at = Some(path.clone());
        while let Some(prefix) = at {
            if let Some(key) = self.paths.get(&prefix)
                && let Some(route) = self.broadcasts[key.index()].best(Some(peer))
            {
                return Some((*key, route.peer));
            }
            at = prefix.parent();
        }
        None
    }
}
