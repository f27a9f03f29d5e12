//! The program: reads what the world gives (arguments, environment, files, names, sockets), starts
//! the shard and runs control until a signal. Exits with 0 after a signal, 2 when the
//! configuration is refused, 1 when starting fails, 101 when any thread panics: a shard cannot be
//! lost alone.

#![expect(clippy::disallowed_methods, reason = "the program is where the world is read")]

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use anyhow::Context as _;
use corelay::config::{Config, Loaded};
use corelay::control::certificate::{self, Certificate};
use corelay::control::{self, Setup};
use corelay::fanout::mailbox::{Doorbell, Inbox, Outbox, mailbox};
use corelay::fanout::message::{ToControl, ToShard};
use corelay::net::mmsg::{self, Options};
use corelay::quic::tls::{self, Identity};
use corelay::shard::Make;
use corelay::shard::edge::Edge;
use corelay::shard::thread::{self as shard_thread, Place};
use corelay::wire::version::Version;
use tracing_subscriber::EnvFilter;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EXIT_CONFIG: u8 = 2;
const EXIT_START: u8 = 1;
const EXIT_PANIC: i32 = 101;

/// What the shard is started with.
struct Start {
    config: Arc<Config>,
    /// UDP addresses to bind.
    listen: Vec<SocketAddr>,
    certificate: Certificate,
    inbox: Inbox<ToShard>,
    /// Rung by control when it has written to `inbox`.
    bell: Doorbell,
    outbox: Outbox<ToControl, Doorbell>,
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        eprintln!("thread {}: {panic}", thread.name().unwrap_or("without a name"));
        std::process::exit(EXIT_PANIC);
    }));
    let env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let loaded = Config::load(std::env::args_os(), &env, &|file| std::fs::read_to_string(file));
    let config = match loaded {
        Ok(Loaded::Run(config)) => Arc::new(*config),
        Ok(Loaded::Show(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    start_log(&config);
    let listen = match resolve_all(&config) {
        Ok(listen) => listen,
        Err(error) => return failed(&error),
    };
    if let Err(error) = config.check_open(&listen) {
        eprintln!("{error}");
        return ExitCode::from(EXIT_CONFIG);
    }
    match run(config, listen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("{error:#}");
    ExitCode::from(EXIT_START)
}

fn start_log(config: &Config) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(&config.log.filter))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

fn run(config: Arc<Config>, listen: Vec<SocketAddr>) -> anyhow::Result<()> {
    let web = bind(config.web.http.as_deref(), "--web-http-listen")?;
    let internal = bind(config.internal.listen.as_deref(), "--internal-listen")?;
    let certificate = match &config.listen.tls.files {
        Some(files) => certificate::load(&files.cert, &files.key)?,
        None => certificate::generate(&config.listen.tls.generate, SystemTime::now())?,
    };
    let sha256 = certificate.sha256_hex();
    if config.listen.tls.keylog {
        tracing::warn!("--tls-keylog: whoever reads SSLKEYLOGFILE can read all the traffic");
    }
    let bell = Doorbell::new().context("cannot open an eventfd: check ulimit -n")?;
    let wake = Doorbell::new().context("cannot open an eventfd: check ulimit -n")?;
    let slots = config.limits.mailbox_slots;
    let (to_shard, inbox) = mailbox(slots, bell.clone());
    let (outbox, from_shard) = mailbox(slots, wake.clone());
    let start_with =
        Start { config: Arc::clone(&config), listen, certificate, inbox, bell, outbox };
    let listening = start(start_with)?;
    let banner = banner(&config, &listening, &sha256, (web.as_ref(), internal.as_ref()));
    // A closed stdout is no reason not to serve.
    let _ = std::io::stdout().write_all(banner.as_bytes());
    let certificate_sha256 = Some(sha256);
    let setup = Setup { config, to_shard, from_shard, wake, certificate_sha256, web, internal };
    let outcome = control::run(setup)?;
    tracing::info!("ended: {outcome:?}");
    Ok(())
}

/// Starts the shard on its own thread and returns the addresses that it took.
fn start(with: Start) -> anyhow::Result<Vec<SocketAddr>> {
    let Start { config, listen, certificate, inbox, bell, outbox } = with;
    let options = Options {
        rx_buffer_bytes: config.limits.rx_buffer_bytes,
        rx_batch: config.limits.rx_batch,
        tx_slots: config.limits.tx_slots,
        socket_buffer_bytes: config.limits.socket_buffer_bytes,
        gso: config.quic.gso,
        ..Options::default()
    };
    let sockets = bind_all(&config, &listen, &options)?;
    let addresses = sockets.iter().map(UdpSocket::local_addr).collect::<Result<Vec<_>, _>>()?;
    let versions: Vec<Version> =
        config.listen.versions.iter().filter_map(|name| Version::parse(name)).collect();
    let alpns: Vec<&[u8]> = versions.iter().map(|version| version.alpn()).collect();
    let identity =
        Identity { chain: certificate.chain, key: certificate.key, sha256: certificate.sha256 };
    let tls = tls::server(&identity, &alpns, config.listen.tls.keylog)?;
    let mut seed = [0; 32];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .context("the kernel gives no random bytes")?;
    let core = config.runtime.core.or_else(|| config.runtime.pin.then(first_core).flatten());
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let edge = Edge::new(inbox, outbox);
    let place = Place { core, sockets, options, bell, ready };
    shard_thread::spawn(place, Make { config, tls, versions, seed, edge })?;
    started.recv().context("the shard ended while it started")??;
    Ok(addresses)
}

/// The first core this process may use.
fn first_core() -> Option<usize> {
    core_affinity::get_core_ids()?.first().map(|core| core.id)
}

/// Binds every address; one of the embedded default may be left out on a host without its family.
fn bind_all(
    config: &Config,
    listen: &[SocketAddr],
    options: &Options,
) -> anyhow::Result<Vec<UdpSocket>> {
    let mut sockets = Vec::new();
    for address in listen {
        match mmsg::bind(*address, options) {
            Ok(socket) => sockets.push(socket),
            Err(error) if error.is_no_ipv6() && config.listen.is_default => {
                tracing::warn!("not listening on {address}: this host has no IPv6");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sockets)
}

fn resolve_all(config: &Config) -> anyhow::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for bind in &config.listen.bind {
        for address in resolve(bind, "--listen")? {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    Ok(addresses)
}

fn resolve(bind: &str, flag: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = bind
        .to_socket_addrs()
        .with_context(|| format!("{flag} {bind}: the host name does not resolve"))?
        .collect();
    anyhow::ensure!(!found.is_empty(), "{flag} {bind}: the host name has no address");
    Ok(found)
}

fn bind(address: Option<&str>, flag: &str) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let found = resolve(address, flag)?;
    let listener = TcpListener::bind(found.as_slice())
        .with_context(|| format!("{flag} {address}: cannot listen; is the port taken?"))?;
    Ok(Some(listener))
}

/// What a user needs to go on: where the relay is and commands that reach it.
fn banner(
    config: &Config,
    listening: &[SocketAddr],
    sha256: &str,
    (web, internal): (Option<&TcpListener>, Option<&TcpListener>),
) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut lines = vec![format!("corelay {version}")];
    lines.extend(listening.iter().map(|address| format!("listening on {address} (UDP)")));
    let urls = [("public", web), ("internal", internal)];
    for (name, listener) in urls {
        if let Some(address) = listener.and_then(|listener| listener.local_addr().ok()) {
            lines.push(format!("{name} HTTP on http://{address}"));
        }
    }
    lines.push(format!("certificate SHA-256 {sha256}"));
    if let Some(&first) = listening.first() {
        let root = match &config.auth.public {
            Some(prefix) if !prefix.is_empty() => format!("{prefix}/demo"),
            _ => "demo".to_owned(),
        };
        let address = reachable(first);
        let moq = format!(
            "moq --connect moqt://{address}/{root} --connect-tls-fingerprint {sha256} \
             --broadcast cam.hang"
        );
        lines.push(format!(
            "publish: ffmpeg -re -i in.mp4 -c copy -movflags \
             +empty_moov+default_base_moof+frag_keyframe -f mp4 - | {moq} import fmp4"
        ));
        lines.push(format!("watch: {moq} export fmp4 --max-age 30s > out.mp4"));
    }
    lines.join("\n") + "\n"
}

/// An address that this host can dial for one that the relay listens on.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
