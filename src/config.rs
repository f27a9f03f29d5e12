//! The configuration: parsed, validated, plain data. Level 0 and pure: arguments, environment and
//! files are given to [`Config::load`], nothing is read here. Every setting is one row of
//! `settings.rs` or `limits.rs`, and flag, environment name, TOML key, default and help come from
//! that row, so they cannot disagree. A value is taken from the first of: command line,
//! `CORELAY_*`, `MOQ_*`, the TOML file, the default.

mod error;
mod limits;
mod merge;
mod parse;
mod settings;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::name::Path;

pub use error::ConfigError;
pub use limits::Limits;
use merge::{Merged, Source};

/// The versions this relay speaks, in its order of preference.
pub const KNOWN_VERSIONS: [&str; 2] = ["moq-lite-06", "moq-lite-05"];

/// What reads a configuration file; `main.rs` gives the real one.
pub type Read<'a> = &'a dyn Fn(&std::path::Path) -> io::Result<String>;

/// What a command line asks for.
#[derive(Debug, Clone)]
pub enum Loaded {
    /// Run the relay.
    Run(Box<Config>),
    /// Print this on stdout and exit with 0: help, version, or the verdict of `--check-config`.
    Show(String),
}

/// Everything that can be configured.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where clients connect.
    pub listen: Listen,
    /// Who may do what.
    pub auth: Auth,
    /// The QUIC transport.
    pub quic: Quic,
    /// The public HTTP server.
    pub web: Web,
    /// The internal HTTP server.
    pub internal: Internal,
    /// This relay among others.
    pub cluster: Cluster,
    /// Delivery to viewers.
    pub egress: Egress,
    /// What is logged.
    pub log: Log,
    /// Which core the shard runs on.
    pub runtime: Runtime,
    /// Every bound.
    pub limits: Limits,
}

/// Where clients connect.
#[derive(Debug, Clone)]
pub struct Listen {
    /// UDP addresses as `HOST:PORT`, validated but not resolved; never empty.
    pub bind: Vec<String>,
    /// True when nobody named an address, so that a host without IPv6 may leave one out.
    pub is_default: bool,
    /// Versions offered, in order of preference; each one of [`KNOWN_VERSIONS`].
    pub versions: Vec<String>,
    /// From the first packet of a connection to its grant.
    pub timeout: Duration,
    /// The certificate.
    pub tls: Tls,
}

/// Which certificate clients see: `files` when given, else one generated for `generate`.
#[derive(Debug, Clone)]
pub struct Tls {
    /// PEM files.
    pub files: Option<TlsFiles>,
    /// Host names and addresses of a certificate generated at start; empty only beside `files`.
    pub generate: Vec<String>,
    /// Write TLS secrets to the file that `SSLKEYLOGFILE` names.
    pub keylog: bool,
}

/// A certificate in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM: the chain, the server's certificate first.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// Who may do what.
#[derive(Debug, Clone)]
pub struct Auth {
    /// Everything at and below this path is open to anyone. `None` when nothing was said, which
    /// opens everything and is allowed only on loopback ([`Config::check_open`]).
    pub public: Option<Path>,
}

/// How a connection finds its share of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Congestion {
    /// Loss says when to slow down: CUBIC.
    Loss,
    /// Delay says when to slow down: BBR.
    Delay,
}

/// The QUIC transport. Windows are in bytes.
#[derive(Debug, Clone)]
pub struct Quic {
    /// Most streams of a kind that a peer may have open.
    pub max_streams: u64,
    /// Segmentation offload.
    pub gso: bool,
    /// A connection that is silent for this long is closed.
    pub idle_timeout: Duration,
    /// A ping keeps an idle connection open; `None` when off. Below `idle_timeout`.
    pub keep_alive: Option<Duration>,
    /// Probe for larger packets.
    pub mtu_discovery: bool,
    /// The congestion controller.
    pub congestion: Congestion,
    /// What a publisher may have in flight to the relay; others get 1 MiB, or this if it is less.
    pub receive_window: u64,
    /// The same for one stream.
    pub stream_receive_window: u64,
    /// The most that may be in flight to a viewer, whatever its congestion window.
    pub send_window: u64,
    /// Packets that a peer is asked to acknowledge at once; 0 = not asked.
    pub ack_frequency: u32,
}

/// The public HTTP server: health and the certificate's fingerprint.
#[derive(Debug, Clone)]
pub struct Web {
    /// `HOST:PORT`; off when `None`.
    pub http: Option<String>,
}

/// The internal HTTP server: health and metrics, without authentication.
#[derive(Debug, Clone)]
pub struct Internal {
    /// `HOST:PORT`; off when `None`.
    pub listen: Option<String>,
}

/// This relay among others.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The relay's hop id, 1 to 2^62 - 1; one is drawn at random when `None`.
    pub id: Option<u64>,
}

