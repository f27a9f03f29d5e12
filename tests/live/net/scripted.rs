//! The net against a kernel that answers by script: one test per refusal.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use corelay::net::mmsg::{Mmsg, Options, bind};
use corelay::net::sys::{Kernel, Outgoing, RecvBatch, SendBatch};
use corelay::net::{Net, SEGMENTS_MAX, Send};

use super::{addr, queue, single, wakes};

/// What a receive call finds: messages of sender, control bytes and data; or an error.
type Arrivals = Result<Vec<(SocketAddr, Vec<u8>, Vec<u8>)>, i32>;

/// One message the kernel was given.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    to: SocketAddr,
    src: Option<IpAddr>,
    ecn: u8,
    segment: Option<u16>,
    len: usize,
}

/// Answers as told, then takes everything and finds nothing.
struct Script {
    /// Per send call: how many messages are taken, or the error.
    answers: Receiver<Result<usize, i32>>,
    arrivals: Receiver<Arrivals>,
    seen: Sender<Vec<Seen>>,
}

impl Kernel for Script {
    fn recv(
        &mut self,
        _fd: BorrowedFd<'_>,
        batch: &mut RecvBatch,
        count: usize,
    ) -> io::Result<usize> {
        let found = self.arrivals.try_recv().unwrap_or(Err(libc::EAGAIN));
        let found = found.map_err(io::Error::from_raw_os_error)?;
        assert!(found.len() <= count);
        for (i, (from, control, data)) in found.iter().enumerate() {
            batch.write(i, *from, control, data);
        }
        Ok(found.len())
    }

    fn send<'a>(
        &mut self,
        _fd: BorrowedFd<'_>,
        batch: &mut SendBatch,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let note = |m: Outgoing<'_>| {
            let Outgoing { to, src, ecn, segment, data } = m;
            Seen { to, src, ecn, segment, len: data.len() }
        };
        let seen: Vec<Seen> = messages.take(batch.capacity()).map(note).collect();
        let all = seen.len();
        self.seen.send(seen).expect("the test listens");
        match self.answers.try_recv() {
            Ok(Ok(n)) => Ok(n.min(all)),
            Ok(Err(code)) => Err(io::Error::from_raw_os_error(code)),
            Err(_) => Ok(all),
        }
    }
}

/// A net over the script, and the other ends of its channels.
struct Stage {
    net: Mmsg<Script>,
    answers: Sender<Result<usize, i32>>,
    arrivals: Sender<Arrivals>,
    seen: Receiver<Vec<Seen>>,
}

impl Stage {
    fn new(sockets: usize) -> Self {
        let options = Options { tx_slots: 8, tx_batch: 4, rx_batch: 4, ..Options::default() };
        let open = |_| bind(addr("127.0.0.1:0"), &options).expect("a free port");
        let (answers, told) = channel();
        let (arrivals, found) = channel();
        let (note, seen) = channel();
        let kernel = Script { answers: told, arrivals: found, seen: note };
        let net = Mmsg::with_kernel((0..sockets).map(open).collect(), &options, kernel);
        Self { net: net.expect("descriptors"), answers, arrivals, seen }
    }

    fn answer(&self, answers: &[Result<usize, i32>]) {
        for answer in answers {
            self.answers.send(*answer).expect("the script listens");
        }
    }

    fn queue(&mut self, send: Send) {
        queue(&mut self.net, &vec![9; send.len], send);
    }

    /// Lengths given to each call since the last look.
    fn lens(&self) -> Vec<Vec<usize>> {
        let lens = |call: Vec<Seen>| call.into_iter().map(|seen| seen.len).collect();
        self.seen.try_iter().map(lens).collect()
    }

    /// Every slot is free.
    fn all_free(&mut self) -> bool {
        let slots: Vec<_> = (0..8).map_while(|_| self.net.take()).collect();
        for slot in &slots {
            self.net.put_back(*slot);
        }
        slots.len() == 8
    }
}

fn to() -> SocketAddr {
    addr("127.0.0.1:9")
}

fn train(len: usize) -> Send {
    Send { segment: Some(10), ..single(to(), len) }
}

#[test]
fn a_partial_batch_goes_on_with_the_rest() {
    let mut stage = Stage::new(1);
    for len in 1..=6 {
        stage.queue(single(to(), len));
    }
    // The error of the third message shows when a call begins with it.
    stage.answer(&[Ok(2), Err(libc::EHOSTUNREACH)]);
    assert!(stage.net.flush());
    assert_eq!(stage.lens(), [vec![1, 2, 3, 4], vec![3, 4, 5, 6], vec![4, 5, 6]]);
    let counted = stage.net.counters();
    assert_eq!((counted.tx_sends, counted.tx_bytes, counted.tx_unreachable), (5, 18, 1));
    assert!(stage.all_free());
}

