//! Where a value is taken from, what is refused, and what the refusal says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

use corelay::config::{Config, ConfigError, Congestion, Limits, Loaded};

struct Given<'a> {
    args: &'a [&'a str],
    env: &'a [(&'a str, &'a str)],
    file: &'a str,
}

const NOTHING: Given<'static> = Given { args: &[], env: &[], file: "" };

fn load(given: &Given<'_>) -> Result<Loaded, ConfigError> {
    let args = ["corelay"].iter().chain(given.args).map(OsString::from);
    let env = given.env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let env: BTreeMap<String, String> = env.collect();
    Config::load(args, &env, &|path| {
        if path.to_str() == Some("relay.toml") {
            Ok(given.file.to_owned())
        } else {
            Err(io::Error::from(io::ErrorKind::NotFound))
        }
    })
}

fn run(given: &Given<'_>) -> Config {
    match load(given) {
        Ok(Loaded::Run(config)) => *config,
        other => panic!("expected a configuration, got {other:?}"),
    }
}

fn args(args: &[&str]) -> Config {
    run(&Given { args, ..NOTHING })
}

fn file(file: &str) -> Config {
    run(&Given { args: &["relay.toml"], file, ..NOTHING })
}

fn refused(given: &Given<'_>) -> String {
    load(given).expect_err("expected a refusal").to_string()
}

fn args_refused(args: &[&str]) -> String {
    refused(&Given { args, ..NOTHING })
}

