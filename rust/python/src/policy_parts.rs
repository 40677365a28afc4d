//! `PolicyParts`: the native gate's parts, for the laws and vectors that hold them against `headgate.policy`.

use std::convert::Infallible;
use std::net::IpAddr;

use headgate_core::hash::Seed;
use headgate_policy::client_address::{self, AddressRules, Network};
use headgate_policy::path_tree::PathTree;
use headgate_policy::sent_values::{self, SentName, Values};
use headgate_policy::value::{self, Value};
use headgate_policy::{entries, key_parts, keys, path_forms};
use pyo3::prelude::*;

use crate::arguments;

/// Bytes in an address, the first one and the mask of a network.
type NetworkNumbers = (u8, u128, u128);
/// The fields of `headgate.policy.client_address.AddressRules`, in order.
type RuleFields = (String, Vec<NetworkNumbers>, bool, usize, u8, u8);

/// The native gate's parts.
#[pyclass(frozen, module = "headgate._native")]
pub struct PolicyParts;

#[pymethods]
impl PolicyParts {
    #[staticmethod]
    fn forms_of(path: &str) -> Vec<Vec<String>> {
        path_forms::forms_of(path).lists()
    }

    #[staticmethod]
    fn match_path(templates: Vec<(i32, String)>, path: &str) -> (Vec<(i32, String)>, Vec<i32>) {
        let tree = PathTree::new(templates.iter().map(|(owner, template)| (*owner, template.as_str())));
        let matched = tree.match_path(path);
        let found = matched.paths.found().iter().map(|(owner, index)| (*owner, tree.template(*index).to_owned()));
        (found.collect(), matched.paths.surely().to_vec())
    }

    #[staticmethod]
    fn client(rules: RuleFields, peer: &str, header: &str) -> String {
        rules_of(rules).client(peer, header).into_owned()
    }

    #[staticmethod]
    fn address(rules: RuleFields, peer: &str, header: &str) -> Option<Vec<u8>> {
        rules_of(rules).address(peer, header).map(packed)
    }

    #[staticmethod]
    fn parse_address(text: &str) -> Option<Vec<u8>> {
        client_address::parse_address(text).map(packed)
    }

    #[staticmethod]
    fn address_text(address: IpAddr) -> String {
        client_address::address_text(address)
    }

    #[staticmethod]
    fn is_in(address: IpAddr, networks: Vec<NetworkNumbers>) -> bool {
        client_address::is_in(address, &networks_of(networks))
    }

    #[staticmethod]
    fn forwarded_for(value: &str) -> Vec<String> {
        client_address::forwarded_for(value).into_iter().map(|node| node.into_owned()).collect()
    }

    #[staticmethod]
    fn host_of(host: &str) -> Option<String> {
        key_parts::host_of(host).ok().map(|host| host.into_owned())
    }

    #[staticmethod]
    fn hosts_of(host: &str) -> Option<Vec<String>> {
        key_parts::hosts_of(host).ok().map(|hosts| hosts.into_iter().map(|host| host.into_owned()).collect())
    }

    #[staticmethod]
    fn one_spelling(credentials: &str) -> Option<String> {
        key_parts::one_spelling(credentials).ok().map(|spelled| spelled.into_owned())
    }

    #[staticmethod]
    fn plain_token(value: &str) -> String {
        key_parts::plain_token(value).into_owned()
    }

    #[staticmethod]
    fn bounded(value: &str) -> String {
        key_parts::bounded(value).into_owned()
    }

    #[staticmethod]
    fn digest(value: &str) -> String {
        key_parts::digest(value)
    }

    #[staticmethod]
    fn cookie_values(lines: Vec<String>, name: &str) -> Option<Vec<Option<String>>> {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        SentName::new(name).ok().map(|name| texts_of(sent_values::cookie_values(&lines, &name)))
    }

    #[staticmethod]
    fn query_values(query: &str, name: &str) -> Option<Vec<Option<String>>> {
        SentName::new(name).ok().map(|name| texts_of(sent_values::query_values(query, &name)))
    }

    #[staticmethod]
    fn one_of_values(values: Vec<Option<String>>) -> Option<String> {
        let values = values.into_iter().map(|value| value.map_or(Value::Repeated, |text| Value::One(text.into())));
        text_of(value::one_of_values(values))
    }

    #[staticmethod]
    fn one_of_lines(lines: Vec<String>) -> Option<String> {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        text_of(value::one_of_lines(&lines))
    }

    #[staticmethod]
    fn is_like(pattern: &str, text: &str) -> bool {
        entries::is_like(pattern, text)
    }

    #[staticmethod]
    fn entries_text(pairs: Vec<(String, String)>) -> String {
        let pairs = pairs.iter().map(|(key, value)| Ok::<_, Infallible>((&**key, &**value)));
        entries::entries_text(pairs).unwrap_or_else(|never| match never {})
    }

    #[staticmethod]
    fn encode_key(parts: Vec<String>) -> Option<String> {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        keys::encode_key(&parts)
    }

    #[staticmethod]
    fn hash_key(parts: Vec<String>, seed: [u8; 16]) -> Option<(u64, u64)> {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        keys::hash_key(&parts, &Seed::new(seed)).map(|hash| (hash.shard, hash.tag))
    }

    #[staticmethod]
    fn hash_of_limiter(key: &Bound<'_, PyAny>, seed: [u8; 16]) -> PyResult<(u64, u64)> {
        let hash = arguments::hash_key(key, &Seed::new(seed))?;
        Ok((hash.shard, hash.tag))
    }
}

fn rules_of((header, trusted, trust_unix, hops, ipv4_prefix, ipv6_prefix): RuleFields) -> AddressRules {
    AddressRules { header, trusted: networks_of(trusted), trust_unix, hops, ipv4_prefix, ipv6_prefix }
}

fn networks_of(networks: Vec<NetworkNumbers>) -> Vec<Network> {
    let mut networks = networks.into_iter().map(|(length, first, mask)| Network { length, first, mask }).collect();
    client_address::tidy(&mut networks);
    networks
}

fn packed(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Each value as text, None for one that is repeated.
fn texts_of(values: Values<'_>) -> Vec<Option<String>> {
    values.into_iter().map(text_of).collect()
}

fn text_of(value: Value<'_>) -> Option<String> {
    match value {
        Value::Missing => Some(String::new()),
        Value::One(text) => Some(text.into_owned()),
        Value::Repeated => None,
    }
}
