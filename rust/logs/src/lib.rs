//! Reading the start of lines of the common log format, fast enough to replay millions of them.
//!
//! Only plain lines are read: all else is left to `headgate.replay.common_log`, which gives
//! the same answer for every line that is read here.

pub mod entries;

/// `headgate.replay.entries.LONGEST_LINE`.
const LONGEST_LINE: usize = 65_536;
/// The latest moment that a limit can decide at, in microseconds since the epoch: 142 years.
pub const LATEST_US: i64 = 1 << 52;

/// The fields of a line that a replay needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine<'line> {
    /// Microseconds since the epoch.
    pub time_us: i64,
    /// The client's address or name.
    pub client: &'line str,
    /// The method.
    pub method: &'line str,
    /// The path with its query.
    pub path: &'line str,
}

/// Read `client ... [time] "METHOD /path HTTP/1.1" ...`; None for a line that needs a closer look.
///
/// `naive_is_utc` says that a time without a zone is in UTC.
pub fn read_line(line: &str, naive_is_utc: bool) -> Option<LogLine<'_>> {
    let bytes = line.as_bytes();
    if bytes.len() > LONGEST_LINE
        || bytes.contains(&b'\\')
        || bytes.iter().filter(|byte| **byte == b'"').count() % 2 == 1
    {
        return None;
    }
    let client_end = bytes.iter().position(|byte| *byte == b' ')?;
    let client = &line[..client_end];
    // One colon is that of a virtual host and its port.
    let colons = client.bytes().filter(|byte| *byte == b':').count();
    if client.is_empty() || colons == 1 || !client.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"') {
        return None;
    }
    // A name before an address is a virtual host.
    let mut next = bytes[client_end + 1..].iter().take_while(|byte| !matches!(byte, b' ' | b'[' | b'"'));
    if next.any(|byte| matches!(byte, b'.' | b':')) {
        return None;
    }
    let bracket = client_end + 1 + bytes[client_end + 1..].iter().position(|byte| matches!(byte, b'[' | b'"'))?;
    if bytes[bracket] != b'[' || !line[client_end..bracket].is_ascii() {
        return None;
    }
    let time_end = bracket + 1 + bytes[bracket + 1..].iter().position(|byte| *byte == b']')?;
    let request = line[time_end..].strip_prefix("] \"")?;
    let method_end = request.bytes().position(|byte| !byte.is_ascii_uppercase())?;
    let method = &request[..method_end];
    let target = request[method_end..].strip_prefix(' ')?;
    let path_end = target.bytes().position(|byte| matches!(byte, b' ' | b'"'))?;
    let path = &target[..path_end];
    let version = target[path_end..].strip_prefix(" HTTP/")?;
    let version_end = version.bytes().position(|byte| !(byte.is_ascii_digit() || byte == b'.'))?;
    if !(1..=32).contains(&method_end)
        || !path.starts_with('/')
        || !(1..=3).contains(&version_end)
        || !version[version_end..].starts_with("\" ")
    {
        return None;
    }
    let time_us = read_time(&bytes[bracket + 1..time_end], naive_is_utc)?;
    Some(LogLine { time_us, client, method, path })
}

/// `17/May/2015:10:05:03 +0000` or `2015-09-02 10:42:51.003372`.
fn read_time(text: &[u8], naive_is_utc: bool) -> Option<i64> {
    if text.len() != 26 {
        return None;
    }
    if text[2] == b'/' {
        let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
        if separators.iter().any(|(place, separator)| text[*place] != *separator) {
            return None;
        }
        let month = 1 + MONTHS.iter().position(|name| *name == &text[3..6])? as i64;
        let zone = 60 * number(&text[22..24])? + number(&text[24..26])?;
        let offset_s = 60 * if text[21] == b'-' { -zone } else { zone };
        if !matches!(text[21], b'+' | b'-') || zone >= 24 * 60 || number(&text[24..26])? >= 60 {
            return None;
        }
        let (year, day) = (number(&text[7..11])?, number(&text[..2])?);
        let seconds = moment(year, month, day, &text[12..14], &text[15..17], &text[18..20])?;
        return within(seconds.checked_sub(offset_s)?.checked_mul(1_000_000)?);
    }
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':'), (19, b'.')];
    if !naive_is_utc
        || !matches!(text[10], b' ' | b'T')
        || separators.iter().any(|(place, separator)| text[*place] != *separator)
    {
        return None;
    }
    let (year, month, day) = (number(&text[..4])?, number(&text[5..7])?, number(&text[8..10])?);
    let seconds = moment(year, month, day, &text[11..13], &text[14..16], &text[17..19])?;
    within(seconds.checked_mul(1_000_000)? + number(&text[20..])?)
}

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Seconds since the epoch of a moment in UTC; None for one that no calendar has.
fn moment(year: i64, month: i64, day: i64, hour: &[u8], minute: &[u8], second: &[u8]) -> Option<i64> {
    let (hour, minute, second) = (number(hour)?, number(minute)?, number(second)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if year < 1 || !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Days since 1970-01-01 in the proleptic Gregorian calendar, years counted from March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn within(time_us: i64) -> Option<i64> {
    (0..=LATEST_US).contains(&time_us).then_some(time_us)
}

/// A number of digits alone.
fn number(digits: &[u8]) -> Option<i64> {
    digits
        .iter()
        .try_fold(0, |number: i64, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}
