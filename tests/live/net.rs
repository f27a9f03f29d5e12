//! The net over loopback: bytes, addresses, ECN bits and trains both ways, and what wakes a
//! shard that sleeps on the net's descriptor.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use corelay::net::mmsg::{Mmsg, Options, bind};
use corelay::net::sys::Kernel;
use corelay::net::{Net, Rx, SEGMENTS_MAX, SLOT_BYTES, Send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

mod scripted;

/// A received datagram, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    socket: u16,
    from: SocketAddr,
    local_ip: Option<IpAddr>,
    ecn: u8,
    data: Vec<u8>,
}

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// A net with a socket at each of `addrs`; `None` where the host has no IPv6.
fn net(addrs: &[&str], options: &Options) -> Option<Mmsg> {
    let mut sockets = Vec::new();
    for text in addrs {
        match bind(addr(text), options) {
            Ok(socket) => sockets.push(socket),
            Err(error) if error.is_no_ipv6() => {
                eprintln!("SKIPPED: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
    }
    Some(Mmsg::new(sockets, options).expect("descriptors"))
}

fn v4_net(text: &str) -> Mmsg {
    net(&[text], &Options::default()).expect("IPv4 is always there")
}

/// A single datagram from socket 0.
fn single(to: SocketAddr, len: usize) -> Send {
    Send { socket: 0, to, src: None, ecn: 0, segment: None, len }
}

fn queue<K: Kernel>(net: &mut Mmsg<K>, data: &[u8], send: Send) {
    let slot = net.take().expect("a free slot");
    net.buf(slot).extend_from_slice(data);
    net.send(slot, send);
}

/// Whether the net's descriptor becomes readable within `ms`.
fn wakes<K: Kernel>(net: &Mmsg<K>, ms: i64) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(net.pollable(), PollFlags::IN)];
    let timeout = Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 };
    poll(&mut fds, Some(&timeout)).expect("poll") > 0
}

/// The next `n` datagrams, trains taken apart.
fn receive(net: &mut Mmsg, n: usize) -> Vec<Got> {
    let mut got = Vec::new();
    while got.len() < n {
        assert!(wakes(net, 5000), "{} of {n} datagrams came", got.len());
        net.rx(usize::MAX, &mut |rx: Rx<'_>| {
            let Rx { socket, from, local_ip, ecn, .. } = rx;
            let own = |data: &[u8]| Got { socket, from, local_ip, ecn, data: data.to_vec() };
            got.extend(rx.datagrams().map(own));
        });
    }
    assert_eq!(got.len(), n);
    got
}

/// Sends from `a` to `to` at `b` and back to where it came from; returns both arrivals.
fn echo(a: &mut Mmsg, b: &mut Mmsg, to: SocketAddr, ecn: u8) -> (Got, Got) {
    queue(a, b"ping", Send { ecn, ..single(to, 4) });
    assert!(a.flush());
    let ping = receive(b, 1).remove(0);
    queue(b, &ping.data, Send { src: ping.local_ip, ecn, ..single(ping.from, 4) });
    assert!(b.flush());
    let pong = receive(a, 1).remove(0);
    assert_eq!((&ping.data[..], &pong.data[..]), (&b"ping"[..], &b"ping"[..]));
    (ping, pong)
}

#[test]
fn addresses_and_ecn_bits_survive_both_families() {
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let Some(mut a) = net(&[host], &Options::default()) else { continue };
        let Some(mut b) = net(&[host], &Options::default()) else { continue };
        let (at_a, at_b) = (a.local_addr(0), b.local_addr(0));
        for ecn in 0..4 {
            let (ping, pong) = echo(&mut a, &mut b, at_b, ecn);
            assert_eq!((ping.from, ping.local_ip, ping.ecn), (at_a, Some(at_b.ip()), ecn));
            assert_eq!((pong.from, pong.local_ip, pong.ecn), (at_b, Some(at_a.ip()), ecn));
        }
        assert!(a.caps(0).ecn && a.caps(0).pktinfo);
        let counted = a.counters();
        assert_eq!((counted.tx_sends, counted.tx_bytes, counted.rx_datagrams), (4, 16, 4));
    }
}

#[test]
fn the_answer_leaves_from_the_address_that_was_asked() {
    let (mut client, mut server) = (v4_net("127.0.0.1:0"), v4_net("0.0.0.0:0"));
    let asked = SocketAddr::from(([127, 0, 0, 2], server.local_addr(0).port()));
    let (ping, pong) = echo(&mut client, &mut server, asked, 2);
    assert_eq!((ping.local_ip, pong.from), (Some(asked.ip()), asked));
}

