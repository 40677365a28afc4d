//! Lines of access logs: what is read of them, and which are left to a closer look.

use headgate_logs::{LATEST_US, LogLine, read_line};

const LINE: &str = r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 12 "-" "curl""#;

fn time_us(time: &str, naive_is_utc: bool) -> Option<i64> {
    let line = format!(r#"203.0.113.7 - - [{time}] "GET / HTTP/1.1" 200 1"#);
    read_line(&line, naive_is_utc).map(|line| line.time_us)
}

#[test]
fn a_plain_line_is_read() {
    let expected = LogLine { time_us: 1_431_857_103_000_000, client: "203.0.113.7", method: "GET", path: "/a?b=c" };
    assert_eq!(read_line(LINE, false), Some(expected));
    let hosts = [("2001:db8::1", true), ("host.example", true), ("host:80", false), ("", false), ("a\"b", false)];
    for (client, read) in hosts {
        let line = LINE.replace("203.0.113.7", client);
        assert_eq!(read_line(&line, false).map(|line| line.client), read.then_some(client), "{client}");
    }
}

#[test]
fn a_line_with_a_surprise_is_left_to_a_closer_look() {
    for (plain, surprise) in [
        ("GET /a", "GET a"),
        ("GET /a", "get /a"),
        ("GET /a", r"GET /\x22a"),
        (" HTTP/1.1", ""),
        ("HTTP/1.1", "HTTP/one"),
        ("\"curl\"", "\"curl"),
        ("[17", "17"),
        ("- -", "- \"-\""),
        ("203.0.113.7 - -", "host.example 203.0.113.7 - -"),
        ("203.0.113.7 - -", "host.example ::1 - -"),
    ] {
        assert_eq!(read_line(&LINE.replace(plain, surprise), false), None, "{surprise}");
    }
    assert_eq!(read_line("", false), None);
    assert_eq!(read_line(&LINE.replace("curl", &"c".repeat(70_000)), false), None);
}

#[test]
fn a_time_is_read_in_its_zone_and_only_if_a_calendar_has_it() {
    let noon_us = 1_456_747_200_000_000; // 2016-02-29 12:00 UTC
    for time in ["29/Feb/2016:12:00:00 +0000", "29/Feb/2016:13:30:00 +0130", "29/Feb/2016:07:00:00 -0500"] {
        assert_eq!(time_us(time, false), Some(noon_us), "{time}");
    }
    assert_eq!(time_us("2016-02-29 12:00:00.000001", true), Some(noon_us + 1));
    assert_eq!(time_us("2016-02-29 12:00:00.000001", false), None, "a time without a zone is not known to be in UTC");
    for none in [
        "29/Feb/2015:12:00:00 +0000",
        "31/Apr/2016:12:00:00 +0000",
        "29/Fab/2016:12:00:00 +0000",
        "29/Feb/2016:24:00:00 +0000",
        "29/Feb/2016:12:60:00 +0000",
        "29/Feb/2016:12:00:60 +0000",
        "29/Feb/2016:12:00:00 +2400",
        "29/Feb/2016:12:00:00 0000",
        "31/Dec/1969:23:59:59 +0000",
        "01/Jan/9999:00:00:00 +0000",
    ] {
        assert_eq!(time_us(none, false), None, "{none}");
    }
    assert!(LATEST_US > noon_us);
}
