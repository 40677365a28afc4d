//! Decisions as responses: `headgate.service.checks.forward_auth.response_of` and what `json_checks` answers.

use std::cell::Cell;

use bytes::Bytes;
use headgate_answers::Verdict;
use headgate_server::decide::Reply;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::bound::ReportedLimits;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const PROBLEM: &str = "application/problem+json";

const RETRY_AFTER: HeaderName = http::header::RETRY_AFTER;
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const DEGRADED: HeaderName = HeaderName::from_static("x-ratelimit-degraded");
const X_PROBLEM: HeaderName = HeaderName::from_static("x-ratelimit-problem");

/// Stands for a decision of several that the table could not make, when others were charged already.
const FAILED: &str = concat!(
    r#"{"error": {"type":"about:blank","title":"Service Unavailable","status":503,"#,
    r#""detail":"the store does not answer: it could not decide this request, and nothing was charged"}}"#
);

const LOST: &str = concat!(
    r#"{"type":"about:blank","title":"Internal Server Error","status":500,"#,
    r#""detail":"unexpected error: see the log"}"#
);

thread_local! {
    /// Where RateLimit is written, so that its value takes one allocation, of its size.
    static ITEMS: Cell<String> = const { Cell::new(String::new()) };
}

/// The response to a gateway: a decision as status and header fields, and a problem body on a refusal.
///
/// A `bare` refusal is 403 without a body, with the problem in a field.
pub fn forwarded(reported: &ReportedLimits, verdict: Verdict<'_>, bare: bool) -> Reply {
    let mut fields = Vec::with_capacity(3);
    let allowed = verdict.allowed();
    if !allowed && let Some(seconds) = verdict.retry_after_s() {
        fields.push((RETRY_AFTER, HeaderValue::from(seconds)));
    }
    if let Some(policy) = &reported.policy {
        fields.push((RATELIMIT_POLICY, policy.clone()));
        // It consists of the names that RateLimit-Policy has.
        let mut items = ITEMS.take();
        reported.limits.push_ratelimit(verdict, &mut items);
        if !items.is_empty() {
            fields.extend(HeaderValue::from_str(&items).map(|value| (RATELIMIT, value)));
        }
        items.clear();
        ITEMS.set(items);
    }
    if !verdict.degraded.is_empty() {
        fields.extend(HeaderValue::from_str(verdict.degraded).map(|value| (DEGRADED, value)));
    }
    if allowed {
        return Reply { status: StatusCode::OK, content_type: TEXT, fields, body: Bytes::new() };
    }
    let problem = reported.limits.problem(verdict);
    let status = match verdict.status() {
        503 => StatusCode::SERVICE_UNAVAILABLE,
        _ if bare => StatusCode::FORBIDDEN,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    if !bare {
        return Reply { status, content_type: PROBLEM, fields, body: problem.into() };
    }
    // It is one line of ASCII.
    fields.extend(HeaderValue::try_from(problem).map(|value| (X_PROBLEM, value)));
    Reply { status, content_type: PROBLEM, fields, body: Bytes::new() }
}

/// A decision as JSON.
pub fn decision_json(reported: &ReportedLimits, verdict: Verdict<'_>) -> String {
    reported.limits.decision_json(verdict)
}

/// The response to one request that a body describes.
pub fn one(json: String) -> Reply {
    Reply { status: StatusCode::OK, content_type: JSON, fields: vec![], body: json.into() }
}

/// The response to several; None for each decision that the table could not make.
pub fn several(decisions: &[Option<String>]) -> Reply {
    let written: Vec<&str> = decisions.iter().map(|json| json.as_deref().unwrap_or(FAILED)).collect();
    all(&written)
}

/// The response to several, each as JSON.
pub fn all<T: AsRef<str>>(written: &[T]) -> Reply {
    let texts: Vec<&str> = written.iter().map(AsRef::as_ref).collect();
    one(format!(r#"{{"decisions": [{}]}}"#, texts.join(", ")))
}

/// Stands for one of several that failed.
pub fn failed(failure: &Reply) -> String {
    format!(r#"{{"error": {}}}"#, String::from_utf8_lossy(&failure.body))
}

/// A failure for nginx: without a body, with the problem in a field.
pub fn without_body(mut failure: Reply) -> Reply {
    // It is one line of ASCII.
    failure.fields.extend(HeaderValue::from_bytes(&failure.body).map(|value| (X_PROBLEM, value)));
    failure.body = Bytes::new();
    failure
}

/// The response where the outcome of a check is lost: it may have been charged.
pub fn lost() -> Reply {
    let body = Bytes::from_static(LOST.as_bytes());
    Reply { status: StatusCode::INTERNAL_SERVER_ERROR, content_type: PROBLEM, fields: vec![], body }
}
