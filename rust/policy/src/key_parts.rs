//! Values as parts of a key: of bounded length, secrets as digests, all spellings of one value alike.

use std::borrow::Cow;

use blake2b_simd::Params;
use smallvec::SmallVec;

use crate::text::{first_word, is_longer, partition, strip};
use crate::value::NeedsPython;

/// Characters of a value that is a part as it stands; of a longer one the digest is.
pub const LONGEST_VALUE: usize = 256;

/// How base64 of a JSON object begins, and in itsdangerous, which Flask's sessions are made with, a compressed one.
const BEGIN_TOKENS: [&str; 2] = ["eyJ", ".eJ"];
/// Headers whose values are a scheme and credentials, and entries that report such a header.
pub const CREDENTIALS: [&str; 2] = ["authorization", "proxy-authorization"];

const MOST_HOSTS: usize = 16;
const MOST_TOKEN_PARTS: usize = 8;

/// A host without its port, in lower case.
pub fn host_of(host: &str) -> Result<Cow<'_, str>, NeedsPython> {
    let name = lower(strip(host))?;
    if name.starts_with('[') {
        let end = name.find(']').unwrap_or(name.len());
        return Ok(match name {
            Cow::Borrowed(name) if name[end..].starts_with(']') => Cow::Borrowed(&name[..=end]),
            name => Cow::Owned(format!("{}]", &name[..end])),
        });
    }
    Ok(match name {
        Cow::Borrowed(name) => Cow::Borrowed(without_port(name)),
        Cow::Owned(name) => Cow::Owned(without_port(&name).to_owned()),
    })
}

fn without_port(name: &str) -> &str {
    partition(name, ':').0.trim_end_matches('.')
}

/// The hosts that a request names, each once, without ports and in lower case; more than one if it has a list.
///
/// `user@host` is two: of a URL made with it, the part after the `@` is the host (RFC 3986, 3.2).
pub fn hosts_of(host: &str) -> Result<SmallVec<[Cow<'_, str>; 1]>, NeedsPython> {
    let mut hosts = SmallVec::new();
    let mut add = |name| -> Result<(), NeedsPython> {
        let name = host_of(name)?;
        if !hosts.contains(&name) {
            hosts.push(name);
        }
        Ok(())
    };
    for name in host.splitn(MOST_HOSTS + 1, ',') {
        add(name)?;
        if let Some((_, behind)) = name.rsplit_once('@') {
            add(behind)?;
        }
    }
    Ok(hosts)
}

/// `Bearer x`, `bearer x` and `BEARER  x` are the same credentials (RFC 9110, 11.1), and so are many of Basic.
pub fn one_spelling<'a>(credentials: impl Into<Cow<'a, str>>) -> Result<Cow<'a, str>, NeedsPython> {
    let credentials = credentials.into();
    let (scheme, token) = first_word(&credentials);
    if token.is_empty() {
        return Ok(credentials);
    }
    let lowered = lower(scheme)?;
    let token = if lowered == "basic" { plain_base64(token.into()) } else { plain_token(token) };
    let spelled = format!("{lowered} {token}");
    Ok(if spelled == credentials { credentials } else { Cow::Owned(spelled) })
}

/// A token of base64 parts, such as a JWT, in one spelling; anything else as it is.
///
/// Most decoders ignore other characters and the last bits of a part, so a signature has many spellings.
#[inline]
pub fn plain_token<'a>(value: impl Into<Cow<'a, str>>) -> Cow<'a, str> {
    let value = value.into();
    if BEGIN_TOKENS.iter().any(|begin| value.starts_with(begin)) { plain_parts(&value) } else { value }
}

fn plain_parts<'a>(value: &str) -> Cow<'a, str> {
    let mut token = String::with_capacity(value.len());
    for (index, part) in value.splitn(MOST_TOKEN_PARTS + 1, '.').enumerate() {
        if index > 0 {
            token.push('.');
        }
        token.push_str(&plain_base64(Cow::Borrowed(part)));
    }
    Cow::Owned(token)
}

/// Base64 as it is written without padding; a text that cannot be read is left as it is.
///
/// It is read as `binascii.a2b_base64` reads it where two `=` are added: other characters are passed over, and enough
/// of `=` ends it.
fn plain_base64(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.is_ascii() {
        return text;
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut padding = 0;
    for byte in text.bytes() {
        let byte = match byte {
            b'+' => b'-',
            b'/' => b'_',
            other => other,
        };
        if byte == b'=' {
            if plain.len() % 4 >= 2 {
                padding += 1;
                if plain.len() % 4 + padding >= 4 {
                    break;
                }
            }
        } else if sextet(byte).is_some() {
            padding = 0;
            plain.push(byte);
        }
    }
    // Bits of the last character that belong to no byte are not part of the value.
    let meant = match plain.len() % 4 {
        1 => return text,
        2 => 0b11_0000,
        3 => 0b11_1100,
        _ => 0b11_1111,
    };
    if let Some(last) = plain.last_mut() {
        *last = ALPHABET[usize::from(sextet(*last).unwrap_or(0) & meant)];
    }
    if plain == text.as_bytes() {
        return text;
    }
    String::from_utf8(plain).map_or(text, Cow::Owned)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}

/// Whether a secret with a comma is a list of different ones: a server or a gateway has made it of several lines.
pub fn is_list(value: &str) -> bool {
    let mut parts = value.split(',').map(strip);
    let first = parts.next();
    parts.any(|part| Some(part) != first)
}

/// A value as a part of a key: a long one by its digest.
pub fn bounded<'a>(value: impl Into<Cow<'a, str>>) -> Cow<'a, str> {
    let value = value.into();
    if is_longer(&value, LONGEST_VALUE) { Cow::Owned(format!("digest-{}", digest(&value))) } else { value }
}

/// 128 bits in hexadecimal, the same in every process; the value cannot be read back from it.
pub fn digest(value: &str) -> String {
    let hash = Params::new().hash_length(16).personal(b"headgate").hash(value.as_bytes());
    hash.to_hex().as_str().to_owned()
}

/// `str.lower`, where no tables of Unicode are needed for it.
fn lower(text: &str) -> Result<Cow<'_, str>, NeedsPython> {
    if !text.is_ascii() {
        return Err(NeedsPython);
    }
    let has_upper = text.bytes().any(|byte| byte.is_ascii_uppercase());
    Ok(if has_upper { Cow::Owned(text.to_ascii_lowercase()) } else { Cow::Borrowed(text) })
}