#[test]
fn a_dual_stack_socket_shows_plain_addresses() {
    let mut client = v4_net("127.0.0.1:0");
    let Some(mut server) = net(&["[::]:0"], &Options::default()) else { return };
    let asked = SocketAddr::from(([127, 0, 0, 3], server.local_addr(0).port()));
    for ecn in 0..4 {
        let (ping, pong) = echo(&mut client, &mut server, asked, ecn);
        assert_eq!((ping.from, ping.ecn), (client.local_addr(0), ecn));
        assert_eq!((ping.local_ip, pong.from, pong.ecn), (Some(asked.ip()), asked, ecn));
    }
    let Some(mut client) = net(&["[::1]:0"], &Options::default()) else { return };
    let asked = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, asked.port()));
    let (ping, pong) = echo(&mut client, &mut server, asked, 1);
    assert_eq!((ping.from, ping.ecn), (client.local_addr(0), 1));
    assert_eq!((pong.from, pong.ecn), (asked, 1));
}

#[test]
fn a_train_arrives_whole_joined_or_not() {
    let joined = Options::default();
    let apart = Options { rx_buffer_bytes: 2048, ..joined };
    let no_gso = Options { gso: false, ..joined };
    let data: Vec<u8> =
        (0..10 * 1200 + 300).map(|i| u8::try_from(i % 251).expect("small")).collect();
    for host in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        for (tx, rx) in [(&joined, &joined), (&joined, &apart), (&no_gso, &joined)] {
            let Some(mut b) = net(&[host], rx) else { continue };
            let Some(mut a) = net(&[host], tx) else { continue };
            let ip: IpAddr =
                if host == "[::]:0" { [127, 0, 0, 1].into() } else { b.local_addr(0).ip() };
            let to = SocketAddr::from((ip, b.local_addr(0).port()));
            queue(&mut a, &data, Send { segment: Some(1200), ecn: 2, ..single(to, data.len()) });
            assert!(a.flush());
            let got = receive(&mut b, 11);
            assert!(got.iter().all(|got| got.ecn == 2 && got.local_ip == Some(ip)));
            let bytes: Vec<u8> = got.into_iter().flat_map(|got| got.data).collect();
            assert_eq!(bytes, data);
            let (sent, received) = (a.counters(), b.counters());
            assert_eq!((sent.tx_datagrams, sent.tx_gso_refused), (11, 0));
            assert_eq!((received.rx_datagrams, received.rx_truncated), (11, 0));
            assert_eq!(sent.tx_sends == 1, a.caps(0).gso_segments > 1);
            if b.caps(0).gro && a.caps(0).gso_segments > 1 {
                assert_eq!(received.rx_messages, 1, "the kernel joins what it did not split");
            }
        }
    }
}

#[test]
fn the_largest_train_fits() {
    let (mut a, mut b) = (v4_net("127.0.0.1:0"), v4_net("127.0.0.1:0"));
    let segment = SLOT_BYTES / SEGMENTS_MAX;
    let data = vec![7; SLOT_BYTES];
    let to = b.local_addr(0);
    queue(&mut a, &data, Send { segment: Some(segment), ..single(to, SLOT_BYTES) });
    assert!(a.flush());
    assert_eq!(receive(&mut b, SEGMENTS_MAX).len(), SEGMENTS_MAX);
    assert_eq!(a.counters().tx_gso_refused, 0);
}

#[test]
fn a_cut_datagram_is_dropped_and_counted() {
    let small = Options { rx_buffer_bytes: 100, ..Options::default() };
    let mut b = net(&["127.0.0.1:0"], &small).expect("IPv4");
    let mut a = v4_net("127.0.0.1:0");
    let to = b.local_addr(0);
    queue(&mut a, &[1; 101], single(to, 101));
    queue(&mut a, &[2; 100], single(to, 100));
    assert!(a.flush());
    assert_eq!(receive(&mut b, 1)[0].data, [2; 100]);
    assert_eq!((b.counters().rx_truncated, b.counters().rx_messages), (1, 1));
}

#[test]
fn no_socket_starves_another() {
    let options = Options { rx_batch: 2, ..Options::default() };
    let mut b = net(&["127.0.0.1:0", "127.0.0.1:0"], &options).expect("IPv4");
    let mut a = v4_net("127.0.0.1:0");
    for i in 0..8 {
        let to = b.local_addr(u16::from(i >= 6));
        queue(&mut a, &[i], single(to, 1));
    }
    assert!(a.flush());
    let mut order = Vec::new();
    assert!(b.rx(5, &mut |rx| order.push(rx.socket)), "more waits");
    assert!(!b.rx(9, &mut |rx| order.push(rx.socket)), "nothing waits");
    assert_eq!(order[..5], [0, 0, 1, 1, 0]);
    assert_eq!(order.len(), 8);
    assert_eq!(b.counters().rx_batches, 5);
}

