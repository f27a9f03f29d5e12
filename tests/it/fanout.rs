//! Mailboxes.

use std::cell::Cell;
use std::rc::Rc;

use corelay::fanout::mailbox::{Bell, Doorbell, mailbox};

#[derive(Clone, Default)]
struct Rings(Rc<Cell<u32>>);

impl Bell for Rings {
    fn ring(&self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn mail_comes_out_in_order_and_a_full_mailbox_gives_it_back() {
    let (mut outbox, mut inbox) = mailbox(2, Rings::default());
    assert_eq!(outbox.push(1), Ok(()));
    assert_eq!(outbox.push(2), Ok(()));
    assert_eq!((outbox.room(), outbox.push(3)), (0, Err(3)));
    assert_eq!((inbox.pop(), inbox.pop(), inbox.pop()), (Some(1), Some(2), None));
    assert_eq!(outbox.push(3), Ok(()));
    assert!(!inbox.is_empty());
}

#[test]
fn a_flush_rings_once_for_all_that_was_pushed() {
    let rings = Rings::default();
    let (mut outbox, _inbox) = mailbox(4, rings.clone());
    outbox.flush();
    assert_eq!(rings.0.get(), 0);
    outbox.push(1).expect("room");
    outbox.push(2).expect("room");
    outbox.flush();
    outbox.flush();
    assert_eq!(rings.0.get(), 1);
}

#[test]
fn either_end_notices_that_the_other_is_gone() {
    let rings = Rings::default();
    let (mut outbox, mut inbox) = mailbox(4, rings.clone());
    outbox.push(1).expect("room");
    assert!(!inbox.is_closed());
    drop(outbox);
    assert!(inbox.is_closed());
    assert_eq!(rings.0.get(), 1);
    assert_eq!(inbox.pop(), Some(1));
    let (outbox, inbox) = mailbox::<u8, _>(4, Rings::default());
    drop(inbox);
    assert!(outbox.is_closed());
}

#[test]
fn a_doorbell_rings_until_it_is_silenced() {
    let bell = Doorbell::new().expect("eventfd");
    assert!(!bell.silence());
    bell.clone().ring();
    bell.ring();
    assert!(bell.silence());
    assert!(!bell.silence());
}
