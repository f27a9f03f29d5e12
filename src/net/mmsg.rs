//! The net over `recvmmsg` and `sendmmsg`: many datagrams per call, trains both ways.
//!
//! Owns the sockets of a shard, one queue of sends per socket, and the descriptor the shard
//! sleeps on: an epoll set of the sockets, a doorbell other threads ring and a timer.
//!
//! Invariant: whatever stays queued after a flush has its socket's write interest in the epoll
//! set, so a shard that sleeps is woken when the kernel has room again.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::bind::enable;
pub use super::bind::{BindError, bind};
use super::pool::Pool;
use super::queue::{Queued, Trim};
use super::sys::{Kernel, Linux, RecvBatch, SendBatch};
use super::{Caps, Counters, Net, Rx, SLOT_BYTES, Send, Slot, cmsg, count};

/// Failed receive calls in a row after which a socket is left until the next turn.
const RX_TRIES_MAX: u32 = 16;
/// Flushes a send waits for kernel buffers before it is dropped.
const TX_TRIES_MAX: u32 = 16;

/// Sizes of a net.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of one receive buffer; below 64 KiB the kernel is not asked to join datagrams.
    pub rx_buffer_bytes: usize,
    /// Most messages one receive call takes.
    pub rx_batch: usize,
    /// Transmit slots of [`super::SLOT_BYTES`] each.
    pub tx_slots: usize,
    /// Most messages one send call takes.
    pub tx_batch: usize,
    /// Bytes the kernel may hold per socket and direction.
    pub socket_buffer_bytes: usize,
    /// Send trains.
    pub gso: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rx_buffer_bytes: 65_536,
            rx_batch: 32,
            tx_slots: 128,
            tx_batch: 64,
            socket_buffer_bytes: 8 << 20,
            gso: true,
        }
    }
}

/// One socket and what waits to leave by it.
struct Port {
    socket: UdpSocket,
    addr: SocketAddr,
    caps: Caps,
    /// A send with a source address went through, so a refusal is about the address.
    src_works: bool,
    queue: VecDeque<Queued>,
    /// The epoll set watches for room to send.
    wants_out: bool,
    /// Found empty in the receive round under way.
    drained: bool,
}

/// Datagrams of one shard over the kernel's batch calls. Stays on the thread that made it.
pub struct Mmsg<K: Kernel = Linux> {
    kernel: K,
    ports: Vec<Port>,
    /// The socket the next receive round begins with.
    next: usize,
    recv: RecvBatch,
    transmit: SendBatch,
    pool: Pool,
    epoll: OwnedFd,
    doorbell: OwnedFd,
    timer: OwnedFd,
    /// The timer is set or has fired unread.
    armed: bool,
    counters: Counters,
}

impl Mmsg {
    /// A net over `sockets`, in that order. Fails when the kernel gives no descriptor.
    pub fn new(sockets: Vec<UdpSocket>, options: &Options) -> io::Result<Self> {
        Self::with_kernel(sockets, options, Linux)
    }
}

