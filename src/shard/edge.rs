//! The shard's side of its mailboxes with control, and its throttle for log lines.
//!
//! A full mailbox is a counted outcome: a request that cannot be asked is refused, a report that
//! cannot be sent is dropped. Nothing here waits.

use std::collections::BTreeMap;

use crate::fanout::mailbox::{Doorbell, Inbox, Outbox};
use crate::fanout::message::{ToControl, ToShard};
use crate::metrics::Snapshot;
use crate::name::Facts;

/// Mailboxes to and from control.
pub struct Edge {
    inbox: Inbox<ToShard>,
    outbox: Outbox<ToControl, Doorbell>,
    /// Messages taken.
    pub received: u64,
    /// Messages that found no room.
    pub dropped: u64,
    /// Times the shard slept.
    pub parks: u64,
}

impl Edge {
    /// An edge over these mailboxes.
    pub fn new(inbox: Inbox<ToShard>, outbox: Outbox<ToControl, Doorbell>) -> Self {
        Self { inbox, outbox, received: 0, dropped: 0, parks: 0 }
    }

    /// True when a message from control waits.
    pub fn has_mail(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// The next message from control.
    pub fn pop(&mut self) -> Option<ToShard> {
        let mail = self.inbox.pop()?;
        self.received += 1;
        Some(mail)
    }

    /// Asks control what a session may do; false when there is no room to ask.
    pub fn ask(&mut self, facts: Facts) -> bool {
        self.push(ToControl::Ask(Box::new(facts)))
    }

    /// Answers a request for numbers.
    pub fn report(&mut self, ticket: u64, snapshot: Snapshot) {
        self.push(ToControl::Snapshot { ticket, snapshot: Box::new(snapshot) });
    }

    /// Tells control that the shard turns.
    pub fn pong(&mut self) {
        self.push(ToControl::Pong);
    }

    /// Tells control that the shard has closed.
    pub fn ended(&mut self) {
        self.push(ToControl::Ended);
    }

    /// Wakes control if something was left for it.
    pub fn flush(&mut self) {
        self.outbox.flush();
    }

    fn push(&mut self, mail: ToControl) -> bool {
        let sent = self.outbox.push(mail).is_ok();
        self.dropped += u64::from(!sent);
        sent
    }
}

/// At most so many lines a second for each reason.
pub struct Throttle {
    per_second: usize,
    lines: BTreeMap<&'static str, (u64, usize)>,
}

impl Throttle {
    /// Admits `per_second` lines for each reason.
    pub fn new(per_second: usize) -> Self {
        Self { per_second, lines: BTreeMap::new() }
    }

    /// True when a line for `reason` may be written in this second.
    pub fn admit(&mut self, reason: &'static str, second: u64) -> bool {
        let (at, count) = self.lines.entry(reason).or_insert((second, 0));
        if *at != second {
            *at = second;
            *count = 0;
        }
        *count += 1;
        *count <= self.per_second
    }
}
