//! A decision as JSON, as `/v1/check` answers it; the twin of `headgate.service.checks.decision_json`.

use std::fmt::Write;

use headgate_core::algorithms::transition::NEVER;

use crate::text::{push_quoted, push_seconds};
use crate::{Limits, Told};

const NONE: &str = r#""rule": null, "limit": null, "unit": null, "remaining": null, "reset_after": null"#;

impl Limits {
    /// A decision as JSON: seconds as numbers, null for never.
    pub fn decision_json(&self, told: Told<'_>) -> String {
        let mut json = String::with_capacity(256 + 192 * self.all.len());
        // Writing to a String cannot fail, here and below.
        let _ = write!(json, r#"{{"allowed": {}, "#, told.allowed());
        self.push_binding(told, &mut json);
        json.push_str(r#", "retry_after": "#);
        match told.retry_after_us() {
            None => json.push_str("null"),
            Some(wait_us) => push_seconds(&mut json, wait_us),
        }
        json.push_str(r#", "delay": "#);
        push_seconds(&mut json, told.readings().iter().map(|reading| reading.delay_us).max().unwrap_or(0));
        let _ = write!(json, r#", "degraded": "{}", "limits": ["#, told.degraded);
        self.push_limits(told, &mut json);
        json.push_str(r#"], "headers": {"#);
        self.push_headers(told, &mut json);
        json.push_str("}}");
        json
    }

    fn push_binding(&self, told: Told<'_>, json: &mut String) {
        let index = told.answer.binding.map(usize::from);
        let binding = index.and_then(|index| self.all.get(index).zip(told.readings().get(index)));
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
        let (quota, unit, remaining) = (limit.form.quota, &limit.unit, reading.remaining);
        let _ = write!(json, r#", "limit": {quota}, "unit": "{unit}", "remaining": {remaining}, "reset_after": "#);
        push_seconds(json, reading.reset_after_us);
    }

    /// Every limit's own numbers.
    fn push_limits(&self, told: Told<'_>, json: &mut String) {
        for (index, (limit, reading)) in self.all.iter().zip(told.readings()).enumerate() {
            json.push_str(if index > 0 { r#", {"name": "# } else { r#"{"name": "# });
            push_quoted(json, &limit.name);
            json.push_str(r#", "rule": "#);
            push_quoted(json, &limit.rule);
            let (allowed, quota, unit, remaining) =
                (reading.allowed(), limit.form.quota, &limit.unit, reading.remaining);
            let _ = write!(json, r#", "allowed": {allowed}, "limit": {quota}, "unit": "{unit}", "#);
            let _ = write!(json, r#""remaining": {remaining}, "reset_after": "#);
            push_seconds(json, reading.reset_after_us);
            json.push_str(r#", "retry_after": "#);
            if reading.retry_after_us == NEVER {
                json.push_str("null");
            } else {
                push_seconds(json, reading.retry_after_us);
            }
            let _ = write!(json, r#", "shadow": {}}}"#, limit.form.shadow);
        }
    }

    /// What to send to the client.
    fn push_headers(&self, told: Told<'_>, json: &mut String) {
        let mut separator = "";
        let mut push = |name: &str, value: &str| {
            let _ = write!(json, r#"{separator}"{name}": "#);
            push_quoted(json, value);
            separator = ", ";
        };
        if !told.allowed()
            && let Some(seconds) = told.retry_after_s()
        {
            push("Retry-After", &seconds.to_string());
        }
        if let Some(policy) = &self.policy {
            push("RateLimit-Policy", policy);
            let ratelimit = self.ratelimit(told);
            if !ratelimit.is_empty() {
                push("RateLimit", &ratelimit);
            }
        }
        if !told.degraded.is_empty() {
            push("X-RateLimit-Degraded", told.degraded);
        }
    }
}
