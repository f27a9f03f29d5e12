//! The beginning and the drain of a session: SETUP, the grant, GOAWAY.
//!
//! The peer's SETUP is read first, since its path and role decide the grant; ours goes out with the
//! grant, before anything else (lite 5.2). The query of the path is dropped here and nowhere kept.

use super::lite;
use super::streams::{CONTROL_PRIORITY, Dir, StreamId, Streams};
use super::{Event, Inbound, Io, Outbound, Session, State};
use crate::name::{Facts, Grant, Hop, Path, Role, ShardId};
use crate::wire::code::{Violation, session as close};

/// What a peer's SETUP says, in no version's shape.
pub struct Declared {
    /// Path of its URL without the query.
    pub path: Path,
    /// The half it will use.
    pub role: Option<Role>,
    /// Price of its egress.
    pub cost: Option<u64>,
    /// Its origin id.
    pub hop: Option<Hop>,
}

impl Session {
    /// The peer's SETUP is complete.
    pub(super) fn on_setup<S: Streams>(&mut self, io: &mut Io<'_, S>, declared: Declared) {
        self.setup_seen = true;
        self.role = declared.role;
        self.link_cost = declared.cost.unwrap_or(1);
        self.peer_hop = declared.hop.unwrap_or(Hop(0));
        if let Some(peer) = io.model.peer(self.key) {
            peer.hop = self.peer_hop;
        }
        self.state = State::Pending;
        io.events.push(Event::Ask(Facts {
            shard: ShardId(0),
            session: self.key.to_bits(),
            path: declared.path,
            role: declared.role,
        }));
    }

    /// The session may do this: say our SETUP, ask what the peer publishes, and take up what
    /// waited.
    pub fn on_grant<S: Streams>(&mut self, io: &mut Io<'_, S>, grant: Grant) {
        if self.state != State::Pending {
            return;
        }
        self.state = State::Open;
        let asks = grant.publish && self.role != Some(Role::Subscriber);
        self.grant = Some(grant);
        self.open_setup(io);
        if asks {
            self.ask_announcements(io);
        }
        for id in std::mem::take(&mut self.held) {
            self.on_readable(io, id);
        }
        io.model.touch(self.key);
    }

    /// The session may do nothing.
    pub fn on_refused<S: Streams>(&mut self, io: &mut Io<'_, S>, code: u64) {
        self.close(io, code, "unauthorized");
    }

    /// The peer's SETUP, or the grant it asks for, did not come in time.
    pub fn on_setup_timeout<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        if matches!(self.state, State::Setup | State::Pending) {
            io.events.push(Event::Violation(Violation::SetupTimeout));
            self.close(io, close::CONTROL_TIMEOUT, Violation::SetupTimeout.as_str());
        }
    }

    fn open_setup<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        // A peer that grants no stream for SETUP cannot use anything else either.
        let Some(id) = io.streams.open(Dir::Uni) else {
            self.close(io, close::PROTOCOL_VIOLATION, "no stream granted for SETUP");
            return;
        };
        io.streams.prioritize(id, CONTROL_PRIORITY);
        let mut bytes = io.streams.prefix(Dir::Uni).to_vec();
        lite::put_setup(self.terms.hop, &mut bytes);
        self.say(io, id, &bytes, true);
    }

    fn ask_announcements<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        let Some(id) = io.streams.open(Dir::Bi) else {
            self.heard.wanted = true;
            self.calm = false;
            return;
        };
        self.heard.wanted = false;
        io.streams.prioritize(id, CONTROL_PRIORITY);
        let mut bytes = io.streams.prefix(Dir::Bi).to_vec();
        lite::put_announce_request(self.version, self.terms.hop, &mut bytes);
        self.outbound.insert(id, Outbound::Announce);
        self.say(io, id, &bytes, false);
    }

    /// Retries what had no stream credit.
    pub(super) fn retry_announcements<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        if self.heard.wanted {
            self.ask_announcements(io);
        }
    }

    /// The peer is leaving: no new requests go to it, and its routes become the last choice.
    pub(super) fn on_goaway<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        if std::mem::replace(&mut self.goaway, true) {
            self.violate(io, id, Violation::SecondGoaway);
            return;
        }
        self.inbound.insert(id, Inbound::Done);
        io.streams.reset(id, crate::wire::code::stream::CANCELLED);
        io.model.price_out(self.key);
    }
}
