//! The problem body (RFC 9457) of a refusal; the twin of `headgate.http.refusal`.

use std::fmt::Write;

use crate::text::push_quoted;
use crate::{Limits, NamedLimit, Verdict, rounded_up};

/// The name of a limit without a name of its own: it means nothing to a client.
const DEFAULT: &str = "default";
const MILLISECOND_US: i64 = 1000;

impl Limits {
    /// The problem body of a refusal, on one line of ASCII.
    pub fn problem(&self, verdict: Verdict<'_>) -> String {
        let with_readings = self.all.iter().zip(verdict.readings());
        let refusing = with_readings.filter(|(limit, reading)| !reading.allowed() && !limit.form.shadow);
        let refusing: Vec<&NamedLimit> = refusing.map(|(limit, _)| limit).collect();
        let (kind, title, status) = if verdict.degraded == "closed" {
            let title = "Request cannot be satisfied due to temporary server capacity constraints";
            ("temporary-reduced-capacity", title, 503)
        } else {
            ("quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded", 429)
        };
        let mut detail = detail_of(&refusing, verdict);
        // Writing to a String cannot fail.
        let _ = match verdict.retry_after_s() {
            Some(seconds) => write!(detail, "; retry in {seconds} s"),
            None => write!(
                detail,
                "; waiting does not help: it is more than the quota ever holds, or lacks what it is counted by"
            ),
        };
        let mut body = String::with_capacity(320);
        let _ = write!(
            body,
            r#"{{"type":"https://iana.org/assignments/http-problem-types#{kind}","title":"{title}","status":{status},"#
        );
        body.push_str(r#""detail":"#);
        push_quoted(&mut body, &detail);
        if let Some(wait_us) = verdict.retry_after_us() {
            let _ = write!(body, r#","retry-after-ms":{}"#, rounded_up(wait_us, MILLISECOND_US));
        }
        body.push_str(r#","violated-policies":["#);
        for (index, limit) in refusing.iter().enumerate() {
            if index > 0 {
                body.push(',');
            }
            push_quoted(&mut body, &limit.name);
        }
        body.push_str("]}");
        body
    }
}

fn detail_of(refusing: &[&NamedLimit], verdict: Verdict<'_>) -> String {
    if verdict.degraded == "closed" {
        return "the rate limiter's store does not answer, or has no room to count this request".to_owned();
    }
    let words: Vec<String> = refusing.iter().map(|limit| limit_text(limit)).collect();
    format!("over the limit of {}", words.join(", "))
}

/// A limit as a client understands it: its name, if it was given one, and how much it lets pass in which time.
fn limit_text(limit: &NamedLimit) -> String {
    let rest = limit.name.strip_prefix(DEFAULT);
    let is_unnamed = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if is_unnamed { limit.text.to_string() } else { format!("{} ({})", limit.name, limit.text) }
}
