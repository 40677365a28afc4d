//! One request and its response: its route, what answers it, and how the connection goes on.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};

use crate::connection::{Answering, Connection, Held, Signal};
use crate::decide::{Check, Question, Reply};
use crate::forward::PEER;
use crate::intake::methods::is_known;
use crate::outgoing::{Outgoing, ServiceBody};
use crate::problems::Refusal;
use crate::stats::Route;
use crate::uploads::{Upload, discard_body, head_bytes, read_body};
use crate::worker::Worker;

/// How long a request stays at the Python service after its client has ended its sending side.
const AFTER_LEAVING: Duration = Duration::from_secs(2);

/// One request on its way through the door.
pub struct Exchange<'a> {
    pub worker: &'a Arc<Worker>,
    pub connection: &'a Arc<Connection>,
    /// Counts the requests of the connection, from 0.
    pub number: u64,
}

/// How a request is answered.
enum Answered {
    Here(Reply),
    /// By the Python service, which gets this body.
    Passed(Bytes),
    /// By a refusal: no more is read from the connection.
    Refused(Refusal),
}

impl Exchange<'_> {
    /// Answer a request.
    pub async fn answer(self, request: Request<Incoming>) -> Result<Response<Outgoing>, Infallible> {
        let answering = Answering(Arc::clone(self.connection));
        let mut held = Held::of(&**self.connection);
        let (mut parts, body) = request.into_parts();
        parts.headers.remove(PEER);
        let is_http1 = parts.version < Version::HTTP_2;
        let is_http10 = parts.version < Version::HTTP_11;
        let is_without_body = parts.method == Method::HEAD && !is_http1; // in HTTP/1 hyper does that
        let refusal = self.connection.refusal_of(self.number).or_else(|| self.refuse(&parts));
        let (route, answered) = match refusal {
            Some(refusal) => (Route::None, Answered::Refused(refusal)),
            None => {
                if !is_http1 {
                    convert_to_http1(&mut parts);
                }
                let route = route_of(&parts.method, parts.uri.path());
                (route, self.answer_route(route, &parts, body, &mut held).await)
            }
        };
        let mut is_last = self.connection.ends_after(self.number);
        let complete =
            |reply, answering| respond(reply, is_without_body, |body| Outgoing::complete(body, answering, is_http1));
        let mut response = match answered {
            Answered::Here(reply) => complete(reply, answering),
            Answered::Refused(refusal) => {
                is_last = true;
                complete(refusal.reply(), answering)
            }
            Answered::Passed(body) => {
                let mut passed = Held::of(Arc::clone(self.connection));
                passed.set(head_bytes(&parts) + body.len());
                held.set(0);
                match self.pass(Request::from_parts(parts, Upload(body)), passed).await {
                    Ok(response) => response.map(|body| Outgoing::passed(body, answering, is_http1)),
                    Err(refusal) => complete(refusal.reply(), answering),
                }
            }
        };
        is_last |= self.worker.ends() || self.connection.has(Signal::GiveWay);
        if is_last && is_http1 {
            self.connection.note_announced_end();
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            if is_http10 {
                *response.version_mut() = Version::HTTP_10; // else hyper adds the `keep-alive` of the request
            }
        }
        self.worker.stats().count(route, response.status());
        Ok(response)
    }

    /// What is wrong with a request that the protocol lets pass; for HTTP/1, `Intake` has checked that.
    fn refuse(&self, parts: &Parts) -> Option<Refusal> {
        if parts.version < Version::HTTP_2 {
            return None;
        }
        let bounds = self.worker.bounds();
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        if target.len() > bounds.target_bytes {
            return Some(Refusal::target_too_long(bounds.target_bytes));
        }
        if parts.headers.len() > bounds.fields {
            return Some(Refusal::head_too_large(bounds.head_bytes, bounds.fields));
        }
        if !target.starts_with('/') {
            return Some(Refusal::not_a_path());
        }
        if parts.headers.get_all(HOST).iter().nth(1).is_some() {
            return Some(Refusal::new(StatusCode::BAD_REQUEST, "the field Host is given twice"));
        }
        if parts.headers.values().any(|value| has_blank_edge(value.as_bytes())) {
            let detail = "the value of a field begins and ends with something else than a blank";
            return Some(Refusal::new(StatusCode::BAD_REQUEST, detail));
        }
        let method = parts.method.as_str();
        (!is_known(method)).then(|| Refusal::unknown_method(method))
    }

    async fn answer_route(
        &self,
        route: Route,
        parts: &Parts,
        body: Incoming,
        held: &mut Held<&Connection>,
    ) -> Answered {
        let bounds = self.worker.bounds();
        match route {
            Route::Health => {
                self.do_without(parts, body);
                let (status, content_type) = (StatusCode::OK, "text/plain; charset=utf-8");
                Answered::Here(Reply { status, content_type, fields: vec![], body: Bytes::from_static(b"ok\n") })
            }
            Route::Check | Route::Check403 => {
                self.do_without(parts, body);
                let reply = self.decide(parts, forwarded(parts.uri.path(), route)).await;
                reply.map_or(Answered::Passed(Bytes::new()), Answered::Here)
            }
            Route::Described => match read_body(parts, body, bounds, self.connection, held).await {
                Ok(body) => {
                    let reply = self.decide(parts, Question::Described { body: &body }).await;
                    reply.map_or(Answered::Passed(body), Answered::Here)
                }
                Err(refusal) => Answered::Refused(refusal),
            },
            Route::Other | Route::None if parts.method == Method::POST => {
                let read = read_body(parts, body, bounds, self.connection, held).await;
                read.map_or_else(Answered::Refused, Answered::Passed)
            }
            Route::Other | Route::None => {
                self.do_without(parts, body);
                Answered::Passed(Bytes::new())
            }
        }
    }

    /// The reply to a check; None where the Python service must answer.
    async fn decide(&self, parts: &Parts, question: Question<'_>) -> Option<Reply> {
        let (method, headers, peer) = (&parts.method, &parts.headers, &*self.connection.peer_text);
        self.worker.decide(&Check { question, method, headers, peer }).await
    }

    /// Discard a body that is not wanted.
    fn do_without(&self, parts: &Parts, body: Incoming) {
        if body.is_end_stream() {
            return;
        }
        // A client that waits for `100 Continue` may send its body all the same, or not: the door cannot know.
        if parts.headers.contains_key(EXPECT) {
            self.connection.end_after(self.number);
        } else {
            discard_body(body, self.worker.bounds(), self.connection);
        }
    }

    /// The response of the Python service; a refusal where it gives none, or none in time.
    async fn pass(&self, request: Request<Upload>, held: Held) -> Result<Response<ServiceBody>, Refusal> {
        let forward = self.worker.forward();
        let may_wait = self.connection.all_hold() <= self.worker.bounds().held_bytes;
        if !may_wait && forward.has_no_turn(request.uri().path()) {
            return Err(Refusal::no_room_to_wait());
        }
        let departed = async {
            self.connection.leaves().await;
            tokio::time::sleep(AFTER_LEAVING).await;
        };
        tokio::select! {
            passed = forward.pass(request, self.connection.peer, held, self.connection.leaves()) => {
                passed.ok_or_else(Refusal::service_unreachable)
            }
            () = departed => Err(Refusal::service_unreachable()),
        }
    }
}