impl<K: Kernel> Mmsg<K> {
    /// As [`Mmsg::new`], with `kernel` answering the batch calls.
    pub fn with_kernel(sockets: Vec<UdpSocket>, options: &Options, kernel: K) -> io::Result<Self> {
        assert!(options.rx_batch > 0 && options.tx_batch > 0, "a batch holds at least one");
        assert!(u16::try_from(sockets.len()).is_ok(), "socket indices are 16 bits");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer_flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, timer_flags)?;
        watch(&epoll, doorbell.as_fd())?;
        watch(&epoll, timer.as_fd())?;
        let mut ports = Vec::with_capacity(sockets.len());
        for socket in sockets {
            socket.set_nonblocking(true)?;
            let addr = socket.local_addr()?;
            watch(&epoll, socket.as_fd())?;
            ports.push(Port {
                addr,
                caps: enable(socket.as_fd(), addr.is_ipv6(), options),
                socket,
                src_works: false,
                queue: VecDeque::with_capacity(options.tx_slots),
                wants_out: false,
                drained: false,
            });
        }
        Ok(Self {
            kernel,
            ports,
            next: 0,
            recv: RecvBatch::new(options.rx_batch, options.rx_buffer_bytes),
            transmit: SendBatch::new(options.tx_batch),
            pool: Pool::new(options.tx_slots),
            epoll,
            doorbell,
            timer,
            armed: false,
            counters: Counters::default(),
        })
    }

    /// The descriptor to sleep on: readable while a datagram waits, the doorbell was rung, the
    /// timer fired, or a socket that refused sends has room.
    pub fn pollable(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// A handle of the doorbell for another thread: an eventfd, rung by writing a nonzero `u64`.
    pub fn doorbell(&self) -> io::Result<OwnedFd> {
        self.doorbell.try_clone()
    }

    /// Has `bell` wake the shard too; silencing it is its reader's business.
    pub fn watch(&self, bell: BorrowedFd<'_>) -> io::Result<()> {
        watch(&self.epoll, bell)
    }

    /// Silences the doorbell. Whatever was published before it rang can be read after this.
    pub fn drain_doorbell(&mut self) {
        // An empty doorbell answers EAGAIN, which is as good as drained.
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
    }

    /// Sets the timer to fire `after` from now, or stops it; either way one that has fired is
    /// silenced. Stopping a stopped timer costs nothing.
    pub fn arm(&mut self, after: Option<Duration>) {
        if after.is_none() && !self.armed {
            return;
        }
        self.armed = after.is_some();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A zero time would stop the timer; a deadline that has passed must fire.
        let it_value = after.map_or(zero, |after| Timespec {
            tv_sec: i64::from(i32::try_from(after.as_secs()).unwrap_or(i32::MAX)),
            tv_nsec: i64::from(after.subsec_nanos()).max(i64::from(after.as_secs() == 0)),
        });
        let new = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &new)
            .expect("a timer of ours takes a valid time");
    }

    /// Receives once from a socket and hands over what came; returns how many messages.
    fn rx_port(&mut self, index: usize, most: usize, sink: &mut dyn FnMut(Rx<'_>)) -> usize {
        let most = most.min(self.recv.capacity());
        let port = &mut self.ports[index];
        let mut tries = 0;
        let received = loop {
            match self.kernel.recv(port.socket.as_fd(), &mut self.recv, most) {
                Ok(n) => break n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An ICMP error of an earlier send: reading it clears it.
                Err(_) => self.counters.rx_errors += 1,
            }
            tries += 1;
            if tries == RX_TRIES_MAX {
                break 0;
            }
        };
        port.drained = received < most;
        self.counters.rx_batches += u64::from(received > 0);
        for i in 0..received {
            let message = self.recv.message(i);
            let (false, Some(from)) = (message.truncated, message.from) else {
                self.counters.rx_truncated += 1;
                continue;
            };
            let cmsg::Received { ecn, local_ip, stride } = cmsg::parse(message.control);
            let data = message.data;
            let stride = stride.unwrap_or(data.len()).max(1);
            self.counters.rx_messages += 1;
            self.counters.rx_datagrams += count(data.len().div_ceil(stride).max(1));
            self.counters.rx_bytes += count(data.len());
            sink(Rx { socket: id(index), from, local_ip, ecn, stride, data });
        }
        received
    }

    /// Submits a socket's queue; true when nothing is left.
    fn flush_port(&mut self, index: usize) -> bool {
        while !self.ports[index].queue.is_empty() {
            let port = &self.ports[index];
            let (caps, v6, pool) = (port.caps, port.addr.is_ipv6(), &self.pool);
            let messages = port.queue.iter().flat_map(|q| q.messages(pool.bytes(q.slot), caps, v6));
            let fd = port.socket.as_fd();
            let go_on = match self.kernel.send(fd, &mut self.transmit, messages) {
                Ok(0) => false,
                Ok(n) => {
                    self.accepted(index, n, caps.gso_segments);
                    true
                }
                Err(error) => self.refused(index, &error),
            };
            if !go_on {
                self.counters.tx_blocked += 1;
                self.want_out(index, true);
                return false;
            }
        }
        self.want_out(index, false);
        true
    }

    /// The kernel took the first `n` messages, which were cut for `gso_segments`.
    fn accepted(&mut self, index: usize, n: usize, gso_segments: usize) {
        let port = &mut self.ports[index];
        self.counters.tx_batches += 1;
        self.counters.tx_sends += count(n);
        for _ in 0..n {
            let front = port.queue.front_mut().expect("the kernel takes no more than was sent");
            let bytes = front.next_bytes(gso_segments);
            self.counters.tx_datagrams += count(front.datagrams(bytes));
            self.counters.tx_bytes += count(bytes);
            front.offset += bytes;
            let suspect = std::mem::take(&mut front.suspect);
            let (trim, done, slot) = (front.trim, front.is_done(), front.slot);
            port.src_works |= front.src(&port.caps).is_some();
            if suspect && port.caps.gso_segments > 1 {
                port.caps.gso_segments = 1;
                self.counters.tx_gso_refused += 1;
                tracing::warn!(addr = %port.addr, "trains are refused; sending single datagrams");
            }
            match trim {
                Trim::Nothing => {}
                Trim::Src => port.caps.pktinfo &= port.src_works,
                Trim::SrcAndEcn => port.caps.ecn = false,
            }
            if done {
                port.queue.pop_front();
                self.pool.release(slot);
            }
        }
    }

    /// The kernel refused the first message; false when the socket must wait.
    fn refused(&mut self, index: usize, error: &io::Error) -> bool {
        let port = &mut self.ports[index];
        let front = port.queue.front_mut().expect("a refusal is about a message");
        let train = front.is_train(port.caps.gso_segments);
        let tally = &mut self.counters;
        match error.raw_os_error().unwrap_or(0) {
            libc::EINTR => return true,
            libc::EAGAIN => return false,
            libc::ENOBUFS if front.tries < TX_TRIES_MAX => {
                front.tries += 1;
                return false;
            }
            libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::EMSGSIZE if train => {
                (front.split, front.suspect) = (true, true);
                return true;
            }
            libc::EMSGSIZE => {
                // Only this datagram is too large; the last of a train may be smaller.
                front.suspect = false;
                front.offset += front.next_bytes(port.caps.gso_segments);
                tally.tx_too_big += 1;
                if !front.is_done() {
                    return true;
                }
            }
            libc::EINVAL if front.trim_more(&port.caps) => {
                front.suspect = false;
                return true;
            }
            libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EPERM => {
                tally.tx_unreachable += 1;
            }
            _ => tally.tx_errors += 1,
        }
        if let Some(dropped) = port.queue.pop_front() {
            self.pool.release(dropped.slot);
        }
        true
    }

    /// Watches a socket for room to send, or stops that.
    fn want_out(&mut self, index: usize, wanted: bool) {
        let port = &mut self.ports[index];
        if port.wants_out == wanted {
            return;
        }
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wanted);
        let data = epoll::EventData::new_u64(0);
        match epoll::modify(&self.epoll, port.socket.as_fd(), data, flags) {
            Ok(()) => port.wants_out = wanted,
            Err(error) => tracing::warn!(%error, "cannot watch a socket; the next flush retries"),
        }
    }
}