/// Delivery to viewers.
#[derive(Debug, Clone)]
pub struct Egress {
    /// How long new data may be held to fill a train while the shard is busy; zero = not at all.
    pub hold: Duration,
}

/// What is logged.
#[derive(Debug, Clone)]
pub struct Log {
    /// A level or filter directives, known to parse.
    pub filter: String,
}

/// Which core the shard runs on.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// Pin the shard's thread to a core.
    pub pin: bool,
    /// Which core; the shard chooses when `None`.
    pub core: Option<usize>,
}

impl Config {
    /// Parses and validates. `args` begins with the program's name; `env` is the whole
    /// environment, of which only `CORELAY_*`, `MOQ_*`, `RUST_LOG` and `SSLKEYLOGFILE` are looked
    /// at.
    pub fn load(
        args: impl IntoIterator<Item = OsString>,
        env: &BTreeMap<String, String>,
        read: Read<'_>,
    ) -> Result<Loaded, ConfigError> {
        let settings = settings::all();
        let line = match settings::parse(&settings, args)? {
            settings::Line::Show(text) => return Ok(Loaded::Show(text)),
            settings::Line::Run(line) => line,
        };
        let merged = Merged::new(&settings, &line, env, read)?;
        let config = Self::build(&merged, env)?;
        match line.check {
            Some(file) => Ok(Loaded::Show(format!("{}: ok\n", file.display()))),
            None => Ok(Loaded::Run(Box::new(config))),
        }
    }

    /// Refuses open access on addresses that others can reach, unless it was asked for by name.
    /// [`Config::load`] has done this for literal addresses; who resolves host names does it again.
    pub fn check_open(&self, addresses: &[SocketAddr]) -> Result<(), ConfigError> {
        if self.auth.public.is_some() {
            return Ok(());
        }
        match addresses.iter().find(|address| !is_loopback(address)) {
            None => Ok(()),
            Some(address) => Err(ConfigError::Conflict(format!(
                "listening on {address} without --auth-public: anyone who reaches it could \
                 publish and watch; add --auth-public '**' to allow that, or listen on a \
                 loopback address"
            ))),
        }
    }

    fn build(merged: &Merged, env: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let config = Self {
            listen: build_listen(merged, env)?,
            auth: Auth { public: merged.maybe("auth-public", parse::public)? },
            quic: build_quic(merged)?,
            web: Web { http: merged.maybe("web-http-listen", parse::address)? },
            internal: Internal { listen: merged.maybe("internal-listen", parse::address)? },
            cluster: Cluster { id: merged.maybe("cluster-id", parse::integer(1, (1 << 62) - 1))? },
            egress: Egress {
                hold: merged.one(
                    "egress-hold",
                    parse::duration(Duration::ZERO, Duration::from_millis(100)),
                )?,
            },
            log: build_log(merged, env)?,
            runtime: build_runtime(merged)?,
            limits: Limits::build(|row| {
                merged.one(&row.flag(), parse::limit(row.is_bytes(), row.min, row.max))
            })?,
        };
        config.limits.check()?;
        let literal: Vec<SocketAddr> =
            config.listen.bind.iter().filter_map(|bind| bind.parse().ok()).collect();
        config.check_open(&literal)?;
        Ok(config)
    }
}

impl Default for Config {
    /// What an empty command line gives.
    fn default() -> Self {
        let settings = settings::all();
        let merged = Merged::defaults(&settings);
        Self::build(&merged, &BTreeMap::new()).expect("every default is valid")
    }
}

fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// True for what surely is this host alone, without resolving anything.
fn names_loopback(bind: &str) -> bool {
    match bind.parse::<SocketAddr>() {
        Ok(address) => is_loopback(&address),
        Err(_) => bind.rsplit_once(':').is_some_and(|(host, _)| host == "localhost"),
    }
}

