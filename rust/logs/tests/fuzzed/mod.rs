//! What must hold for any content of a log; the fuzzers of `rust/fuzz` check this too.

use headgate_logs::{LATEST_US, LogLine, read_line};

/// All fields of a line are parts of it, and the same line written plainly reads the same; a block is read as its
/// lines.
pub fn log_line(sent: &[u8]) {
    let block = String::from_utf8_lossy(sent);
    for line in block.split('\n') {
        let read = read_line(line, true);
        if let Some(LogLine { time_us, client, method, path }) = read {
            assert!((0..=LATEST_US).contains(&time_us));
            assert!(path.starts_with('/') && !path.contains([' ', '"', '\\']));
            assert!((1..=32).contains(&method.len()) && method.bytes().all(|byte| byte.is_ascii_uppercase()));
            assert!(!client.is_empty() && client.bytes().all(|byte| byte.is_ascii_graphic()));
            assert!(line.starts_with(&format!("{client} ")) && line.contains(&format!("] \"{method} {path} HTTP/")));
            let plain = format!("{client} - - [{}] \"{method} {path} HTTP/1.1\" 200 1", time_text(time_us));
            assert_eq!(read_line(&plain, true), read, "{line:?} is read in another way than {plain:?}");
            // What follows the request changes nothing, as long as it is no surprise.
            assert_eq!(read_line(&format!("{line} \"-\""), true), read);
        }
        // A time without a zone is only read where the caller says that it is in UTC; everything else is read the same.
        let with_zone = read_line(line, false);
        assert!(with_zone.is_none() || with_zone == read);
    }
}

/// A time as it is written without a zone.
fn time_text(time_us: i64) -> String {
    let (days, of_day) = (time_us.div_euclid(86_400_000_000), time_us.rem_euclid(86_400_000_000));
    let (mut year, mut day) = (1970, days);
    let of_year = |year: i64| 365 + i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
    while day >= of_year(year) {
        day -= of_year(year);
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, of_year(year) - 337, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let (hour, minute) = (of_day / 3_600_000_000, of_day / 60_000_000 % 60);
    let (second, us) = (of_day / 1_000_000 % 60, of_day % 1_000_000);
    format!("{year:04}-{:02}-{:02} {hour:02}:{minute:02}:{second:02}.{us:06}", month + 1, day + 1)
}
