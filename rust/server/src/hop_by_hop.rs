//! Header fields that belong to one connection (RFC 9110, 7.6.1).
//!
//! All other fields of a request are passed on, also those that other intermediaries remove: the door and the Python
//! service are one server to their clients, and a check must be the same whichever of the two answers it. A client
//! cannot make a field vanish by which it is counted.

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The field in which the Python service gets the client's `Connection`; what a client sends in it is dropped.
const CLIENT_CONNECTION: HeaderName = HeaderName::from_static("headgate-door-connection");

/// Remove the fields of a request that describe its transfer: the framing of its body, and the options of its
/// connection.
pub fn remove_framing(fields: &mut HeaderMap) {
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT, CLIENT_CONNECTION] {
        fields.remove(name);
    }
    let connections: Vec<_> = fields.get_all(CONNECTION).iter().cloned().collect();
    fields.remove(CONNECTION);
    for options in connections {
        fields.append(CLIENT_CONNECTION, options);
    }
}

/// Remove the fields of a response that belong to one connection.
pub fn remove_hop_by_hop(fields: &mut HeaderMap) {
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        EXPECT,
    ] {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn left_of(remove: fn(&mut HeaderMap), sent: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut fields = HeaderMap::new();
        for (name, value) in sent {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        remove(&mut fields);
        let mut left: Vec<_> = fields.keys().map(|name| name.as_str().to_owned()).collect();
        left.sort_unstable();
        left
    }

    #[test]
    fn fields_of_one_connection_are_removed_from_a_response_and_the_rest_stays() {
        let sent = [
            ("connection", "close, X-User"),
            ("x-user", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
        ];
        assert_eq!(left_of(remove_hop_by_hop, &sent), ["content-length", "x-user"]);
    }

    #[test]
    fn only_fields_that_describe_its_transfer_are_removed_from_a_request() {
        let sent = [
            ("connection", "upgrade, close"),
            ("upgrade", "websocket"),
            ("te", "trailers"),
            ("keep-alive", "5"),
            ("proxy-authorization", "secret"),
            ("expect", "100-continue"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
        ];
        let left = ["headgate-door-connection", "keep-alive", "proxy-authorization", "te", "upgrade"];
        assert_eq!(left_of(remove_framing, &sent), left);
        assert!(left_of(remove_framing, &[("headgate-door-connection", "forged")]).is_empty());
    }
}
