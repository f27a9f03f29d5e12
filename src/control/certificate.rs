//! The certificate: read from PEM files or made at start.
//! Results are DER, as TLS takes it.

use std::fmt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use time::{Duration, OffsetDateTime};

/// How far back a generated certificate begins, for clients whose clock is behind.
const BACKDATED: Duration = Duration::days(1);
/// How long it holds from now. With [`BACKDATED`] at most the 14 days that browsers allow a
/// certificate which they know by its hash.
const VALID: Duration = Duration::days(13);

/// A certificate and its key.
#[derive(Debug)]
pub struct Certificate {
    /// The server's certificate first; never empty.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
    /// SHA-256 of the first certificate's DER.
    pub sha256: [u8; 32],
}

impl Certificate {
    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Self {
        let sha256 = Sha256::digest(chain.first().expect("a chain is never empty")).into();
        Self { chain, key, sha256 }
    }

    /// The hash in lower-case hexadecimal digits.
    pub fn sha256_hex(&self) -> String {
        self.sha256.iter().fold(String::with_capacity(64), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
            text
        })
    }
}

/// Why there is no certificate.
#[derive(Debug)]
pub enum CertificateError {
    /// A file does not open or is no PEM.
    File(PathBuf, pem::Error),
    /// A file has no certificate in it.
    NoCertificate(PathBuf),
    /// A file has no private key in it.
    NoKey(PathBuf),
    /// The two files do not belong together, or the key is of an unknown kind.
    Pair(PathBuf, PathBuf, rustls::Error),
    /// None could be made.
    Generate(Vec<String>, rcgen::Error),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file, pem::Error::Io(error)) => write!(
                f,
                "cannot read {}: {error}; name a file that this user may read",
                file.display()
            ),
            Self::File(file, error) => {
                write!(f, "{} is no PEM: {error}; convert it to PEM", file.display())
            }
            Self::NoCertificate(file) => write!(
                f,
                "{} has no certificate in it: --listen-tls-cert wants PEM that begins with \
                 -----BEGIN CERTIFICATE-----",
                file.display()
            ),
            Self::NoKey(file) => write!(
                f,
                "{} has no private key in it: --listen-tls-key wants PEM that begins with \
                 -----BEGIN PRIVATE KEY-----",
                file.display()
            ),
            Self::Pair(cert, key, rustls::Error::InconsistentKeys(_)) => write!(
                f,
                "{} is not the key of {}: name the key that the certificate was made with",
                key.display(),
                cert.display()
            ),
            Self::Pair(cert, key, error) => write!(
                f,
                "{} with the key {} does not serve: {error}; the key may be ECDSA P-256 or P-384, \
                 Ed25519 or RSA",
                cert.display(),
                key.display()
            ),
            Self::Generate(hosts, error) => write!(
                f,
                "no certificate can be made for {}: {error}; check --listen-tls-generate",
                hosts.join(", ")
            ),
        }
    }
}

impl std::error::Error for CertificateError {}

/// Reads a chain and its key from PEM files and checks that they belong together.
pub fn load(cert: &Path, key: &Path) -> Result<Certificate, CertificateError> {
    let file = |error| CertificateError::File(cert.to_owned(), error);
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .map_err(file)?
        .collect::<Result<_, _>>()
        .map_err(file)?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate(cert.to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        pem::Error::NoItemsFound => CertificateError::NoKey(key.to_owned()),
        error => CertificateError::File(key.to_owned(), error),
    })?;
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(chain.clone(), private.clone_key(), &provider)
        .map_err(|error| CertificateError::Pair(cert.to_owned(), key.to_owned(), error))?;
    Ok(Certificate::new(chain, private))
}

/// Makes a self-signed ECDSA P-256 certificate for `hosts` (names and addresses), of the kind
/// that browsers take by its hash: no authority, and valid for 14 days, one of them past.
pub fn generate(hosts: &[String], now: SystemTime) -> Result<Certificate, CertificateError> {
    make(hosts, now.into()).map_err(|error| CertificateError::Generate(hosts.to_vec(), error))
}

fn make(hosts: &[String], now: OffsetDateTime) -> Result<Certificate, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.not_before = now - BACKDATED;
    params.not_after = now + VALID;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.distinguished_name.push(DnType::CommonName, "corelay");
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.self_signed(&key)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok(Certificate::new(vec![certificate.der().clone()], key.into()))
}
