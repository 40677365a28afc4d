//! Targets: most hyper surely takes, and some are sent as they are typed. hyper knows no `"`, `<`, `>` and `` ` `` in
//! them, where other servers pass them on.

use bytes::BytesMut;

const LONGEST_PLAIN: usize = 256;

/// Percent-encode these characters in the target of the request whose first line is at the front of what has come, where
/// that is a path, as a policy reads it anyway; whether there were any.
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
    if !target.starts_with(b"/") || !target.iter().any(|byte| is_typed(*byte)) {
        return false;
    }
    let mut quoted = BytesMut::with_capacity(sent.len() + 64);
    quoted.extend_from_slice(&line[..=first]);
    for byte in target {
        match is_typed(*byte) {
            true => quoted.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            false => quoted.extend_from_slice(&[*byte]),
        }
    }
    quoted.extend_from_slice(&sent[last..]);
    *sent = quoted;
    true
}

/// Whether hyper surely takes a target. To ask its `Uri` is to copy the target.
pub fn is_plain(target: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%?=&:@,+".contains(&byte);
    target.len() <= LONGEST_PLAIN && target.starts_with('/') && target.bytes().all(is_plain)
}

fn is_typed(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'`')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plain_is_taken() {
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
    fn only_the_target_of_a_path_is_quoted() {
        for (sent, quoted) in [
            ("GET /a?q=\"b\" HTTP/1.1\r\nx: \"\r\n\r\n", Some("GET /a?q=%22b%22 HTTP/1.1\r\nx: \"\r\n\r\n")),
            ("GET /<`> HTTP/1.1\r\n\r\n", Some("GET /%3C%60%3E HTTP/1.1\r\n\r\n")),
            ("GET /a b\" HTTP/1.1\r\n\r\n", Some("GET /a b%22 HTTP/1.1\r\n\r\n")), // it is refused for its blank
            ("GET /a HTTP/1.1\r\nx: \"\r\n\r\n", None),
            ("GET http://\"/ HTTP/1.1\r\n\r\n", None),
            ("GET /\"", None),
            ("GET /\"\r\n\r\n", None),
            ("\r\n", None),
        ] {
            let mut buffer = BytesMut::from(sent);
            assert_eq!(quote_target(&mut buffer), quoted.is_some(), "{sent:?}");
            assert_eq!(buffer, quoted.unwrap_or(sent));
        }
    }
}
