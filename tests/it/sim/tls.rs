//! TLS of the simulation: one Ed25519 identity, whose signatures all have one length, and clients
//! that take any certificate.

use std::sync::{Arc, LazyLock};

use corelay::quic::tls::{self, Identity};
use corelay::wire::version::SUPPORTED;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

/// The server's configuration; made once, since a key costs time.
pub(super) fn server() -> Arc<rustls::ServerConfig> {
    static SERVER: LazyLock<Arc<rustls::ServerConfig>> = LazyLock::new(|| {
        let alpns: Vec<&[u8]> = SUPPORTED.iter().map(|version| version.alpn()).collect();
        tls::server(&identity(), &alpns, false).expect("the identity serves")
    });
    Arc::clone(&SERVER)
}

fn identity() -> Identity {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let names = vec!["localhost".to_owned()];
    let mut params = rcgen::CertificateParams::new(names).expect("a name");
    params.serial_number = Some(rcgen::SerialNumber::from(1));
    let certificate = params.self_signed(&key).expect("a certificate");
    Identity {
        chain: vec![certificate.der().clone()],
        key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        sha256: [0; 32],
    }
}

/// A client's configuration for one ALPN.
pub(super) fn client(alpn: &[u8]) -> Arc<rustls::ClientConfig> {
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC is TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
