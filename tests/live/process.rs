//! The program from outside: what it says, what it refuses and how, and how it ends.

use std::fs;

use corelay::control::certificate;
use rcgen::KeyPair;

use crate::client::{Dial, LITE_06, bare, close_of, say_setup};
use crate::relay::{Relay, Signal, run, scratch, within};

const REFUSED: i32 = 2;
const FAILED: i32 = 1;

#[test]
fn the_banner_says_where_the_relay_is_and_how_to_reach_it() {
    let relay = Relay::start(&[]);
    let banner = &relay.banner;
    assert!(relay.listening.iter().all(|address| address.port() != 0), "{banner}");
    assert!(relay.sha256.len() == 64 && relay.sha256.bytes().all(|b| b.is_ascii_hexdigit()));
    let dialed = format!(
        "moq --connect moqt://{}/demo --connect-tls-fingerprint {}",
        relay.listening[0], relay.sha256
    );
    for (label, command) in [("publish: ", " import fmp4"), ("watch: ", " export fmp4")] {
        let line = banner.lines().find(|line| line.starts_with(label)).expect("the line");
        assert!(line.contains(&dialed) && line.contains(command), "{line}");
    }
}

/// Clients learn that the relay is going down, and that nothing is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_closes_every_session_and_exits_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let relay = Relay::start(&[]);
        let publisher = Dial::new(&relay, LITE_06).publish("cam", 0).await;
        let (_endpoint, idle) = bare(&relay, LITE_06).await;
        let (_other_endpoint, open) = bare(&relay, LITE_06).await;
        say_setup(&open, "/").await;
        within("the relay's SETUP", open.accept_uni()).await.expect("a stream");
        relay.signal(signal);
        for connection in [&idle, &open] {
            assert_eq!(close_of(connection).await, (0, "shutting down".to_owned()));
        }
        let closed = within("the library noticing", publisher.connection.closed()).await;
        assert!(closed.is_err_and(|error| error.to_string().contains("no error")));
        let ended = relay.end();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    }
}

#[test]
fn a_taken_port_names_the_way_out() {
    let relay = Relay::start(&["--web-http-listen", "127.0.0.1:0"]);
    let taken = relay.listening[0].to_string();
    let said = ["the port is taken", "choose another --listen", "ss -lunp"];
    run(&["--listen", &taken], &[]).assert_refused(FAILED, &said);

    let web = relay.banner.lines().find_map(|line| line.strip_prefix("public HTTP on http://"));
    let web = web.expect("the server is on");
    run(&["--listen", "127.0.0.1:0", "--web-http-listen", web], &[])
        .assert_refused(FAILED, &["--web-http-listen", "is the port taken?"]);
}

#[test]
fn a_core_that_is_not_there_names_the_way_out() {
    run(&["--listen", "127.0.0.1:0", "--cores", "4095"], &[])
        .assert_refused(FAILED, &["core 4095", "taskset -cp $$", "--runtime-pin=false"]);
}

#[test]
fn two_cores_are_refused() {
    run(&["--listen", "127.0.0.1:0", "--cores", "0,1"], &[])
        .assert_refused(REFUSED, &["--cores", "one shard in this version"]);
}

#[test]
fn a_core_that_is_there_is_taken() {
    let core = core_affinity::get_core_ids().expect("cores")[0].id.to_string();
    drop(Relay::start(&["--cores", &core]));
}

/// Writes a generated certificate's parts; a key of its own, or that of another.
fn write_pair(name: &str) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a host");
    let cert = params.self_signed(&key).expect("a certificate");
    let place = |part: &str| scratch(&format!("{name}-{part}.pem")).display().to_string();
    let (cert_file, key_file) = (place("cert"), place("key"));
    fs::write(&cert_file, cert.pem()).expect("written");
    fs::write(&key_file, key.serialize_pem()).expect("written");
    (cert_file, key_file)
}