fn build_listen(merged: &Merged, env: &BTreeMap<String, String>) -> Result<Listen, ConfigError> {
    let bind = merged.list("listen", parse::address)?;
    let mut versions: Vec<String> = Vec::new();
    for version in merged.list("listen-version", parse::version)? {
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    let timeout = parse::duration(Duration::from_millis(1), Duration::from_mins(10));
    Ok(Listen {
        is_default: merged.is_default("listen"),
        versions,
        timeout: merged.one("listen-timeout", timeout)?,
        tls: build_tls(merged, env, &bind)?,
        bind,
    })
}

fn build_tls(
    merged: &Merged,
    env: &BTreeMap<String, String>,
    bind: &[String],
) -> Result<Tls, ConfigError> {
    let certs = merged.list("listen-tls-cert", parse::text)?;
    let keys = merged.list("listen-tls-key", parse::text)?;
    let mut generate = merged.list("listen-tls-generate", parse::host)?;
    let keylog = merged.one("tls-keylog", parse::boolean)?;
    if certs.len() != keys.len() {
        return Err(ConfigError::Conflict(format!(
            "--listen-tls-cert names {} and --listen-tls-key names {} file(s): they are paired in \
             order, so give as many keys as certificates",
            certs.len(),
            keys.len()
        )));
    }
    if certs.len() > 1 {
        return Err(ConfigError::Conflict(format!(
            "--listen-tls-cert names {} certificates: this version serves one, so give one pair",
            certs.len()
        )));
    }
    let files = certs.into_iter().zip(keys).next();
    let files = files.map(|(cert, key)| TlsFiles { cert: cert.into(), key: key.into() });
    match (&files, generate.is_empty()) {
        (Some(_), false) => {
            return Err(ConfigError::Conflict(
                "--listen-tls-cert and --listen-tls-generate are both given: keep one of them"
                    .to_owned(),
            ));
        }
        (None, true) if bind.iter().all(|bind| names_loopback(bind)) => {
            generate = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        }
        (None, true) => {
            return Err(ConfigError::Conflict(format!(
                "no certificate for {}: give --listen-tls-cert FILE and --listen-tls-key FILE, or \
                 --listen-tls-generate HOST for a self-signed one",
                bind.join(", ")
            )));
        }
        (Some(_), true) | (None, false) => {}
    }
    if keylog && env.get("SSLKEYLOGFILE").is_none_or(String::is_empty) {
        return Err(ConfigError::Conflict(
            "--tls-keylog is on, but SSLKEYLOGFILE is not set: set it to the file that shall take \
             the secrets"
                .to_owned(),
        ));
    }
    Ok(Tls { files, generate, keylog })
}

fn build_quic(merged: &Merged) -> Result<Quic, ConfigError> {
    let seconds = Duration::from_secs;
    let idle_timeout = merged
        .one("quic-idle-timeout", parse::duration(Duration::from_millis(100), seconds(600)))?;
    let mut keep_alive =
        merged.one("quic-keep-alive", parse::duration(Duration::ZERO, seconds(600)))?;
    if keep_alive >= idle_timeout {
        if !merged.is_default("quic-keep-alive") {
            return Err(ConfigError::Conflict(format!(
                "--quic-keep-alive {keep_alive:?} is not below --quic-idle-timeout \
                 {idle_timeout:?}, so it keeps nothing alive: lower it, or turn it off with 0s"
            )));
        }
        keep_alive = idle_timeout / 3;
    }
    let window = || parse::limit(true, 64 << 10, 1 << 30);
    Ok(Quic {
        max_streams: merged.one("quic-max-streams", parse::integer(1, 1_000_000))?,
        gso: merged.one("quic-gso", parse::boolean)?,
        idle_timeout,
        keep_alive: Some(keep_alive).filter(|interval| !interval.is_zero()),
        mtu_discovery: merged.one("quic-mtu-discovery", parse::boolean)?,
        congestion: merged.one("quic-congestion-control", parse::congestion)?,
        receive_window: merged.one("quic-receive-window", window())?,
        stream_receive_window: merged.one("quic-stream-receive-window", window())?,
        send_window: merged.one("quic-send-window", parse::limit(true, 128 << 10, 1 << 30))?,
        ack_frequency: merged.one("quic-ack-frequency", parse::ack_frequency)?,
    })
}

fn build_log(merged: &Merged, env: &BTreeMap<String, String>) -> Result<Log, ConfigError> {
    let filter = merged.one("log-level", parse::level)?;
    match env.get("RUST_LOG").filter(|filter| !filter.is_empty()) {
        None => Ok(Log { filter }),
        Some(filter) => match parse::filter(filter) {
            Ok(filter) => Ok(Log { filter }),
            Err(why) => Err(ConfigError::Invalid { source: Source::RustLog.to_string(), why }),
        },
    }
}

fn build_runtime(merged: &Merged) -> Result<Runtime, ConfigError> {
    let cores = merged.maybe("cores", parse::cores)?;
    let workers = merged.maybe("runtime-workers", parse::integer(1, 1024))?;
    let pin = merged.one("runtime-pin", parse::boolean)?;
    if let Some(cores) = cores {
        for other in ["runtime-workers", "runtime-pin"] {
            if let Some(source) = merged.source(other) {
                return Err(ConfigError::Conflict(format!(
                    "--cores and {source} are both given, and --cores already says how many \
                     workers there are and where: remove {source}"
                )));
            }
        }
        return match cores.as_slice() {
            &[core] => Ok(Runtime { pin: true, core: Some(core) }),
            many => Err(one_shard("--cores", many.len())),
        };
    }
    match workers {
        Some(many) if many > 1 => Err(one_shard("--runtime-workers", many)),
        _ => Ok(Runtime { pin, core: None }),
    }
}

fn one_shard(flag: &str, asked: impl std::fmt::Display) -> ConfigError {
    ConfigError::Conflict(format!(
        "{flag} asks for {asked} workers, but there is one shard in this version: ask for one"
    ))
}