fn file_refused(file: &str) -> String {
    refused(&Given { args: &["relay.toml"], file, ..NOTHING })
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn nothing_given_is_the_embedded_default() {
    let config = args(&[]);
    assert_eq!(config.listen.bind, ["127.0.0.1:4443", "[::1]:4443"]);
    assert!(config.listen.is_default);
    assert_eq!(config.listen.versions, ["moq-lite-06", "moq-lite-05"]);
    assert_eq!(config.listen.timeout, Duration::from_secs(10));
    assert_eq!(config.listen.tls.generate, ["localhost", "127.0.0.1", "::1"]);
    assert_eq!(config.listen.tls.files, None);
    assert!(!config.listen.tls.keylog);
    assert_eq!(config.auth.public, None);
    assert_eq!(config.quic.max_streams, 10_000);
    assert_eq!(config.quic.idle_timeout, Duration::from_secs(10));
    assert_eq!(config.quic.keep_alive, Some(Duration::from_secs(3)));
    assert_eq!(config.quic.congestion, Congestion::Loss);
    assert_eq!(config.quic.receive_window, 16 << 20);
    assert_eq!(config.quic.stream_receive_window, 1 << 20);
    assert_eq!(config.quic.send_window, 8 << 20);
    assert_eq!(config.quic.ack_frequency, 10);
    assert!(config.quic.gso && config.quic.mtu_discovery);
    assert_eq!(config.egress.hold, Duration::from_micros(200));
    assert_eq!((config.web.http, config.internal.listen), (None, None));
    assert_eq!(config.log.filter, "info");
    assert!(config.runtime.pin);
    assert_eq!(config.runtime.core, None);
    assert_eq!(config.limits, Limits::default());
    assert_eq!(Config::default().listen.bind, config.listen.bind);
}

#[test]
fn each_source_gives_way_to_the_one_above_it() {
    let toml = "[quic]\nidle_timeout = \"20s\"";
    let alias = ("MOQ_QUIC_IDLE_TIMEOUT", "30s");
    let ours = ("CORELAY_QUIC_IDLE_TIMEOUT", "40s");
    let flags = ["relay.toml", "--quic-idle-timeout", "50s"];
    let idle_s = |args: &[&str], env: &[(&str, &str)]| {
        run(&Given { args, env, file: toml }).quic.idle_timeout.as_secs()
    };
    assert_eq!(idle_s(&[], &[]), 10);
    assert_eq!(idle_s(&flags[..1], &[]), 20);
    assert_eq!(idle_s(&flags[..1], &[alias]), 30);
    assert_eq!(idle_s(&flags[..1], &[alias, ours]), 40);
    assert_eq!(idle_s(&flags, &[alias, ours]), 50);
}

#[test]
fn a_list_replaces_the_list_below_it() {
    let given = Given {
        args: &["relay.toml", "--listen-version", "moq-lite-05"],
        env: &[("CORELAY_LISTEN", "127.0.0.1:1,127.0.0.1:2")],
        file: "[listen]\nbind = [\"127.0.0.1:3\"]",
    };
    let config = run(&given);
    assert_eq!(config.listen.versions, ["moq-lite-05"]);
    assert_eq!(config.listen.bind, ["127.0.0.1:1", "127.0.0.1:2"]);
    assert!(!config.listen.is_default);
    let repeated = args(&["--listen", "127.0.0.1:1", "--listen", "[::1]:2,localhost:3"]);
    assert_eq!(repeated.listen.bind, ["127.0.0.1:1", "[::1]:2", "localhost:3"]);
}

#[test]
fn every_table_of_the_file_is_read() {
    let config = file(
        r#"
        [listen]
        bind = ["0.0.0.0:4443"]
        version = ["moq-lite-05"]
        timeout = "5s"
        [listen.tls]
        cert = ["cert.pem"]
        key = "key.pem"
        [quic]
        max_streams = 100
        gso = false
        congestion_control = "delay"
        keep_alive = "0s"
        [auth]
        public = "demo/**"
        [web.http]
        listen = "0.0.0.0:4443"
        [internal]
        listen = "127.0.0.1:9000"
        [cluster]
        id = 7
        [egress]
        hold = "500us"
        [log]
        level = "warn,corelay=debug"
        [runtime]
        cores = "1"
        [limits]
        connections = 5
        arena_bytes = "2GiB"
        "#,
    );
    let files = config.listen.tls.files.expect("files");
    assert_eq!((files.cert.to_str(), files.key.to_str()), (Some("cert.pem"), Some("key.pem")));
    assert_eq!(config.quic.max_streams, 100);
    assert!(!config.quic.gso);
    assert_eq!(config.quic.keep_alive, None);
    assert_eq!(config.quic.congestion, Congestion::Delay);
    assert_eq!(config.auth.public.expect("public").as_str(), "demo");
    assert_eq!(config.web.http.as_deref(), Some("0.0.0.0:4443"));
    assert_eq!(config.internal.listen.as_deref(), Some("127.0.0.1:9000"));
    assert_eq!(config.cluster.id, Some(7));
    assert_eq!(config.egress.hold, Duration::from_micros(500));
    assert_eq!(config.log.filter, "warn,corelay=debug");
    assert_eq!(config.runtime.core, Some(1));
    assert_eq!(config.limits.connections, 5);
    assert_eq!(config.limits.arena_bytes, 2 << 30);
}

#[test]
fn listen_has_a_short_form_in_the_file() {
    assert_eq!(file("listen = \"127.0.0.1:1\"").listen.bind, ["127.0.0.1:1"]);
    assert_eq!(file("listen = [\"127.0.0.1:1\", \"[::1]:1\"]").listen.bind.len(), 2);
}

#[test]
fn an_unknown_name_is_refused_with_the_nearest_known_one() {
    let text = file_refused("[quic]\nmax_stream = 5");
    assert_says(&text, &["`quic.max_stream`", "relay.toml", "`quic.max_streams`"]);
    assert_says(&file_refused("[quick]\ngso = true"), &["`quick.gso`", "`quic.gso`"]);
    assert_says(&file_refused("[colours]\n"), &["`colours`", "--help"]);
    assert_says(&file_refused("[listen.bind]\nx = 1"), &["`listen.bind.x`"]);
    let text = refused(&Given { env: &[("CORELAY_QUIC_GSOO", "true")], ..NOTHING });
    assert_says(&text, &["CORELAY_QUIC_GSOO", "`CORELAY_QUIC_GSO`"]);
    assert_says(&args_refused(&["--quic-gsoo"]), &["--quic-gsoo", "--quic-gso"]);
    run(&Given { env: &[("MOQ_QUIC_GSOO", "x"), ("MOQ_TOKEN", "x")], ..NOTHING });
}

#[test]
fn a_refused_value_names_its_source_and_what_is_taken() {
    let text = args_refused(&["--quic-idle-timeout", "10"]);
    assert_says(&text, &["--quic-idle-timeout", "`10`", "10s"]);
    let text = refused(&Given { env: &[("MOQ_QUIC_GSO", "on")], ..NOTHING });
    assert_says(&text, &["MOQ_QUIC_GSO", "`on`", "true or false"]);
    let text = file_refused("[limits]\ntracks = 0");
    assert_says(&text, &["`limits.tracks`", "relay.toml", "out of range", "1"]);
    assert_says(&file_refused("[limits]\ntracks = [1, 2]"), &["takes one value"]);
    assert_says(&file_refused("listen = []"), &["empty list"]);
    assert_says(&file_refused("[quic]\ngso = 2020-01-01"), &["`quic.gso`", "datetime"]);
    assert_says(&file_refused("[quic"), &["relay.toml is no TOML", "line 1"]);
    assert_says(&args_refused(&["--listen", "4443"]), &["`4443`", "HOST:PORT"]);
    assert_says(&args_refused(&["--listen-version", "moq-lite-04"]), &["moq-lite-06"]);
    assert_says(&args_refused(&["--log-level", "inof"]), &["`inof`", "info"]);
    assert_says(&args_refused(&["--cluster-id", "0"]), &["--cluster-id", "out of range"]);
    assert_says(&args_refused(&["--limits-path-bytes", "99GiB"]), &["out of range"]);
    assert_says(&args_refused(&["other.toml"]), &["other.toml", "cannot read"]);
}

#[test]
fn the_file_is_named_by_position_flag_or_environment() {
    let toml = "[cluster]\nid = 7";
    for args in [&["relay.toml"][..], &["--config", "relay.toml"], &["--config=relay.toml"]] {
        assert_eq!(run(&Given { args, file: toml, ..NOTHING }).cluster.id, Some(7));
    }
    let env = [("CORELAY_CONFIG", "relay.toml")];
    assert_eq!(run(&Given { env: &env, file: toml, ..NOTHING }).cluster.id, Some(7));
    args_refused(&["relay.toml", "--config", "relay.toml"]);
}

#[test]
fn a_file_can_be_checked_without_being_run() {
    let check = |file| load(&Given { args: &["--check-config", "relay.toml"], file, ..NOTHING });
    let Ok(Loaded::Show(text)) = check("[quic]\ngso = false") else { panic!("expected a verdict") };
    assert_eq!(text, "relay.toml: ok\n");
    assert!(check("[quic]\ngso = 5").is_err());
}

#[test]
fn help_shows_every_setting_with_its_default_and_environment_name() {
    let Ok(Loaded::Show(help)) = load(&Given { args: &["--help"], ..NOTHING }) else {
        panic!("expected help")
    };
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_says(&help, &["--quic-gso", "[default: true]", "[env: CORELAY_QUIC_GSO]"]);
    assert_says(&help, &["--listen-tls-generate", "--check-config", "[env: CORELAY_CONFIG]"]);
    for (name, default, doc) in Limits::rows() {
        let flag = format!("--limits-{} ", name.replace('_', "-"));
        let env = format!("[env: CORELAY_LIMITS_{}]", name.to_uppercase());
        let default = format!("[default: {default}]");
        assert_says(&help, &[&flag, &env, &default, doc.trim_end_matches('.')]);
    }
    let Ok(Loaded::Show(version)) = load(&Given { args: &["--version"], ..NOTHING }) else {
        panic!("expected a version")
    };
    assert_eq!(version, format!("corelay {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn limits_rows_parse_to_the_defaults() {
    let toml =
        Limits::rows().iter().fold(String::from("[limits]\n"), |toml, (name, default, _)| {
            format!("{toml}{name} = \"{default}\"\n")
        });
    assert_eq!(file(&toml).limits, Limits::default());
    assert_eq!(Limits::default().track_idle_ms, 2000);
    assert_eq!(Limits::default().incoming_buffer_bytes, 10 << 20);
}

#[test]
fn limits_that_defeat_each_other_are_refused() {
    let text = args_refused(&["--limits-handshakes", "10"]);
    assert_says(&text, &["limits.handshakes_retry is 256", "limits.handshakes, which is 10"]);
}

#[test]
fn switches_are_true_without_a_value() {
    assert!(args(&["--runtime-pin", "--quic-gso"]).runtime.pin);
    assert!(!args(&["--runtime-pin=false"]).runtime.pin);
    assert_says(&args_refused(&["--quic-gso=maybe"]), &["--quic-gso", "`maybe`"]);
}

#[test]
fn cores_are_a_list_of_which_one_is_taken() {
    let config = args(&["--cores", "2"]);
    assert_eq!((config.runtime.pin, config.runtime.core), (true, Some(2)));
    assert_eq!(args(&["--cores", "2-2"]).runtime.core, Some(2));
    assert_eq!(args(&["--runtime-workers", "1"]).runtime.core, None);
    assert_says(&args_refused(&["--cores", "2-5,8"]), &["--cores", "one shard in this version"]);
    let text = args_refused(&["--runtime-workers", "2"]);
    assert_says(&text, &["--runtime-workers", "one shard in this version"]);
    assert_says(&args_refused(&["--cores", "5-2"]), &["no list of cores"]);
}

#[test]
fn cores_exclude_workers_and_pin_wherever_they_are_from() {
    let text = args_refused(&["--cores", "2", "--runtime-workers", "1"]);
    assert_says(&text, &["--cores", "--runtime-workers", "remove"]);
    let given = Given { args: &["--cores=2"], env: &[("MOQ_RUNTIME_PIN", "true")], file: "" };
    assert_says(&refused(&given), &["--cores", "MOQ_RUNTIME_PIN"]);
}

#[test]
fn open_access_is_refused_where_others_reach_it() {
    let listen = ["--listen", "0.0.0.0:4443", "--listen-tls-generate", "example.org"];
    let text = args_refused(&listen);
    assert_eq!(
        text,
        "listening on 0.0.0.0:4443 without --auth-public: anyone who reaches it could publish and \
         watch; add --auth-public '**' to allow that, or listen on a loopback address"
    );
    let config = args(&[&listen[..], &["--auth-public", "**"]].concat());
    assert!(config.auth.public.expect("public").is_empty());
    let one_of_two = ["--listen", "127.0.0.1:1,192.0.2.1:1", "--listen-tls-generate", "a"];
    assert_says(&args_refused(&one_of_two), &["192.0.2.1:1"]);
    let named = args(&["--listen", "example.org:1", "--listen-tls-generate", "a"]);
    assert!(named.check_open(&["127.0.0.1:1".parse().expect("address")]).is_ok());
    assert!(named.check_open(&["[::ffff:127.0.0.1]:1".parse().expect("address")]).is_ok());
    assert!(named.check_open(&["192.0.2.1:1".parse().expect("address")]).is_err());
}

#[test]
fn public_is_everything_or_a_prefix() {
    let public = |pattern| args(&["--auth-public", pattern]).auth.public.expect("public");
    assert_eq!(public("**").as_str(), "");
    assert_eq!(public("demo/**").as_str(), "demo");
    assert_eq!(public("/a/b/**").as_str(), "a/b");
    let text = args_refused(&["--auth-public", "demo"]);
    assert_says(&text, &["`demo` has no wildcard", "`demo/**`"]);
    assert_says(&args_refused(&["--auth-public", "*/demo/**"]), &["wildcard inside"]);
    assert_says(&args_refused(&["--auth-public", "demo*"]), &["`PREFIX/**`"]);
}

#[test]
fn certificates_are_paired_and_one() {
    let text = args_refused(&["--listen-tls-cert", "a.pem"]);
    assert_says(&text, &["1", "0", "--listen-tls-key"]);
    let text = args_refused(&["--listen-tls-cert", "a,b", "--listen-tls-key", "a,b"]);
    assert_says(&text, &["this version serves one"]);
    let both = ["--listen-tls-cert=a", "--listen-tls-key=a", "--listen-tls-generate=localhost"];
    assert_says(&args_refused(&both), &["--listen-tls-generate", "keep one"]);
    let text = args_refused(&["--listen", "0.0.0.0:1", "--auth-public", "**"]);
    assert_says(&text, &["no certificate for 0.0.0.0:1", "--listen-tls-generate"]);
}

#[test]
fn secrets_are_written_only_when_both_ask_for_it() {
    assert_says(&args_refused(&["--tls-keylog"]), &["SSLKEYLOGFILE is not set"]);
    let env = [("SSLKEYLOGFILE", "keys")];
    assert!(run(&Given { args: &["--tls-keylog"], env: &env, file: "" }).listen.tls.keylog);
    assert!(!run(&Given { env: &env, ..NOTHING }).listen.tls.keylog);
}

#[test]
fn a_keep_alive_that_keeps_nothing_alive_is_refused() {
    let text = args_refused(&["--quic-idle-timeout", "2s", "--quic-keep-alive", "2s"]);
    assert_says(&text, &["--quic-keep-alive 2s", "--quic-idle-timeout 2s"]);
    let config = args(&["--quic-idle-timeout", "3s"]);
    assert_eq!(config.quic.keep_alive, Some(Duration::from_secs(1)));
}

#[test]
fn rust_log_overrides_the_level() {
    let given = |filter| {
        let env = [("RUST_LOG", filter)];
        run(&Given { args: &["--log-level", "warn"], env: &env, file: "" }).log.filter
    };
    assert_eq!(given("corelay=trace"), "corelay=trace");
    assert_eq!(given(""), "warn");
    let text = refused(&Given { env: &[("RUST_LOG", "corelay=loud")], ..NOTHING });
    assert_says(&text, &["RUST_LOG", "corelay=loud"]);
}
