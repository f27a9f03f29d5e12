//! **Owns** what is slow and rare: HTTP, certificates, signals, grants, rendered metrics, on its
//! own thread. **Used by** main. **Never** touches a frame, and shares nothing with a shard but
//! mailboxes.
//!
//! One task owns both mailboxes, so nothing here is locked; HTTP reaches it by a bounded queue.
//! An answer that finds the shard's mailbox full waits in a backlog, and while that is full no
//! question is taken: the shard's own mailbox then fills, which the shard counts.

pub mod certificate;
pub mod grant;
pub mod http;
mod pulse;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{error, info, warn};

use self::pulse::{Beat, Pulse};
use crate::config::Config;
use crate::fanout::mailbox::{Doorbell, Inbox, Outbox};
use crate::fanout::message::{ToControl, ToShard};

/// How long a shard may take to close its sessions.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// How soon a full mailbox is tried again; nothing tells when it has room.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);
/// Answers waiting for room in the shard's mailbox.
const BACKLOG_MAX: usize = 1024;
/// Scrapes waiting for this thread, and again for the shard.
const SCRAPES_MAX: usize = 16;

/// What control is started with.
#[derive(Debug)]
pub struct Setup {
    /// The configuration.
    pub config: Arc<Config>,
    /// Mail to the shard.
    pub to_shard: Outbox<ToShard, Doorbell>,
    /// Mail from the shard.
    pub from_shard: Inbox<ToControl>,
    /// What the shard rings when it has written.
    pub wake: Doorbell,
    /// SHA-256 of the certificate, in hexadecimal digits.
    pub certificate_sha256: Option<String>,
    /// The public HTTP server's socket; bound by main, so that a taken port is noticed at start.
    pub web: Option<TcpListener>,
    /// The internal HTTP server's socket.
    pub internal: Option<TcpListener>,
}

/// How an orderly end came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The shard closed its sessions.
    Closed,
    /// It did not within 5 s.
    Overdue,
    /// A second signal came first.
    Forced,
}

/// Why control ended otherwise.
#[derive(Debug)]
pub enum ControlError {
    /// What was to be set up, and why it was not.
    Setup(&'static str, io::Error),
    /// The shard ended without having been told to.
    ShardEnded,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup(what, error) => write!(
                f,
                "the control thread cannot set up {what}: {error}; check the limit on open files \
                 (ulimit -n)"
            ),
            Self::ShardEnded => {
                f.write_str("shard 0 ended by itself: the lines before this one say why")
            }
        }
    }
}

impl std::error::Error for ControlError {}

/// Runs control until the process shall end.
pub fn run(setup: Setup) -> Result<Outcome, ControlError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ControlError::Setup("its runtime", error))?;
    let outcome = runtime.block_on(serve(setup));
    // HTTP connections end with the runtime; nobody waits for them.
    runtime.shutdown_background();
    outcome
}

async fn serve(setup: Setup) -> Result<Outcome, ControlError> {
    let (scrapes, mut scraped) = mpsc::channel(SCRAPES_MAX);
    let header_time_max = setup.config.listen.timeout;
    if let Some(listener) = setup.web {
        let router = http::public(setup.certificate_sha256);
        tokio::spawn(http::serve(adopt(listener)?, router, header_time_max));
    }
    if let Some(listener) = setup.internal {
        let router = http::internal(scrapes.clone());
        tokio::spawn(http::serve(adopt(listener)?, router, header_time_max));
    }
    let wake = watch(setup.wake)?;
    let mut signals = Signals::new()?;
    let mut mail = Mail {
        config: setup.config,
        to_shard: setup.to_shard,
        from_shard: setup.from_shard,
        backlog: VecDeque::new(),
        scrapes: BTreeMap::new(),
        ticket: 0,
        pulse: Pulse::default(),
        stalls: 0,
    };
    let mut beats = interval(pulse::EVERY);
    // After this process itself was stopped, the shard has as long to answer as ever.
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut deadline: Option<Instant> = None;
    loop {
        let is_ended = mail.take();
        mail.send();
        match (is_ended, deadline) {
            (true, Some(_)) => return Ok(Outcome::Closed),
            (true, None) => return Err(ControlError::ShardEnded),
            (false, _) => {}
        }
        select! {
            guard = wake.readable() => {
                let mut guard =
                    guard.map_err(|error| ControlError::Setup("the shard's doorbell", error))?;
                guard.get_inner().silence();
                guard.clear_ready();
            }
            Some(scrape) = scraped.recv() => mail.scrape(scrape),
            name = signals.next() => {
                if deadline.is_some() {
                    warn!("{name} again: ending at once");
                    return Ok(Outcome::Forced);
                }
                info!("{name}: closing every session");
                mail.backlog.push_back(ToShard::Close);
                deadline = Some(Instant::now() + CLOSE_TIME_MAX);
            }
            () = until(deadline) => {
                warn!("shard 0 did not close its sessions within {CLOSE_TIME_MAX:?}");
                return Ok(Outcome::Overdue);
            }
            _ = beats.tick(), if deadline.is_none() => mail.beat(),
            () = sleep(BACKLOG_PAUSE), if mail.is_waiting() => {}
        }
    }
}