/// The route of a request.
fn route_of(method: &Method, path: &str) -> Route {
    if path.starts_with("/check/") {
        Route::Check
    } else if path.starts_with("/check-403/") {
        Route::Check403
    } else if path == "/v1/check" && method == Method::POST {
        Route::Described
    } else if path == "/healthz" && (method == Method::GET || method == Method::HEAD) {
        Route::Health
    } else {
        Route::Other
    }
}

/// The question of a path of forward auth.
fn forwarded(path: &str, route: Route) -> Question<'_> {
    let bare = route == Route::Check403;
    let rest = path.get(if bare { "/check-403/".len() } else { "/check/".len() }..).unwrap_or_default();
    let end = rest.find('/').unwrap_or(rest.len());
    Question::Forwarded { ruleset: &rest[..end], path: if end < rest.len() { &rest[end..] } else { "/" }, bare }
}

/// Convert what HTTP/2 expresses differently from HTTP/1: the host, and cookies in several fields (RFC 9113, 8.2.3 and
/// 8.3.1).
fn convert_to_http1(parts: &mut Parts) {
    let authority = parts.uri.authority().map(|authority| HeaderValue::try_from(authority.as_str()));
    if let Some(Ok(host)) = authority {
        parts.headers.insert(HOST, host);
    }
    if parts.headers.get_all(COOKIE).iter().nth(1).is_some() {
        let crumbs: Vec<_> = parts.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
            parts.headers.insert(COOKIE, cookie);
        }
    }
}

/// Whether a field's value begins or ends with a blank, which no value of HTTP/2 may (RFC 9113, 8.2.1).
fn has_blank_edge(value: &[u8]) -> bool {
    [value.first(), value.last()].into_iter().flatten().any(|byte| matches!(byte, b' ' | b'\t'))
}

/// A complete response; it may be without its body, whose length it states all the same.
fn respond(reply: Reply, is_without_body: bool, outgoing: impl FnOnce(Bytes) -> Outgoing) -> Response<Outgoing> {
    let Reply { status, content_type, fields, body } = reply;
    let length = body.len();
    let mut response = Response::new(outgoing(if is_without_body { Bytes::new() } else { body }));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.reserve(fields.len() + 3);
    if length > 0 {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    } else {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    for (name, value) in fields {
        headers.append(name, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_forward_auth_names_a_ruleset_and_perhaps_a_path() {
        for (path, route, ruleset, rest) in [
            ("/check/default", Route::Check, "default", "/"),
            ("/check/default/", Route::Check, "default", "/"),
            ("/check/default/a//b", Route::Check, "default", "/a//b"),
            ("/check/", Route::Check, "", "/"),
            ("/check-403/x/y", Route::Check403, "x", "/y"),
        ] {
            assert_eq!(route_of(&Method::GET, path), route);
            let bare = route == Route::Check403;
            assert_eq!(forwarded(path, route), Question::Forwarded { ruleset, path: rest, bare });
        }
    }

    #[test]
    fn everything_else_is_for_python() {
        for (method, path) in [
            (Method::GET, "/"),
            (Method::GET, "/v1/check"),
            (Method::POST, "/v1/check/"),
            (Method::POST, "/v1%2Fcheck"),
            (Method::POST, "/healthz"),
            (Method::GET, "/check"),
            (Method::GET, "/metrics"),
        ] {
            assert_eq!(route_of(&method, path), Route::Other, "{method} {path}");
        }
    }
}
