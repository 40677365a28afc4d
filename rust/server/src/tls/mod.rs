//! The certificate of a door, and which clients it admits: TLS 1.2 and 1.3, by rustls on ring.
//!
//! All of it is read from PEM before the first client connects. No message contains a byte of a key.

mod validity;

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig};

/// Protocols in the order of our choice (RFC 7301).
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The texts of files in PEM.
pub struct Pem<'a> {
    /// The server's certificate, then those that lead from it to its authority.
    pub certificate: &'a [u8],
    /// The key of the first of them.
    pub key: &'a [u8],
    /// The authority whose certificates clients must have; None admits clients without one.
    pub client_ca: Option<&'a [u8]>,
}

/// Which text cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `Pem::certificate`.
    Certificate,
    /// `Pem::key`.
    Key,
    /// `Pem::client_ca`.
    ClientCa,
}

/// What is wrong with a text, without any of its content.
#[derive(Debug)]
pub struct Unusable {
    /// The text.
    pub part: Part,
    /// What is wrong, and what would be right.
    pub why: String,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.part, self.why)
    }
}

impl std::error::Error for Unusable {}

/// A certificate with its key, and which clients are admitted; clones share them.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    /// From when to when the certificate is valid, in UTC, such as `20261125170000Z`; None where it cannot be read.
    pub validity: Option<(String, String)>,
}

impl Tls {
    /// The TLS configuration from texts in PEM.
    ///
    /// Errors say which of them cannot be used, and why.
    pub fn new(pem: &Pem<'_>) -> Result<Self, Unusable> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(pem.certificate, Part::Certificate)?;
        let validity = chain.first().and_then(|first| validity::of(first));
        let key = certified(chain, pem.key, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| Part::Certificate.is_unusable(error.to_string()))?;
        let builder = match pem.client_ca {
            None => builder.with_no_client_auth(),
            Some(text) => builder.with_client_cert_verifier(verifier(text, provider)?),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        if pem.client_ca.is_none() {
            // Sessions are resumed from tickets that clients store: nothing is stored here, and no lock is taken.
            config.ticketer = ring::Ticketer::new().map_err(|error| Part::Key.is_unusable(error.to_string()))?;
        } else {
            // None is resumed: the client's certificate would not be checked again, though it may have expired.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(Self { config: Arc::new(config), validity })
    }
}

impl Part {
    fn is_unusable(self, why: impl Into<String>) -> Unusable {
        Unusable { part: self, why: why.into() }
    }
}

/// All certificates of a text, at least one.
fn certificates(text: &[u8], part: Part) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let chain = read.map_err(|error| part.is_unusable(broken(&error)))?;
    if chain.is_empty() {
        return Err(part.is_unusable("holds no certificate: one in PEM begins with -----BEGIN CERTIFICATE-----"));
    }
    Ok(chain)
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    text: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Unusable> {
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| {
        let is_encrypted = text.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED);
        Part::Key.is_unusable(match error {
            PemError::NoItemsFound if is_encrypted => "is encrypted: a key without a passphrase is needed".into(),
            PemError::NoItemsFound => "holds no private key: one in PEM begins with -----BEGIN PRIVATE KEY-----".into(),
            error => broken(&error),
        })
    })?;
    let key = provider.key_provider.load_private_key(key).map_err(|_| {
        Part::Key.is_unusable(
            "holds a key that cannot be used: RSA of 2048 to 8192 bits, ECDSA on P-256 or P-384 and Ed25519 can",
        )
    })?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => Err(Part::Key.is_unusable(
            "does not belong to the certificate: it must be the key of the first certificate of the chain",
        )),
        Err(error) => Err(Part::Certificate.is_unusable(format!("holds a certificate that cannot be read: {error}"))),
    }
}

/// The mark of an encrypted key: old ones have it in a line of its own, new ones in the first line.
const ENCRYPTED: &[u8] = b"ENCRYPTED";

fn verifier(text: &[u8], provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, Unusable> {
    let mut roots = RootCertStore::empty();
    for (index, authority) in certificates(text, Part::ClientCa)?.into_iter().enumerate() {
        roots.add(authority).map_err(|error| {
            Part::ClientCa.is_unusable(format!("certificate {} is none of an authority: {error}", index + 1))
        })?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    verifier.map_err(|error| Part::ClientCa.is_unusable(error.to_string()))
}

/// What is wrong with a text in PEM, without any line of it.
fn broken(error: &PemError) -> String {
    let what = match error {
        PemError::MissingSectionEnd { .. } => "a section does not end with its -----END line",
        PemError::IllegalSectionStart { .. } => "a -----BEGIN line is not whole",
        PemError::Base64Decode(_) => "a section is not base64",
        _ => "it cannot be read",
    };
    format!("is broken PEM: {what}")
}
