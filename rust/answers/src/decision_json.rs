//! A decision as JSON, as `/v1/check` answers it; the twin of `headgate.service.checks.decision_json`.

use headgate_core::algorithms::transition::{NEVER, Reading};

use crate::text::{push_quoted, push_seconds, push_whole};
use crate::{Limits, NamedLimit, Verdict};

const NONE: &str = r#""rule": null, "limit": null, "unit": null, "remaining": null, "reset_after": null"#;

impl Limits {
    /// A decision as JSON: seconds as numbers, null for never.
    pub fn decision_json(&self, verdict: Verdict<'_>) -> String {
        let mut json = String::with_capacity(256 + 192 * self.all.len());
        json.push_str(if verdict.allowed() { r#"{"allowed": true, "# } else { r#"{"allowed": false, "# });
        self.push_binding(verdict, &mut json);
        json.push_str(r#", "retry_after": "#);
        match verdict.retry_after_us() {
            None => json.push_str("null"),
            Some(wait_us) => push_seconds(&mut json, wait_us),
        }
        json.push_str(r#", "delay": "#);
        push_seconds(&mut json, verdict.readings().iter().map(|reading| reading.delay_us).max().unwrap_or(0));
        push_all(&mut json, [r#", "degraded": ""#, verdict.degraded, r#"", "limits": ["#]);
        self.push_limits(verdict, &mut json);
        json.push_str(r#"], "headers": {"#);
        self.push_headers(verdict, &mut json);
        json.push_str("}}");
        json
    }

    fn push_binding(&self, verdict: Verdict<'_>, json: &mut String) {
        let index = verdict.answer.binding.map(usize::from);
        let binding = index.and_then(|index| self.all.get(index).zip(verdict.readings().get(index)));
        let Some((limit, reading)) = binding else {
            json.push_str(NONE);
            return;
        };
        json.push_str(r#""rule": "#);
        if limit.rule.is_empty() {
            json.push_str("null");
        } else {
            push_quoted(json, &limit.rule);
        }
        push_numbers(json, limit, reading);
    }

    /// The numbers of every limit.
    fn push_limits(&self, verdict: Verdict<'_>, json: &mut String) {
        for (index, (limit, reading)) in self.all.iter().zip(verdict.readings()).enumerate() {
            json.push_str(if index > 0 { r#", {"name": "# } else { r#"{"name": "# });
            push_quoted(json, &limit.name);
            json.push_str(r#", "rule": "#);
            push_quoted(json, &limit.rule);
            json.push_str(if reading.allowed() { r#", "allowed": true"# } else { r#", "allowed": false"# });
            push_numbers(json, limit, reading);
            json.push_str(r#", "retry_after": "#);
            if reading.retry_after_us == NEVER {
                json.push_str("null");
            } else {
                push_seconds(json, reading.retry_after_us);
            }
            json.push_str(if limit.form.shadow { r#", "shadow": true}"# } else { r#", "shadow": false}"# });
        }
    }

    /// The header fields for the client.
    fn push_headers(&self, verdict: Verdict<'_>, json: &mut String) {
        let mut separator = "";
        let mut push = |name: &str, value: &str| {
            push_all(json, [separator, "\"", name, "\": "]);
            push_quoted(json, value);
            separator = ", ";
        };
        if !verdict.allowed()
            && let Some(seconds) = verdict.retry_after_s()
        {
            push("Retry-After", &seconds.to_string());
        }
        if let Some(policy) = &self.policy {
            push("RateLimit-Policy", policy);
            let ratelimit = self.ratelimit(verdict);
            if !ratelimit.is_empty() {
                push("RateLimit", &ratelimit);
            }
        }
        if !verdict.degraded.is_empty() {
            push("X-RateLimit-Degraded", verdict.degraded);
        }
    }
}

/// The quota of a limit, what remains of it, and when all of it is available again.
fn push_numbers(json: &mut String, limit: &NamedLimit, reading: &Reading) {
    json.push_str(r#", "limit": "#);
    push_whole(json, limit.form.quota);
    push_all(json, [r#", "unit": ""#, &limit.unit, r#"", "remaining": "#]);
    push_whole(json, reading.remaining);
    json.push_str(r#", "reset_after": "#);
    push_seconds(json, reading.reset_after_us);
}

fn push_all<const N: usize>(json: &mut String, texts: [&str; N]) {
    for text in texts {
        json.push_str(text);
    }
}
