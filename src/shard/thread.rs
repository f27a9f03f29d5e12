//! The thread of a shard: pinning, the clock, and sleeping. The only file that names monoio.
//!
//! One main future owns the shard. While there is work it turns without waiting, and lets the
//! runtime breathe at least every millisecond; otherwise it arms the datapath's timer and awaits
//! its one pollable descriptor. Invariant: the deadline is armed and the mailboxes are looked at
//! before every sleep, so a wake between the last turn and the sleep is a readable descriptor,
//! never lost.

#![expect(clippy::disallowed_methods, reason = "the only file of a shard that reads the clock")]

use std::net::UdpSocket;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{ClockId, clock_nanosleep_relative, set_current_timer_slack};
use rustix::time::Timespec;

use super::{Make, Shard};
use crate::fanout::mailbox::Doorbell;
use crate::net::mmsg::{Mmsg, Options};

/// A shard that did nothing for this long is idle: what comes next is not held.
const IDLE: Duration = Duration::from_millis(2);
/// Longest time without letting the runtime run.
const BREATH: Duration = Duration::from_millis(1);

/// Why a shard's thread did not start or did not go on.
#[derive(Debug)]
pub enum ThreadError {
    /// The thread could not be made.
    Spawn(std::io::Error),
    /// The core does not exist or may not be used.
    Pin(usize),
    /// The runtime or the datapath could not be made.
    Start(std::io::Error),
    /// The TLS set-up has no suite that QUIC can begin with.
    Tls,
    /// Waiting failed while running.
    Wait(std::io::Error),
}

impl std::fmt::Display for ThreadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Spawn(error) => write!(
                f,
                "cannot start a thread for the shard: {error}; raise the limit on threads (`ulimit -u`)"
            ),
            Self::Pin(core) => write!(
                f,
                "cannot pin the shard to core {core}: it does not exist or this process may not use it; choose one of `taskset -cp $$` with --cores, or give --runtime-pin=false"
            ),
            Self::Start(error) => write!(
                f,
                "cannot start the datapath: {error}; check `ulimit -n` and that epoll, eventfd and timerfd are allowed"
            ),
            Self::Tls => write!(f, "the TLS set-up offers no cipher suite QUIC can begin with"),
            Self::Wait(error) => write!(f, "waiting for the network failed: {error}"),
        }
    }
}

impl std::error::Error for ThreadError {}

/// What the thread needs besides the shard.
pub struct Place {
    /// The core to pin to.
    pub core: Option<usize>,
    /// Bound sockets, in the order of their index.
    pub sockets: Vec<UdpSocket>,
    /// How the datapath is set up.
    pub options: Options,
    /// Rung by control when it left mail.
    pub bell: Doorbell,
    /// Told once the shard serves, so that starting can fail where it began.
    pub ready: SyncSender<Result<(), ThreadError>>,
}

/// Starts the shard's thread.
pub fn spawn(place: Place, make: Make) -> Result<JoinHandle<()>, ThreadError> {
    std::thread::Builder::new()
        .name("shard-0".into())
        .spawn(move || {
            if let Err(error) = run(place, make) {
                // A shard cannot be lost alone: viewers of a half-dead relay are worse off than
                // those of one that restarts.
                tracing::error!(%error, "the shard ended");
                std::process::exit(1);
            }
        })
        .map_err(ThreadError::Spawn)
}

/// What begins on the thread, in order.
type Begun =
    (Shard<Mmsg>, monoio::FusionRuntime<monoio::IoUringDriver, monoio::LegacyDriver>, Doorbell);

fn run(place: Place, make: Make) -> Result<(), ThreadError> {
    let ready = place.ready.clone();
    match begin(place, make) {
        Ok((shard, mut runtime, bell)) => {
            // Whoever waits for this gave up only if the process is ending.
            let _ = ready.send(Ok(()));
            runtime.block_on(serve(shard, bell))
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            Ok(())
        }
    }
}