fn adopt(listener: TcpListener) -> Result<tokio::net::TcpListener, ControlError> {
    let failed = |error| ControlError::Setup("an HTTP server", error);
    listener.set_nonblocking(true).map_err(failed)?;
    tokio::net::TcpListener::from_std(listener).map_err(failed)
}

/// Makes a doorbell something to await.
#[expect(
    deprecated,
    reason = "the replacement is an unsafe function; what it asks for holds, since a doorbell owns \
              its descriptor and never exchanges it"
)]
fn watch(bell: Doorbell) -> Result<AsyncFd<Doorbell>, ControlError> {
    AsyncFd::with_interest(bell, Interest::READABLE)
        .map_err(|error| ControlError::Setup("the shard's doorbell", error))
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// The signals that end the process.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, ControlError> {
        let on = |kind| signal(kind).map_err(|error| ControlError::Setup("its signals", error));
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Both mailboxes and what waits on them.
struct Mail {
    config: Arc<Config>,
    to_shard: Outbox<ToShard, Doorbell>,
    from_shard: Inbox<ToControl>,
    backlog: VecDeque<ToShard>,
    scrapes: BTreeMap<u64, http::Scrape>,
    ticket: u64,
    pulse: Pulse,
    /// Times the shard stalled.
    stalls: u64,
}

impl Mail {
    /// Takes what the shard wrote, while there is room for answers. True when it has ended.
    fn take(&mut self) -> bool {
        // Read before the last message: a shard writes, and then ends.
        let is_closed = self.from_shard.is_closed();
        while self.backlog.len() < BACKLOG_MAX {
            match self.from_shard.pop() {
                None => return is_closed,
                Some(ToControl::Ended) => return true,
                Some(ToControl::Ask(facts)) => {
                    let session = facts.session;
                    self.backlog.push_back(match grant::decide(&self.config.auth, &facts) {
                        Ok(grant) => ToShard::Granted { session, grant: Box::new(grant) },
                        Err(code) => ToShard::Refused { session, code },
                    });
                }
                Some(ToControl::Pong) => {
                    if let Some(after) = self.pulse.answered() {
                        warn!("shard 0 turns again, after about {after:?}");
                    }
                }
                Some(ToControl::Snapshot { ticket, mut snapshot }) => {
                    snapshot.counters.stalls = self.stalls;
                    if let Some(scrape) = self.scrapes.remove(&ticket) {
                        // Whoever asked may have left.
                        let _ = scrape.send(snapshot);
                    }
                }
            }
        }
        false
    }

    fn send(&mut self) {
        while let Some(message) = self.backlog.pop_front() {
            if let Err(message) = self.to_shard.push(message) {
                self.backlog.push_front(message);
                break;
            }
        }
        self.to_shard.flush();
    }

    /// Asks whether the shard turns, and says so if it does not.
    fn beat(&mut self) {
        match self.pulse.beat() {
            // A mailbox that is full is answered no better.
            Beat::Ask => drop(self.to_shard.push(ToShard::Ping)),
            Beat::Wait => {}
            Beat::Stalled => {
                self.stalls += 1;
                error!(
                    "shard 0 has not turned for about a second: it is stalled or overloaded; \
                     what its thread does: perf top -t TID, with TID of `ps -L -p $(pidof corelay)`"
                );
            }
        }
    }

    fn scrape(&mut self, scrape: http::Scrape) {
        self.scrapes.retain(|_, waiting| !waiting.is_closed());
        self.ticket += 1;
        let has_room = self.scrapes.len() < SCRAPES_MAX;
        if has_room && self.to_shard.push(ToShard::Snapshot { ticket: self.ticket }).is_ok() {
            self.scrapes.insert(self.ticket, scrape);
        }
    }

    /// True when the shard's mailbox must be tried again.
    fn is_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }
}
