//! The table of settings, and the command line made from it. Limits are rows of their own file and
//! are appended.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PathBufValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::error::ConfigError;
use super::limits;

/// How often a setting may be given and whether it needs a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Once.
    One,
    /// Repeatedly, or separated by commas.
    List,
    /// Once; true when given without a value.
    Switch,
}

/// One setting.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// Long flag without dashes; also names the setting.
    pub(super) flag: String,
    /// Dotted TOML key.
    pub(super) key: String,
    /// Heading in the help.
    pub(super) group: &'static str,
    pub(super) shape: Shape,
    /// What the help calls the value.
    pub(super) value: &'static str,
    /// As it would be given; empty when there is none.
    pub(super) default: String,
    pub(super) help: String,
}

impl Setting {
    /// The environment's name for it, without `CORELAY_` or `MOQ_`.
    pub(super) fn env(&self) -> String {
        env_name(&self.flag)
    }
}

/// A flag's name in the environment, without a prefix.
pub(super) fn env_name(flag: &str) -> String {
    flag.replace('-', "_").to_ascii_uppercase()
}

/// The one setting that is no setting: which file holds the others.
pub(super) const FILE_FLAG: &str = "config";

macro_rules! rows {
    ($($group:literal {
        $($flag:literal $key:literal $shape:ident $value:literal $default:literal $help:literal;)*
    })*) => {
        const ROWS: &[(&str, &str, &str, Shape, &str, &str, &str)] = &[
            $($(($group, $flag, $key, Shape::$shape, $value, $default, $help),)*)*
        ];
    };
}

rows! {
    "Listening" {
        "listen" "listen.bind" List "HOST:PORT" "127.0.0.1:4443,[::1]:4443"
            "UDP address to take connections on; repeatable";
        "listen-version" "listen.version" List "VERSION" "moq-lite-06,moq-lite-05"
            "Version to offer, best first; repeatable, and naming any replaces the list";
        "listen-timeout" "listen.timeout" One "DURATION" "10s"
            "Time from a connection's first packet to its grant; also for an HTTP request's header";
        "listen-tls-cert" "listen.tls.cert" List "FILE" ""
            "PEM file with the certificate chain, the server's first";
        "listen-tls-key" "listen.tls.key" List "FILE" ""
            "PEM file with the private key of the certificate at the same place in the list";
        "listen-tls-generate" "listen.tls.generate" List "HOST" ""
            "Generate a self-signed certificate for these hosts, valid for 14 days; done for localhost when all addresses are loopback and no certificate is given";
        "tls-keylog" "tls.keylog" Switch "BOOL" "false"
            "Write TLS secrets to the file that SSLKEYLOGFILE names, for looking at the traffic";
    }
    "Access" {
        "auth-public" "auth.public" One "PATTERN" ""
            "What anyone may publish and watch: '**' for everything or 'PREFIX/**'; without it everything is open, which is allowed on loopback addresses only";
    }
    "QUIC" {
        "quic-max-streams" "quic.max_streams" One "N" "10000"
            "Most streams of a kind that a peer may have open";
        "quic-gso" "quic.gso" Switch "BOOL" "true"
            "Send trains of packets with one system call";
        "quic-idle-timeout" "quic.idle_timeout" One "DURATION" "10s"
            "Close a connection that is silent for this long";
        "quic-keep-alive" "quic.keep_alive" One "DURATION" "3s"
            "Ping an idle connection this often; 0s = never";
        "quic-mtu-discovery" "quic.mtu_discovery" Switch "BOOL" "true"
            "Probe for larger packets";
        "quic-congestion-control" "quic.congestion_control" One "KIND" "loss"
            "loss (CUBIC) or delay (BBR)";
        "quic-receive-window" "quic.receive_window" One "BYTES" "16MiB"
            "What a publisher may have in flight to the relay; other peers get 1 MiB";
        "quic-stream-receive-window" "quic.stream_receive_window" One "BYTES" "1MiB"
            "What may be in flight to the relay on one stream";
        "quic-send-window" "quic.send_window" One "BYTES" "8MiB"
            "The most that may be in flight to one viewer";
        "quic-ack-frequency" "quic.ack_frequency" One "PACKETS" "10"
            "Packets that peers are asked to acknowledge at once; 0 = do not ask";
    }
    "Delivery" {
        "egress-hold" "egress.hold" One "DURATION" "200us"
            "While busy, turn at most once in this time: fuller trains, fewer wake-ups; 0us = off";
    }
    "HTTP" {
        "web-http-listen" "web.http.listen" One "HOST:PORT" ""
            "Public HTTP address: /health and /certificate.sha256; off unless given";
        "internal-listen" "internal.listen" One "HOST:PORT" ""
            "Internal HTTP address: /health and /metrics, without authentication; off unless given";
    }
    "Logging" {
        "log-level" "log.level" One "LEVEL" "info"
            "off, error, warn, info, debug, trace, or directives such as info,corelay=debug; RUST_LOG overrides";
    }
    "Runtime" {
        "cores" "runtime.cores" One "LIST" ""
            "Core to run on; a list such as 2 or 2-5,8, of which this version takes one core";
        "runtime-workers" "runtime.workers" One "N" ""
            "Number of shards; this version takes 1";
        "runtime-pin" "runtime.pin" Switch "BOOL" "true"
            "Pin the shard to a core";
        "cluster-id" "cluster.id" One "N" ""
            "Hop id of this relay, 1 to 2^62 - 1; random unless given";
    }
}

