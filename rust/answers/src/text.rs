//! Texts and numbers as Python's `json` writes them.

use std::fmt::Write;

/// Append a text in quotes, in ASCII.
pub fn push_quoted(to: &mut String, text: &str) {
    to.push('"');
    for character in text.chars() {
        match character {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            '\u{8}' => to.push_str("\\b"),
            '\u{c}' => to.push_str("\\f"),
            ' '..='~' => to.push(character),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    let _ = write!(to, "\\u{unit:04x}"); // writing to a String cannot fail
                }
            }
        }
    }
    to.push('"');
}

/// Append microseconds as seconds, as Python prints the number.
pub fn push_seconds(to: &mut String, duration_us: i64) {
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
    fn texts_are_quoted_as_python_quotes_them() {
        let mut text = String::new();
        push_quoted(&mut text, "a\"b\\c\n\r\t\u{8}\u{c}\u{1}\u{7f}é😀");
        assert_eq!(text, r#""a\"b\\c\n\r\t\b\f\u0001\u007f\u00e9\ud83d\ude00""#);
    }
}
