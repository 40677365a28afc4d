//! Texts and numbers as Python's `json` writes them.

use std::fmt::Write;

use crate::US;

/// Seconds of this many microseconds and more have so many digits that the nearest number may be printed otherwise.
const EXACT_US: i64 = 1_000_000_000_000_000;
/// Python prints smaller numbers with an exponent.
const LEAST_WITHOUT_EXPONENT_US: i64 = 100;

/// Append a text in quotes, in ASCII.
pub fn push_quoted(to: &mut String, text: &str) {
    to.push('"');
    let mut rest = text;
    while let Some(place) = rest.find(|character| !matches!(character, ' '..='~') || matches!(character, '"' | '\\')) {
        to.push_str(&rest[..place]);
        let mut characters = rest[place..].chars();
        push_escaped(to, characters.next().unwrap_or_default());
        rest = characters.as_str();
    }
    to.push_str(rest);
    to.push('"');
}

fn push_escaped(to: &mut String, character: char) {
    match character {
        '"' => to.push_str("\\\""),
        '\\' => to.push_str("\\\\"),
        '\n' => to.push_str("\\n"),
        '\r' => to.push_str("\\r"),
        '\t' => to.push_str("\\t"),
        '\u{8}' => to.push_str("\\b"),
        '\u{c}' => to.push_str("\\f"),
        other => {
            for unit in other.encode_utf16(&mut [0; 2]) {
                let _ = write!(to, "\\u{unit:04x}"); // writing to a String cannot fail
            }
        }
    }
}

/// Append a whole number.
#[inline]
pub fn push_whole(to: &mut String, number: i64) {
    to.push_str(itoa::Buffer::new().format(number));
}

/// Append microseconds as seconds, as Python prints the number.
pub fn push_seconds(to: &mut String, duration_us: i64) {
    if duration_us != 0 && !(LEAST_WITHOUT_EXPONENT_US..EXACT_US).contains(&duration_us) {
        return push_unusual_seconds(to, duration_us);
    }
    let (whole, mut rest) = (duration_us / US, duration_us % US);
    push_whole(to, whole);
    to.push('.');
    let mut digit_us = US / 10;
    loop {
        to.push(char::from(b'0' + (rest / digit_us) as u8));
        rest %= digit_us;
        if rest == 0 {
            return;
        }
        digit_us /= 10;
    }
}

/// `push_seconds` of a number that has an exponent, many digits or a sign.
#[cold]
fn push_unusual_seconds(to: &mut String, duration_us: i64) {
    let seconds = duration_us as f64 / 1e6;
    // Writing to a String cannot fail.
    let _ = if seconds != 0.0 && seconds.abs() < 1e-4 {
        let text = format!("{seconds:e}");
        let (digits, exponent) = text.split_once("e-").unwrap_or((&text, "0"));
        write!(to, "{digits}e-{exponent:0>2}")
    } else if seconds.fract() == 0.0 {
        write!(to, "{seconds}.0")
    } else {
        write!(to, "{seconds}")
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_printed_as_python_prints_them() {
        for (duration_us, printed) in [
            (0, "0.0"),
            (1, "1e-06"),
            (12, "1.2e-05"),
            (99, "9.9e-05"),
            (100, "0.0001"),
            (1_000_000, "1.0"),
            (59_999_999, "59.999999"),
            (-1_500_000, "-1.5"),
            (9_223_372_036_854_775_807, "9223372036854.775"),
        ] {
            let mut text = String::new();
            push_seconds(&mut text, duration_us);
            assert_eq!(text, printed);
        }
    }

    #[test]
    fn whole_arithmetic_prints_what_floating_point_does() {
        let mut sampled = 1_u64;
        let random = (0..200_000).map(|_| {
            sampled = sampled.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (sampled >> 14) as i64 >> (sampled % 50)
        });
        let edges = [0, 1, 99, 100, 101, 999_999, US, US + 1, 10 * US, EXACT_US - 1, EXACT_US, EXACT_US + 1];
        for duration_us in edges.into_iter().chain(random) {
            let (mut text, mut float) = (String::new(), String::new());
            push_seconds(&mut text, duration_us);
            push_unusual_seconds(&mut float, duration_us);
            assert_eq!(text, float, "{duration_us}");
        }
    }

    #[test]
    fn texts_are_quoted_as_python_quotes_them() {
        let mut text = String::new();
        push_quoted(&mut text, "a\"b\\c\n\r\t\u{8}\u{c}\u{1}\u{7f}é😀");
        assert_eq!(text, r#""a\"b\\c\n\r\t\b\f\u0001\u007f\u00e9\ud83d\ude00""#);
    }
}