impl<K: Kernel> Net for Mmsg<K> {
    fn rx(&mut self, budget: usize, sink: &mut dyn FnMut(Rx<'_>)) -> bool {
        let (sockets, mut left, mut open) = (self.ports.len(), budget, self.ports.len());
        for port in &mut self.ports {
            port.drained = false;
        }
        while open > 0 && left > 0 {
            let index = self.next;
            self.next = (index + 1) % sockets;
            if self.ports[index].drained {
                continue;
            }
            left -= self.rx_port(index, left, sink);
            open -= usize::from(self.ports[index].drained);
        }
        open > 0
    }

    fn take(&mut self) -> Option<Slot> {
        let slot = self.pool.take();
        self.counters.tx_slots_exhausted += u64::from(slot.is_none());
        slot
    }

    fn buf(&mut self, slot: Slot) -> &mut Vec<u8> {
        self.pool.buf(slot)
    }

    fn put_back(&mut self, slot: Slot) {
        self.pool.put_back(slot);
    }

    fn send(&mut self, slot: Slot, send: Send) {
        assert!((1..=SLOT_BYTES).contains(&send.len), "a send of {} bytes", send.len);
        assert!(send.segment != Some(0), "a train of empty datagrams");
        self.pool.queue(slot, send.len);
        self.ports[usize::from(send.socket)].queue.push_back(Queued::new(slot, send));
    }

    fn flush(&mut self) -> bool {
        let mut clear = true;
        for index in 0..self.ports.len() {
            clear &= self.flush_port(index);
        }
        clear
    }

    fn caps(&self, socket: u16) -> Caps {
        self.ports[usize::from(socket)].caps
    }

    fn local_addr(&self, socket: u16) -> SocketAddr {
        self.ports[usize::from(socket)].addr
    }

    fn sockets(&self) -> usize {
        self.ports.len()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// Adds a descriptor to the epoll set, for reading.
fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok(())
}

/// A socket's index as the users of the net see it.
fn id(index: usize) -> u16 {
    u16::try_from(index).expect("checked when the net was built")
}
