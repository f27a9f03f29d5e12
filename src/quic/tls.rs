//! The server's TLS, for QUIC only. The provider is named at every use, never the process's
//! default: another one may be linked in.
//!
//! The server's order of ciphers holds, AES-128-GCM first, since that costs least where AES is in
//! hardware. rustls offers one order or the client's whole order, not "ours, except for ChaCha20
//! when the client puts it first": a client without AES hardware is served AES too.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, cipher_suite, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{KeyLogFile, ServerConfig};

/// Tickets sent after each full handshake.
const TICKETS: usize = 2;

/// Who this server is.
#[derive(Debug)]
pub struct Identity {
    /// The certificate and what leads from it to a root, in DER.
    pub chain: Vec<CertificateDer<'static>>,
    /// The certificate's key.
    pub key: PrivateKeyDer<'static>,
    /// SHA-256 of the certificate's DER.
    pub sha256: [u8; 32],
}

/// Why there is no TLS.
#[derive(Debug)]
pub enum TlsError {
    /// The provider lacks what TLS 1.3 needs.
    Provider(rustls::Error),
    /// Certificate and key do not serve.
    Identity(rustls::Error),
    /// No key for session tickets could be made.
    Ticketer(rustls::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(error) => write!(f, "TLS 1.3 cannot be set up: {error}"),
            Self::Identity(error) => write!(
                f,
                "the certificate and its key do not serve: {error}; check that they belong \
                 together and that the key is ECDSA P-256 or P-384, Ed25519 or RSA"
            ),
            Self::Ticketer(error) => {
                write!(f, "no key for session tickets: {error}; check the system's randomness")
            }
        }
    }
}

impl std::error::Error for TlsError {}

/// TLS 1.3 for `identity`, speaking one of `alpns` in that order of preference. Session tickets
/// of one result are good for all its clones; early data is off. With `keylog`, secrets go to the
/// file that the environment variable `SSLKEYLOGFILE` names.
pub fn server(
    identity: &Identity,
    alpns: &[&[u8]],
    keylog: bool,
) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Provider)?
        .with_no_client_auth()
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(TlsError::Identity)?;
    config.ignore_client_order = true;
    config.alpn_protocols = alpns.iter().map(|alpn| alpn.to_vec()).collect();
    config.send_tls13_tickets = TICKETS;
    config.ticketer = Ticketer::new().map_err(TlsError::Ticketer)?;
    config.max_early_data_size = 0;
    if keylog {
        config.key_log = Arc::new(KeyLogFile::new());
    }
    Ok(Arc::new(config))
}

fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..default_provider()
    }
}
