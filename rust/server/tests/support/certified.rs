//! Certificates of `tests/certificates`, a door that has them, and clients that speak TLS.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;

use headgate_server::bounds::Bounds;
use headgate_server::tls::{Pem, Tls};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, Stream, SupportedProtocolVersion};

use super::{Client, Counting, Running, another_client, check, connect, open};

/// A certificate and its key, in PEM.
pub type Pair = (&'static [u8], &'static [u8]);

macro_rules! pair {
    ($name:literal) => {
        (
            include_bytes!(concat!("../certificates/", $name, ".pem")),
            include_bytes!(concat!("../certificates/", $name, ".key")),
        )
    };
}

pub const CA: &[u8] = include_bytes!("../certificates/ca.pem");
pub const SERVER: Pair = pair!("server");
pub const RENEWED: Pair = pair!("renewed");
pub const RSA: Pair = pair!("rsa");
pub const CLIENT: Pair = pair!("client");
pub const STRANGER: Pair = pair!("stranger");
pub const ENCRYPTED_KEY: &[u8] = include_bytes!("../certificates/encrypted.key");

pub fn tls_of((certificate, key): Pair, client_ca: Option<&[u8]>) -> Tls {
    Tls::new(&Pem { certificate, key, client_ca }).expect("a certificate with its key")
}

/// A door with TLS and a quota that no test reaches.
pub fn start_tls(tls: Tls, bounds: Bounds) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    open(listener, Counting::new(1_000_000, "first"), 2, bounds, Some(tls))
}

/// Check that a check of this client is answered.
pub fn answered(client: &mut Client) {
    assert_eq!(client.request(check(&another_client())).status, 200);
}

pub const HTTP1: ClientOptions = ClientOptions { protocol: Some(b"http/1.1"), certificate: None, old_tls: false };
pub const HTTP2: ClientOptions = ClientOptions { protocol: Some(b"h2"), ..HTTP1 };

/// The protocols and the certificate of a client.
#[derive(Clone, Copy, Default)]
pub struct ClientOptions {
    pub protocol: Option<&'static [u8]>,
    pub certificate: Option<Pair>,
    pub old_tls: bool,
}

pub fn config_of(options: ClientOptions) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CA).expect("an authority")).expect("an authority");
    let version: &[&SupportedProtocolVersion] = if options.old_tls { &[&TLS12] } else { &[&TLS13] };
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_protocol_versions(version).expect("a version").with_root_certificates(roots);
    let mut config = match options.certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate).expect("a certificate")];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key).expect("a key")).expect("a key")
        }
    };
    config.alpn_protocols = options.protocol.map(<[u8]>::to_vec).into_iter().collect();
    Arc::new(config)
}

pub fn session_of(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(Arc::clone(config), name).expect("a client")
}

impl Running {
    /// A client that speaks TLS from its first byte on.
    pub fn connect_tls(&self, options: ClientOptions) -> Client {
        let mut client = connect(self.address);
        client.session = Some(Box::new(session_of(&config_of(options))));
        client
    }
}

impl Client {
    pub fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.session {
            Some(session) => Stream::new(session.as_mut(), &mut self.stream).read(bytes),
            None => self.stream.read(bytes),
        }
    }

    /// Perform the TLS handshake; the error is a text.
    pub fn perform_handshake(&mut self) -> Result<(), String> {
        let session = self.session.as_mut().expect("a client with TLS");
        while session.is_handshaking() {
            session.complete_io(&mut self.stream).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// The certificate of the door, after the handshake.
    pub fn shown(&mut self) -> Vec<u8> {
        self.perform_handshake().expect("a handshake");
        let session = self.session.as_ref().expect("a client with TLS");
        session.peer_certificates().expect("certificates")[0].to_vec()
    }
}

pub fn der_of((certificate, _): Pair) -> Vec<u8> {
    CertificateDer::from_pem_slice(certificate).expect("a certificate").to_vec()
}