/// Every setting, limits last.
pub(super) fn all() -> Vec<Setting> {
    let rows = ROWS.iter().map(|&(group, flag, key, shape, value, default, help)| Setting {
        flag: flag.to_owned(),
        key: key.to_owned(),
        group,
        shape,
        value,
        default: default.to_owned(),
        help: help.to_owned(),
    });
    let limits = limits::ROWS.iter().map(|row| Setting {
        flag: row.flag(),
        key: format!("limits.{}", row.name),
        group: "Limits",
        shape: Shape::One,
        value: if row.is_bytes() { "BYTES" } else { "N" },
        default: row.default_text(),
        help: row.doc.trim().trim_end_matches('.').to_owned(),
    });
    rows.chain(limits).collect()
}

/// A command line that wants the relay, or its configuration checked.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) matches: ArgMatches,
    /// The configuration file, checked or run.
    pub(super) file: Option<PathBuf>,
    /// The same file, when it is only to be checked.
    pub(super) check: Option<PathBuf>,
}

impl Given {
    /// What the command line says of `setting`.
    pub(super) fn values(&self, setting: &Setting) -> Option<Vec<String>> {
        Some(self.matches.get_many::<String>(&setting.flag)?.cloned().collect())
    }
}

/// What a command line wants.
#[derive(Debug)]
pub(super) enum Line {
    Run(Box<Given>),
    Show(String),
}

/// Parses `args`, the first of which is the program's name.
pub(super) fn parse(
    settings: &[Setting],
    args: impl IntoIterator<Item = OsString>,
) -> Result<Line, ConfigError> {
    let matches = match command(settings).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => {
            let text = error.render().to_string();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Line::Show(text)),
                _ => Err(ConfigError::Usage(text)),
            };
        }
    };
    let path = |id| matches.get_one::<PathBuf>(id).cloned();
    let check = path("check-config");
    let file = check.clone().or_else(|| path(FILE_FLAG)).or_else(|| path("FILE"));
    Ok(Line::Run(Box::new(Given { matches, file, check })))
}

fn command(settings: &[Setting]) -> Command {
    let path = |id| Arg::new(id).value_name("FILE").value_parser(PathBufValueParser::new());
    let config = path(FILE_FLAG)
        .long(FILE_FLAG)
        .help(format!("The same, by name [env: CORELAY_{}]", env_name(FILE_FLAG)));
    Command::new("corelay")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A Media over QUIC relay")
        .after_help(
            "Each setting is taken from the command line, else from the environment (CORELAY_NAME, \
             or MOQ_NAME), else from the TOML file, else from its default.",
        )
        .next_line_help(true)
        .next_help_heading("Configuration")
        .arg(path("FILE").help("TOML file with settings"))
        .arg(config.conflicts_with("FILE"))
        .arg(
            path("check-config")
                .long("check-config")
                .conflicts_with_all(["FILE", FILE_FLAG])
                .help("Check this file as it would be run, say so, and exit with 0 or 2"),
        )
        .args(settings.iter().map(argument))
}

fn argument(setting: &Setting) -> Arg {
    let default = match setting.default.as_str() {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let arg = Arg::new(setting.flag.clone())
        .long(setting.flag.clone())
        .value_name(setting.value)
        .help_heading(setting.group)
        .help(format!("{}{default} [env: CORELAY_{}]", setting.help, setting.env()));
    match setting.shape {
        Shape::One => arg,
        Shape::List => arg.action(ArgAction::Append).value_delimiter(','),
        Shape::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
    }
}
