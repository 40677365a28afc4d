//! Request targets: which are accepted, and which characters in them are percent-encoded.
//!
//! hyper rejects `"`, `<`, `>` and `` ` `` in them, and some of the bytes outside ASCII, where other servers pass all
//! of these on. The Python service reads the same (`headgate.service.http.targets`).

use bytes::{BufMut, BytesMut};
use memchr::memchr2;

const LONGEST_PLAIN: usize = 256;

/// Percent-encode these characters in the target of the request line at the front of the received bytes, as a policy
/// reads it anyway; returns whether there were any.
pub fn quote_target(sent: &mut BytesMut) -> bool {
    let Some(end) = sent.windows(2).position(|pair| pair == b"\r\n") else {
        return false;
    };
    let line = &sent[..end];
    let is_blank = |byte: &u8| *byte == b' ';
    let (Some(first), Some(last)) = (line.iter().position(is_blank), line.iter().rposition(is_blank)) else {
        return false;
    };
    let target = line.get(first + 1..last).unwrap_or_default();
    let to_encode = target.iter().filter(|byte| needs_encoding(**byte)).count();
    if to_encode == 0 {
        return false;
    }
    let mut quoted = BytesMut::with_capacity(sent.len() + 2 * to_encode);
    quoted.extend_from_slice(&line[..=first]);
    for byte in target {
        if needs_encoding(*byte) {
            quoted.put_u8(b'%');
            quoted.put_u8(digit(byte >> 4));
            quoted.put_u8(digit(byte & 15));
        } else {
            quoted.put_u8(*byte);
        }
    }
    quoted.extend_from_slice(&sent[last..]);
    *sent = quoted;
    true
}

/// Whether hyper accepts a target unchanged; parsing it as a `Uri` would copy it.
pub fn is_accepted(target: &str) -> bool {
    is_plain(target) || (target.is_ascii() && http::Uri::try_from(target).is_ok())
}

/// Whether a target is a path, or begins with a host and perhaps a port (RFC 9112, 3.2.2), and no user (RFC 9110,
/// 4.2.4). No path has a fragment: hyper would drop what follows, which others read as a part of the path.
pub fn names_a_path(target: &str) -> bool {
    let is_web = |scheme: &str| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let has_fragment = |path: &str| memchr2(b'?', b'#', path.as_bytes()).is_some_and(|at| path[at..].starts_with('#'));
    if target.starts_with('/') {
        return !has_fragment(target);
    }
    target.split_once("://").is_some_and(|(scheme, rest)| {
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        is_web(scheme) && is_authority(authority) && !has_fragment(path)
    })
}

fn is_authority(text: &str) -> bool {
    let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_in_address = |byte: u8| byte.is_ascii_hexdigit() || b":.".contains(&byte);
    let (is_host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((address, port)) => (!address.is_empty() && address.bytes().all(is_in_address), port),
        None => {
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (!name.is_empty() && name.bytes().all(is_in_name), port)
        }
    };
    let is_port = |digits: &str| digits.len() <= 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_host
        && (port.is_empty()
            || port
                .strip_prefix(':')
                .is_some_and(|digits| is_port(digits) && (digits.is_empty() || digits.parse::<u16>().is_ok())))
}

/// Whether hyper certainly accepts a target.
fn is_plain(target: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%?=&:@,+".contains(&byte);
    target.len() <= LONGEST_PLAIN && target.starts_with('/') && target.bytes().all(is_plain)
}

fn needs_encoding(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'`' | 0x80..)
}

/// The hexadecimal digit of a number below 16.
fn digit(number: u8) -> u8 {
    if number < 10 { b'0' + number } else { b'A' - 10 + number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_targets_are_accepted() {
        let plain = (0..=127).map(char::from).filter(|character| is_plain(&format!("/{character}")));
        for character in plain {
            for target in [format!("/{character}"), format!("/a?{character}"), format!("/{character}{character}a")] {
                assert!(http::Uri::try_from(&target).is_ok_and(|uri| uri.to_string() == target), "{target:?}");
            }
        }
        for other in ["", "a", "http://a/", "*", "/a b", "/\"", "/#", "/\u{e9}", "/\0"] {
            assert!(!is_plain(other), "{other:?}");
        }
        assert!(is_plain("/check/default/a-b_c.d?e=%20&f"));
    }

    #[test]
    fn only_the_target_is_quoted() {
        for (sent, quoted) in [
            ("GET /a?q=\"b\" HTTP/1.1\r\nx: \"\r\n\r\n", Some("GET /a?q=%22b%22 HTTP/1.1\r\nx: \"\r\n\r\n")),
            ("GET /<`> HTTP/1.1\r\n\r\n", Some("GET /%3C%60%3E HTTP/1.1\r\n\r\n")),
            ("GET /a b\" HTTP/1.1\r\n\r\n", Some("GET /a b%22 HTTP/1.1\r\n\r\n")), // it is refused for its blank
            ("GET /a HTTP/1.1\r\nx: \"\r\n\r\n", None),
            ("GET http://a/` HTTP/1.1\r\n\r\n", Some("GET http://a/%60 HTTP/1.1\r\n\r\n")),
            ("GET /\u{e9}?\u{e9} HTTP/1.1\r\n\r\n", Some("GET /%C3%A9?%C3%A9 HTTP/1.1\r\n\r\n")),
            ("GET /a HTTP/1.1\r\nx: \u{e9}\r\n\r\n", None),
            ("GET /\"", None),
            ("GET /\"\r\n\r\n", None),
            ("\r\n", None),
        ] {
            let mut buffer = BytesMut::from(sent);
            assert_eq!(quote_target(&mut buffer), quoted.is_some(), "{sent:?}");
            assert_eq!(buffer, quoted.unwrap_or(sent));
        }
    }

    #[test]
    fn a_target_is_a_path_or_begins_with_a_host() {
        for target in [
            "/",
            "//",
            "/a://",
            "http://a",
            "http://a/",
            "http://a?b",
            "HTTPS://a-b.c_d/",
            "http://a:/",
            "http://a:0/",
            "http://a:65535?",
            "/?a#b",
            "http://a/?b#c",
            "http://[::1]",
            "http://[::ffff:1.2.3.4]:80/",
        ] {
            assert!(names_a_path(target) && is_accepted(target), "{target:?}");
        }
        for target in [
            "",
            "*",
            "a",
            "a:80",
            "ftp://a/",
            "http:/a",
            "http://",
            "http:///a",
            "http://:80/",
            "http://a:65536/",
            "http://a:+1/",
            "http://a:x/",
            "http://a:000080/",
            "http://a:1:2/",
            "http://a@b/",
            "http://a%41/",
            "http://[]/",
            "http://[::1",
            "http://[::1]a/",
            "http://[x]/",
            "http://a#b",
            "http://a/#b",
            "/#",
            "/a#/../b?c",
            "http://a,b/",
            "a/http://b/",
        ] {
            assert!(!names_a_path(target), "{target:?}");
        }
    }
}