fn run_with_pair(cert: &str, key: &str) -> crate::relay::Ended {
    let args = ["--listen", "127.0.0.1:0", "--listen-tls-cert", cert, "--listen-tls-key", key];
    run(&args, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_from_files_is_served() {
    let (cert, key) = write_pair("served");
    let loaded = certificate::load(cert.as_ref(), key.as_ref()).expect("a certificate");
    let relay = Relay::start(&["--listen-tls-cert", &cert, "--listen-tls-key", &key]);
    assert_eq!(relay.sha256, loaded.sha256_hex());
    let _viewer = Dial::new(&relay, LITE_06).watch().await;
}

#[test]
fn bad_certificate_files_name_the_way_out() {
    let (cert, key) = write_pair("one");
    let (_, other_key) = write_pair("other");
    let absent = scratch("absent.pem").display().to_string();
    let text = scratch("text.pem").display().to_string();
    fs::write(&text, "no certificate").expect("written");
    let cases = [
        (&absent, &key, ["cannot read", "name a file that this user may read"]),
        (&cert, &absent, ["cannot read", "name a file that this user may read"]),
        (&text, &key, ["has no certificate in it", "--listen-tls-cert wants PEM"]),
        (&cert, &text, ["has no private key in it", "--listen-tls-key wants PEM"]),
        (&cert, &other_key, ["is not the key of", "name the key that"]),
    ];
    for (cert, key, said) in cases {
        run_with_pair(cert, key).assert_refused(FAILED, &said);
    }
}

#[test]
fn an_address_that_others_reach_needs_public_access_by_name() {
    let open = ["--listen", "0.0.0.0:0", "--listen-tls-generate", "localhost"];
    let said = ["without --auth-public", "add --auth-public '**'", "loopback"];
    run(&open, &[]).assert_refused(REFUSED, &said);
    run(&open[..2], &[]).assert_refused(REFUSED, &["--listen-tls-generate"]);
    drop(Relay::start(&[&open[..], &["--auth-public", "**"]].concat()));
}

fn write_config(name: &str, text: &str) -> String {
    let file = scratch(name);
    fs::write(&file, text).expect("written");
    file.display().to_string()
}

#[test]
fn a_configuration_is_checked_without_being_run() {
    let good = write_config("good.toml", "listen = \"127.0.0.1:0\"\n");
    let ended = run(&["--check-config", &good], &[]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with(": ok\n") && ended.stderr.is_empty(), "{ended:?}");

    let bad = write_config("bad.toml", "[quic]\ngso = 7\n");
    run(&["--check-config", &bad], &[]).assert_refused(REFUSED, &["key `quic.gso`", "bad.toml"]);
    let absent = scratch("absent.toml").display().to_string();
    run(&["--check-config", &absent], &[])
        .assert_refused(REFUSED, &["cannot read the configuration file"]);
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest() {
    let file = write_config("unknown.toml", "[quic]\nidle_timeuot = \"2s\"\n");
    for args in [["--check-config", &*file], ["--config", &*file]] {
        let said = ["key `quic.idle_timeuot`", "did you mean `quic.idle_timeout`?"];
        run(&args, &[]).assert_refused(REFUSED, &said);
    }
    run(&["--lisen", "127.0.0.1:0"], &[]).assert_refused(REFUSED, &["'--listen'"]);
    run(&["--listen", "127.0.0.1:0"], &[("CORELAY_QUIC_GS0", "true")])
        .assert_refused(REFUSED, &["CORELAY_QUIC_GS0", "did you mean `CORELAY_QUIC_GSO`?"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_serves_health_numbers_and_the_certificate() {
    let relay =
        Relay::start(&["--web-http-listen", "127.0.0.1:0", "--internal-listen", "127.0.0.1:0"]);
    assert_eq!(relay.get("public", "/health"), (200, "ok\n".to_owned()));
    assert_eq!(relay.get("internal", "/health"), (200, "ok\n".to_owned()));
    assert_eq!(relay.get("public", "/certificate.sha256"), (200, relay.sha256.clone()));
    assert_eq!(relay.get("public", "/metrics").0, 404);
    assert_eq!(relay.get("internal", "/certificate.sha256").0, 404);

    let _viewer = Dial::new(&relay, LITE_06).watch().await;
    let (status, metrics) = relay.get("internal", "/metrics");
    assert_eq!(status, 200);
    let mut samples = metrics.lines().filter(|line| !line.starts_with('#'));
    assert!(samples.clone().all(|line| line.starts_with("corelay_")), "{metrics}");
    let sessions = samples.find(|line| line.starts_with("corelay_sessions{"));
    assert!(sessions.is_some_and(|line| line.ends_with("} 1")), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"));
}

/// Without `--listen`, both families of loopback serve where the host has both.
#[tokio::test(flavor = "multi_thread")]
async fn the_default_listens_on_both_families() {
    let has_ipv6 = std::net::UdpSocket::bind("[::1]:0").is_ok();
    if !has_ipv6 {
        eprintln!("SKIPPED in part: this host has no IPv6");
    }
    let relay = match Relay::serve(&["--runtime-pin=false"], &[]) {
        Ok(relay) => relay,
        Err(ended) => {
            ended.assert_refused(FAILED, &["the port is taken"]);
            eprintln!("SKIPPED: the default port is taken; trying both families on others");
            let any = if has_ipv6 { "127.0.0.1:0,[::1]:0" } else { "127.0.0.1:0" };
            Relay::start(&["--listen", any])
        }
    };
    assert_eq!(relay.listening.len(), if has_ipv6 { 2 } else { 1 });
    for address in &relay.listening {
        let dial = Dial { url: format!("moqt://{address}/"), ..Dial::new(&relay, LITE_06) };
        let _viewer = dial.watch().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_secrets_are_written_only_when_asked_for_and_with_a_warning() {
    let file = scratch("keylog.txt");
    let env = [("SSLKEYLOGFILE", file.to_str().expect("UTF-8"))];
    let quiet = Relay::start_with(&[], &env);
    drop(Dial::new(&quiet, LITE_06).watch().await);
    assert!(!file.exists());

    let relay = Relay::start_with(&["--tls-keylog"], &env);
    drop(Dial::new(&relay, LITE_06).watch().await);
    let secrets = fs::read_to_string(&file).expect("the file is there");
    assert!(secrets.contains("SERVER_TRAFFIC_SECRET_0 "), "{secrets}");
    relay.signal(Signal::TERM);
    let ended = relay.end();
    let warned = |line: &str| line.contains("WARN") && line.contains("--tls-keylog");
    assert!(ended.stderr.lines().any(warned), "{ended:?}");
    run(&["--listen", "127.0.0.1:0", "--tls-keylog"], &[])
        .assert_refused(REFUSED, &["SSLKEYLOGFILE is not set"]);
}

/// The token neither shows in logs nor makes a root of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_the_url_is_never_logged() {
    let relay = Relay::start_with(&[], &[("RUST_LOG", "trace")]);
    let dialed = Dial::at(&relay, "room?jwt=sesame-open-wide", LITE_06);
    let publisher = dialed.publish("cam", 0).await;
    let viewer = Dial::at(&relay, "room", LITE_06).watch().await;
    let mut announced = viewer.origin.consume().announced();
    let first = within("an announcement", announced.next()).await.expect("the session lives");
    assert_eq!(first.prefix.as_str(), "cam");
    drop((publisher, viewer));
    relay.signal(Signal::TERM);
    let ended = relay.end();
    assert!(ended.stderr.contains("TRACE"), "nothing was logged");
    for output in [&ended.stderr, &ended.stdout] {
        assert!(!output.contains("jwt") && !output.contains("sesame"), "the token shows");
    }
}