#[test]
fn a_full_socket_keeps_its_queue_and_wakes_for_room() {
    let mut stage = Stage::new(2);
    stage.queue(single(to(), 1));
    stage.queue(Send { socket: 1, ..single(to(), 2) });
    stage.answer(&[Err(libc::EAGAIN)]);
    assert!(!wakes(&stage.net, 0));
    assert!(!stage.net.flush());
    assert_eq!(stage.lens(), [[1], [2]], "the other socket goes on");
    assert!(wakes(&stage.net, 0), "the socket has room");
    assert!(!stage.all_free());
    assert!(stage.net.flush());
    assert_eq!(stage.lens(), [[1]]);
    assert!(!wakes(&stage.net, 0));
    assert_eq!(stage.net.counters().tx_blocked, 1);
    assert!(stage.all_free());
}

#[test]
fn an_interrupted_call_is_repeated() {
    let mut stage = Stage::new(1);
    stage.queue(single(to(), 1));
    stage.answer(&[Err(libc::EINTR)]);
    assert!(stage.net.flush());
    assert_eq!(stage.lens(), [[1], [1]]);
    assert_eq!(stage.net.counters().tx_errors, 0);
}

#[test]
fn want_of_kernel_buffers_is_waited_out_but_not_for_ever() {
    let mut stage = Stage::new(1);
    stage.queue(single(to(), 1));
    stage.queue(single(to(), 2));
    let mut flushes = 0;
    loop {
        stage.answer(&[Err(libc::ENOBUFS)]);
        flushes += 1;
        if stage.net.flush() {
            break;
        }
        assert!(flushes < 100, "bounded");
    }
    let counted = stage.net.counters();
    assert_eq!((counted.tx_errors, counted.tx_sends), (1, 1));
    assert_eq!(counted.tx_blocked, flushes - 1);
    assert_eq!(stage.lens().last(), Some(&vec![2]), "the next one is not held up");
    assert!(stage.all_free());
}

#[test]
fn refusals_of_a_destination_drop_and_count() {
    for code in [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EPERM] {
        let mut stage = Stage::new(1);
        stage.queue(train(30));
        stage.queue(single(to(), 2));
        stage.answer(&[Err(code)]);
        assert!(stage.net.flush());
        let counted = stage.net.counters();
        assert_eq!((counted.tx_unreachable, counted.tx_sends, counted.tx_errors), (1, 1, 0));
        assert!(stage.all_free());
    }
}

#[test]
fn a_probe_too_large_is_dropped_and_other_errors_are_counted() {
    let mut stage = Stage::new(1);
    stage.queue(single(to(), 1500));
    stage.queue(single(to(), 1));
    stage.queue(single(to(), 2));
    stage.answer(&[Err(libc::EMSGSIZE), Err(libc::EAFNOSUPPORT)]);
    assert!(stage.net.flush());
    let counted = stage.net.counters();
    assert_eq!((counted.tx_too_big, counted.tx_errors, counted.tx_sends), (1, 1, 1));
    assert!(stage.all_free());
}

#[test]
fn a_refused_train_goes_apart_and_is_remembered() {
    for code in [libc::EIO, libc::EINVAL, libc::EOPNOTSUPP, libc::EMSGSIZE] {
        let mut stage = Stage::new(2);
        stage.queue(train(25));
        stage.queue(train(20));
        assert_eq!(stage.net.caps(0).gso_segments, SEGMENTS_MAX);
        stage.answer(&[Err(code)]);
        assert!(stage.net.flush());
        // The first goes apart; the second was cut before the verdict and goes as it was.
        assert_eq!(stage.lens(), [vec![25, 20], vec![10, 10, 5, 20]]);
        assert_eq!(stage.net.caps(0).gso_segments, 1);
        assert_eq!(stage.net.caps(1).gso_segments, SEGMENTS_MAX, "per socket");
        stage.queue(train(25));
        assert!(stage.net.flush());
        assert_eq!(stage.lens(), [[10, 10, 5]]);
        let counted = stage.net.counters();
        assert_eq!((counted.tx_gso_refused, counted.tx_datagrams), (1, 8));
        assert!(stage.all_free());
    }
}

#[test]
fn a_split_train_that_is_blocked_resumes_where_it_stopped() {
    let mut stage = Stage::new(1);
    stage.queue(train(35));
    stage.answer(&[Err(libc::EIO), Ok(2), Err(libc::EAGAIN)]);
    assert!(!stage.net.flush());
    assert!(stage.net.flush());
    assert_eq!(stage.lens(), [vec![35], vec![10, 10, 10, 5], vec![10, 5], vec![10, 5]]);
    let counted = stage.net.counters();
    assert_eq!((counted.tx_datagrams, counted.tx_bytes), (4, 35));
    assert!(stage.all_free());
}

