//! The server's TLS.

use std::time::{Duration, SystemTime};

use corelay::control::certificate;
use corelay::quic::tls::{Identity, TlsError, server};

fn identity() -> Identity {
    let made = certificate::generate(
        &["localhost".to_owned()],
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
    )
    .expect("made");
    Identity { chain: made.chain, key: made.key, sha256: made.sha256 }
}

#[test]
fn a_generated_identity_serves_quic() {
    let config = server(&identity(), &[b"moq-lite-06", b"moq-lite-05"], false).expect("config");
    assert_eq!(config.alpn_protocols, [b"moq-lite-06".to_vec(), b"moq-lite-05".to_vec()]);
    assert_eq!((config.max_early_data_size, config.send_tls13_tickets), (0, 2));
    assert!(config.ignore_client_order && config.ticketer.enabled());
    assert!(quinn_proto::crypto::rustls::QuicServerConfig::try_from(config).is_ok());
}

#[test]
fn a_foreign_key_is_refused() {
    let mixed = Identity { key: identity().key, ..identity() };
    assert!(matches!(server(&mixed, &[], false), Err(TlsError::Identity(_))));
}
