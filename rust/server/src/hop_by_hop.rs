//! Header fields that belong to one connection and are not passed on (RFC 9110, 7.6.1).
//!
//! Other fields stay, even if `Connection` names them: the door and the Python service are one server to their clients,
//! and a check must be the same whichever of the two answers it. A client cannot make a field vanish by which it is
//! counted.

use http::header::{
    CONNECTION, EXPECT, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Take out what is of one connection.
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

    #[test]
    fn what_is_of_one_connection_is_taken_out_and_the_rest_stays() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-User"),
            ("x-user", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
        ] {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut fields);
        let mut left: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "x-user"]);
    }
}