#[test]
fn slots_run_out_and_come_back() {
    let options = Options { tx_slots: 3, tx_batch: 2, ..Options::default() };
    let mut a = net(&["127.0.0.1:0"], &options).expect("IPv4");
    let mut b = v4_net("127.0.0.1:0");
    let to = b.local_addr(0);
    for _ in 0..4 {
        for i in 0..3 {
            queue(&mut a, &[i], single(to, 1));
        }
        assert_eq!(a.take(), None);
        assert!(a.flush());
        let got: Vec<u8> = receive(&mut b, 3).iter().map(|got| got.data[0]).collect();
        assert_eq!(got, [0, 1, 2]);
    }
    let counted = a.counters();
    assert_eq!((counted.tx_slots_exhausted, counted.tx_batches, counted.tx_sends), (4, 8, 12));
}

#[test]
fn a_source_that_is_not_ours_costs_the_socket_nothing() {
    for (host, foreign) in [("127.0.0.1:0", "192.0.2.1"), ("[::1]:0", "2001:db8::9")] {
        let Some(mut a) = net(&[host], &Options::default()) else { continue };
        let Some(mut b) = net(&[host], &Options::default()) else { continue };
        let (to, own, caps) = (b.local_addr(0), a.local_addr(0), a.caps(0));
        let foreign = Some(foreign.parse().expect("an address"));
        queue(&mut a, &[1], Send { src: Some(own.ip()), ..single(to, 1) });
        queue(&mut a, &[2; 30], Send { src: foreign, segment: Some(10), ..single(to, 30) });
        queue(&mut a, &[3], Send { src: foreign, ..single(to, 1) });
        queue(&mut a, &[4], Send { src: Some(own.ip()), ..single(to, 1) });
        assert!(a.flush());
        // Over IPv4 the kernel finds no route; over IPv6 it refuses the source, which is left out.
        let dropped = usize::try_from(a.counters().tx_unreachable).expect("small");
        assert_eq!(dropped, if own.is_ipv4() { 2 } else { 0 });
        let got = receive(&mut b, if own.is_ipv4() { 2 } else { 6 });
        assert!(got.iter().all(|got| got.from == own));
        assert_eq!(got.last().map(|got| got.data[0]), Some(4));
        assert_eq!((a.caps(0), a.counters().tx_errors), (caps, 0));
    }
}

#[test]
fn a_taken_port_names_the_remedy_and_families_do_not_collide() {
    let options = Options::default();
    let held = bind(addr("127.0.0.1:0"), &options).expect("a free port");
    let taken = held.local_addr().expect("bound");
    let error = bind(taken, &options).expect_err("the port is taken");
    let text = error.to_string();
    assert!(text.contains("choose another --listen"), "{text}");
    assert!(text.contains(&format!("`ss -lunp sport = :{}`", taken.port())), "{text}");
    assert!(!error.is_no_ipv6());
    let v6 = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, taken.port()));
    match bind(v6, &options) {
        Ok(_) => {}
        Err(error) if error.is_no_ipv6() => eprintln!("SKIPPED: {error}"),
        Err(error) => panic!("{error}"),
    }
    let error = bind(addr("192.0.2.1:0"), &options).expect_err("not an address of ours");
    assert!(error.to_string().contains("`ip address`"), "{error}");
}

#[test]
fn data_wakes_the_sleeper_until_it_is_read() {
    let (mut a, mut b) = (v4_net("127.0.0.1:0"), v4_net("127.0.0.1:0"));
    assert!(!wakes(&b, 0));
    let to = b.local_addr(0);
    queue(&mut a, &[1], single(to, 1));
    assert!(a.flush());
    assert!(wakes(&b, 5000));
    receive(&mut b, 1);
    assert!(!wakes(&b, 0));
    assert!(!wakes(&a, 0), "a socket with room to send is no reason to wake");
}

#[test]
fn the_doorbell_wakes_from_another_thread() {
    let mut net = v4_net("127.0.0.1:0");
    let doorbell = net.doorbell().expect("a descriptor");
    let ringer = std::thread::spawn(move || {
        for _ in 0..2 {
            rustix::io::write(&doorbell, &1_u64.to_ne_bytes()).expect("rung");
        }
    });
    assert!(wakes(&net, 5000));
    ringer.join().expect("the ringer ends");
    net.drain_doorbell();
    assert!(!wakes(&net, 0), "two rings are one wake-up");
    net.drain_doorbell();
}

#[test]
fn the_timer_fires_and_is_silenced() {
    let mut net = v4_net("127.0.0.1:0");
    net.arm(None);
    net.arm(Some(Duration::from_millis(5)));
    assert!(!wakes(&net, 0));
    assert!(wakes(&net, 5000));
    assert!(wakes(&net, 0), "until it is set again");
    net.arm(None);
    assert!(!wakes(&net, 0));
    net.arm(Some(Duration::ZERO));
    assert!(wakes(&net, 5000), "a deadline that has passed fires");
    net.arm(Some(Duration::MAX));
    assert!(!wakes(&net, 0));
    net.arm(Some(Duration::from_millis(1)));
    net.arm(None);
    assert!(!wakes(&net, 20));
}