#[test]
fn datagrams_too_large_do_not_condemn_trains() {
    let mut stage = Stage::new(1);
    stage.queue(train(25));
    stage.answer(&[Err(libc::EMSGSIZE), Err(libc::EMSGSIZE), Err(libc::EMSGSIZE)]);
    assert!(stage.net.flush());
    assert_eq!(stage.lens(), [vec![25], vec![10, 10, 5], vec![10, 5], vec![5]]);
    let counted = stage.net.counters();
    assert_eq!((counted.tx_too_big, counted.tx_datagrams, counted.tx_gso_refused), (2, 1, 0));
    assert_eq!(stage.net.caps(0).gso_segments, SEGMENTS_MAX);
    assert!(stage.all_free());
}

#[test]
fn a_refused_source_is_left_out_and_remembered_if_none_ever_worked() {
    let src = Some(to().ip());
    for worked in [false, true] {
        let mut stage = Stage::new(1);
        if worked {
            stage.queue(Send { src, ..single(to(), 1) });
            assert!(stage.net.flush());
        }
        stage.queue(Send { src, ecn: 2, ..single(to(), 2) });
        stage.answer(&[Err(libc::EINVAL)]);
        assert!(stage.net.flush());
        let calls: Vec<_> = stage.seen.try_iter().flatten().filter(|s| s.len == 2).collect();
        assert_eq!((calls[0].src, calls[0].ecn), (src, 2));
        assert_eq!((calls[1].src, calls[1].ecn), (None, 2));
        let caps = stage.net.caps(0);
        assert_eq!((caps.pktinfo, caps.ecn), (worked, true));
        assert_eq!(stage.net.counters().tx_errors, 0);
        assert!(stage.all_free());
    }
}

#[test]
fn refused_ecn_bits_are_left_out_and_remembered() {
    let mut stage = Stage::new(1);
    stage.queue(Send { src: Some(to().ip()), ecn: 2, ..single(to(), 1) });
    stage.answer(&[Err(libc::EINVAL), Err(libc::EINVAL)]);
    assert!(stage.net.flush());
    let last = stage.seen.try_iter().flatten().last().expect("sent");
    assert_eq!((last.src, last.ecn), (None, 0));
    assert_eq!((stage.net.caps(0).ecn, stage.net.counters().tx_sends), (false, 1));
    stage.queue(Send { ecn: 2, ..single(to(), 1) });
    assert!(stage.net.flush());
    assert_eq!(stage.seen.try_iter().flatten().last().expect("sent").ecn, 0);
}

#[test]
fn a_send_refused_bare_is_dropped_and_teaches_nothing() {
    let mut stage = Stage::new(1);
    let caps = stage.net.caps(0);
    stage.queue(Send { src: Some(to().ip()), ecn: 2, ..train(20) });
    stage.answer(&[Err(libc::EINVAL); 4]);
    assert!(stage.net.flush());
    assert_eq!(stage.lens(), [vec![20], vec![10, 10], vec![10, 10], vec![10, 10]]);
    assert_eq!((stage.net.caps(0), stage.net.counters().tx_errors), (caps, 1));
    assert!(stage.all_free());
}

#[test]
fn receive_errors_are_skipped_within_a_bound() {
    let mut stage = Stage::new(1);
    let datagram = vec![(to(), Vec::new(), vec![1, 2])];
    for found in [Err(libc::ECONNREFUSED), Err(libc::EINTR), Ok(datagram)] {
        stage.arrivals.send(found).expect("the script listens");
    }
    let mut got = Vec::new();
    assert!(!stage.net.rx(8, &mut |rx| got.push((rx.stride, rx.data.to_vec()))));
    assert_eq!(got, [(2, vec![1, 2])]);
    assert_eq!(stage.net.counters().rx_errors, 1);
    for _ in 0..1000 {
        stage.arrivals.send(Err(libc::EHOSTUNREACH)).expect("the script listens");
    }
    assert!(!stage.net.rx(8, &mut |_| panic!("nothing came")));
    assert!(stage.net.counters().rx_errors < 100);
}

#[test]
fn cut_and_empty_messages_and_full_batches() {
    let mut stage = Stage::new(1);
    let message = |len| (to(), Vec::new(), vec![1; len]);
    let found = vec![message(70_000), (to(), vec![0; 300], vec![2]), message(0), message(3)];
    stage.arrivals.send(Ok(found)).expect("the script listens");
    stage.arrivals.send(Ok(vec![message(4)])).expect("the script listens");
    let mut lens = Vec::new();
    assert!(!stage.net.rx(8, &mut |rx| lens.push((rx.data.len(), rx.datagrams().count()))));
    assert_eq!(lens, [(0, 0), (3, 1), (4, 1)]);
    assert_eq!(stage.net.counters().rx_truncated, 2);
    let full = (0..4).map(|_| message(1)).collect();
    stage.arrivals.send(Ok(full)).expect("the script listens");
    assert!(stage.net.rx(4, &mut |_| {}), "a full batch may not be all");
}
