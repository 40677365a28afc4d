//! Certificates and keys of a door: texts that cannot be used are distinguished.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

mod support;

use headgate_server::tls::{Part, Pem, Tls};
use support::certified::*;

/// The error for these texts.
fn why_not(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> (Part, String) {
    let unusable = Tls::new(&Pem { certificate, key, client_ca }).err().expect("nothing that can be used");
    (unusable.part, unusable.why)
}

#[test]
fn texts_that_cannot_be_used_are_distinguished_and_show_no_key() {
    let (certificate, key) = SERVER;
    let cut = &key[..key.len() / 2];
    let garbled = String::from_utf8_lossy(key).replace("\nM", "\n*");
    let no_certificate = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    type Case<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>, Part, &'a str);
    let cases: [Case<'_>; 10] = [
        (b"", key, None, Part::Certificate, "holds no certificate"),
        (key, key, None, Part::Certificate, "holds no certificate"),
        (&certificate[..200], key, None, Part::Certificate, "is broken PEM"),
        (no_certificate, key, None, Part::Certificate, "cannot be read"),
        (certificate, b"", None, Part::Key, "holds no private key"),
        (certificate, cut, None, Part::Key, "is broken PEM"),
        (certificate, garbled.as_bytes(), None, Part::Key, "is broken PEM"),
        (certificate, RENEWED.1, None, Part::Key, "does not belong to the certificate"),
        (certificate, ENCRYPTED_KEY, None, Part::Key, "is encrypted"),
        (certificate, key, Some(b"nothing"), Part::ClientCa, "holds no certificate"),
    ];
    for (certificate, key, client_ca, part, words) in cases {
        let (own, why) = why_not(certificate, key, client_ca);
        assert_eq!(own, part, "{why}");
        assert!(why.contains(words), "{why}");
        let lines = String::from_utf8_lossy(SERVER.1).lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(lines.iter().filter(|line| !line.starts_with('-')).all(|line| !why.contains(&line[..8])), "{why}");
    }
}

#[test]
fn the_time_of_a_certificate_is_read() {
    let (from, until) = tls_of(SERVER, None).validity.expect("times");
    assert!(from.len() == 15 && until.len() == 15 && from.ends_with('Z') && from < until, "{from} {until}");
}