fn begin(place: Place, make: Make) -> Result<Begun, ThreadError> {
    if let Some(core) = place.core
        && !pin(core)
    {
        return Err(ThreadError::Pin(core));
    }
    // Holds are shorter than the kernel's usual slack; refused, they are only less exact.
    let _ = set_current_timer_slack(NonZeroU64::new(1000));
    let net = Mmsg::new(place.sockets, &place.options).map_err(ThreadError::Start)?;
    net.watch(place.bell.as_fd()).map_err(ThreadError::Start)?;
    let shard = Shard::new(net, make, Instant::now()).map_err(|_| ThreadError::Tls)?;
    let runtime = monoio::RuntimeBuilder::<monoio::FusionDriver>::new()
        .with_entries(64)
        .build()
        .map_err(ThreadError::Start)?;
    Ok((shard, runtime, place.bell))
}

/// False when the core does not exist or may not be used. Asked first, since a number beyond the
/// kernel's mask may not even be tried.
fn pin(core: usize) -> bool {
    let usable = core_affinity::get_core_ids().unwrap_or_default();
    usable.iter().any(|held| held.id == core)
        && core_affinity::set_for_current(core_affinity::CoreId { id: core })
}

/// Waits out the rest of a hold, deaf to everything.
fn nap(rest: Duration) {
    if !rest.is_zero() {
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(rest.subsec_nanos()) };
        // Interrupted or not, the next turn looks for itself.
        let _ = clock_nanosleep_relative(ClockId::Monotonic, &time);
    }
}

async fn serve(mut shard: Shard<Mmsg>, bell: Doorbell) -> Result<(), ThreadError> {
    let pollable = shard.net.pollable().try_clone_to_owned().map_err(ThreadError::Start)?;
    // monoio polls any descriptor behind a socket type; nothing is ever read from this one.
    let waiter = monoio::net::udp::UdpSocket::from_std(UdpSocket::from(pollable))
        .map_err(ThreadError::Start)?;
    let mut clock = Instant::now;
    let hold = shard.egress_hold();
    let mut pace = Pace::new(Instant::now());
    loop {
        let began = Instant::now();
        let outcome = shard.turn(&mut clock);
        if outcome.ended {
            shard.edge.ended();
            shard.edge.flush();
            return Ok(());
        }
        let now = Instant::now();
        if outcome.active && !outcome.busy {
            let recent = now.duration_since(pace.active) < IDLE;
            pace.active = now;
            if recent && !hold.is_zero() {
                nap(hold.saturating_sub(now.duration_since(began)));
                continue;
            }
        }
        if outcome.busy && now.duration_since(pace.breathed) < BREATH {
            continue;
        }
        pace.breathed = now;
        let deadline = if outcome.busy { Some(now) } else { outcome.deadline };
        pace.arm(&mut shard.net, now, deadline);
        shard.edge.parks += u64::from(!outcome.busy);
        waiter.readable(false).await.map_err(ThreadError::Wait)?;
        // Mail is taken in the turn that follows, so the bell is silenced before it. A turn that
        // did nothing may have been woken by a bell whose mail an earlier one took.
        if !outcome.active || shard.edge.has_mail() {
            bell.silence();
        }
    }
}

/// When the shard last did what, and when its timer fires.
struct Pace {
    active: Instant,
    breathed: Instant,
    armed: Option<Instant>,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { active: now, breathed: now, armed: None }
    }

    /// Has the timer fire by `deadline`. One that fires sooner is left alone, since deadlines
    /// mostly move later and a needless turn is cheaper than a call for each sleep.
    fn arm(&mut self, net: &mut Mmsg, now: Instant, deadline: Option<Instant>) {
        if let (Some(armed), Some(deadline)) = (self.armed, deadline)
            && armed > now
            && armed <= deadline
        {
            return;
        }
        net.arm(deadline.map(|at| at.saturating_duration_since(now)));
        self.armed = deadline;
    }
}
