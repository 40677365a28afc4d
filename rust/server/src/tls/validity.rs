//! The validity period of a certificate, read from its DER (RFC 5280, 4.1).

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Both times in UTC, as `YYYYMMDDhhmmssZ`; None where they cannot be read.
pub fn of(certificate: &[u8]) -> Option<(String, String)> {
    let (tag, certificate, _) = element(certificate)?;
    let (inner, certificate, _) = element(certificate).filter(|_| tag == SEQUENCE)?;
    let mut fields = (inner == SEQUENCE).then_some(certificate)?;
    let (tag, _, rest) = element(fields)?;
    if tag == VERSION {
        fields = rest;
    }
    for expected in [INTEGER, SEQUENCE, SEQUENCE] {
        let (tag, _, rest) = element(fields)?; // serial number, algorithm, issuer
        fields = (tag == expected).then_some(rest)?;
    }
    let (_, validity, _) = element(fields)?;
    let (tag, from, rest) = element(validity)?;
    let from = time(tag, from)?;
    let (tag, until, _) = element(rest)?;
    Some((from, time(tag, until)?))
}

/// The tag of the first element, its content, and what is behind it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (digits, rest) =
            rest.split_at_checked(usize::from(first & 0x7f)).filter(|(digits, _)| digits.len() <= 3)?;
        (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn time(tag: u8, content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    let digits = text.strip_suffix('Z')?;
    let is_time = |count: usize| digits.len() == count && digits.bytes().all(|digit| digit.is_ascii_digit());
    match tag {
        UTC_TIME if is_time(12) => Some(format!("{}{text}", if digits < "5" { "20" } else { "19" })),
        GENERALIZED_TIME if is_time(14) => Some(text.to_owned()),
        _ => None,
    }
}
