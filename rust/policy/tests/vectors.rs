//! Every part gives exactly the answers of `vectors/policy_parts.jsonl`, which are Python's.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // a test says so when it fails

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use headgate_policy::client_address::{self, AddressRules, Network};
use headgate_policy::path_tree::PathTree;
use headgate_policy::sent_values::{self, SentName, Values};
use headgate_policy::value::{NeedsPython, Value, one_of_lines, one_of_values};
use headgate_policy::{entries, key_parts, keys, path_forms};
use serde_json::{Value as Json, json};

fn vectors() -> Vec<Json> {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/policy_parts.jsonl");
    let text = std::fs::read_to_string(table).expect("the table of cases");
    text.lines().map(|line| serde_json::from_str(line).expect("a case")).collect()
}

#[test]
fn every_part_answers_as_the_table_says() {
    let mut tested = BTreeSet::new();
    for case in vectors() {
        let name = case["function"].as_str().expect("a name");
        tested.insert(name.to_owned());
        let leaves = case["left_to_python"].as_bool().unwrap_or(false);
        let expected = if leaves { Err(NeedsPython) } else { Ok(case["answer"].clone()) };
        assert_eq!(answer(name, &case["arguments"]), expected, "{case}");
    }
    assert_eq!(tested.len(), 20);
}

fn answer(name: &str, arguments: &Json) -> Result<Json, NeedsPython> {
    let text = |index: usize| arguments[index].as_str().unwrap_or_else(|| panic!("{name} {arguments}"));
    let texts = |index: usize| arguments[index].as_array().expect("texts").iter().map(|one| one.as_str().unwrap());
    Ok(match name {
        "forms_of" => json!(path_forms::forms_of(text(0)).lists()),
        "match_path" => matched(&arguments[0], text(1)),
        "client" => {
            let rules = rules(&arguments[0]);
            let address = rules.address(text(1), text(2)).map(client_address::address_text);
            json!([rules.client(text(1), text(2)), address])
        }
        "parse_address" => json!(client_address::parse_address(text(0)).map(hexadecimal)),
        "address_text" => json!(client_address::address_text(packed(text(0)))),
        "is_in" => json!(client_address::is_in(packed(text(0)), &networks(&arguments[1]))),
        "forwarded_for" => json!(client_address::forwarded_for(text(0))),
        "host_of" => json!(key_parts::host_of(text(0))?),
        "hosts_of" => json!(key_parts::hosts_of(text(0))?.into_vec()),
        "one_spelling" => json!(key_parts::one_spelling(text(0))?),
        "plain_token" => json!(key_parts::plain_token(text(0))),
        "bounded" => json!(key_parts::bounded(text(0))),
        "digest" => json!(key_parts::digest(text(0))),
        "cookie_values" => {
            let lines: Vec<&str> = texts(0).collect();
            values_json(sent_values::cookie_values(&lines, &SentName::new(text(1))?))
        }
        "query_values" => values_json(sent_values::query_values(text(0), &SentName::new(text(1))?)),
        "one_of_values" => {
            let values = arguments[0].as_array().expect("values").iter();
            text_of(one_of_values(values.map(|one| one.as_str().map_or(Value::Repeated, |one| Value::One(one.into())))))
        }
        "one_of_lines" => text_of(one_of_lines(&texts(0).collect::<Vec<&str>>())),
        "is_like" => json!(entries::is_like(text(0), text(1))),
        "entries_text" => {
            let pairs = arguments[0].as_array().expect("entries").iter();
            let pairs = pairs.map(|one| Ok::<_, NeedsPython>((one[0].as_str().unwrap(), one[1].as_str().unwrap())));
            json!(entries::entries_text(pairs)?)
        }
        "encode_key" => json!(keys::encode_key(&texts(0).collect::<Vec<&str>>())),
        other => panic!("no part is named {other}"),
    })
}

fn matched(templates: &Json, path: &str) -> Json {
    let templates = templates.as_array().expect("templates").iter();
    let owned = templates.map(|one| (one[0].as_i64().unwrap() as i32, one[1].as_str().unwrap()));
    let tree = PathTree::new(owned);
    let matched = tree.match_path(path);
    let found = matched.paths.found().iter().map(|(owner, index)| json!([owner, tree.template(*index)]));
    json!([found.collect::<Vec<Json>>(), matched.paths.surely()])
}

fn rules(fields: &Json) -> AddressRules {
    let usual = AddressRules::default();
    let number = |name: &str| fields[name].as_u64();
    AddressRules {
        header: fields["header"].as_str().unwrap_or("").to_owned(),
        trusted: networks(&fields["trusted"]),
        trust_unix: fields["trust_unix"].as_bool().unwrap_or(false),
        hops: number("hops").unwrap_or(0) as usize,
        ipv4_prefix: number("ipv4_prefix").map_or(usual.ipv4_prefix, |prefix| prefix as u8),
        ipv6_prefix: number("ipv6_prefix").map_or(usual.ipv6_prefix, |prefix| prefix as u8),
    }
}

fn networks(texts: &Json) -> Vec<Network> {
    let texts = texts.as_array().into_iter().flatten();
    let mut networks = texts.map(|text| network(text.as_str().unwrap())).collect();
    client_address::tidy(&mut networks);
    networks
}

/// A network as the policy's file has it; IPv4 in IPv6 is IPv4.
fn network(text: &str) -> Network {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address: IpAddr = address.parse().expect("an address");
    let prefix = prefix.map(|prefix| prefix.parse::<u32>().expect("a prefix"));
    match (address, address.to_canonical()) {
        (IpAddr::V6(_), IpAddr::V4(own)) => of_ipv4(own.to_bits(), prefix.map_or(32, |prefix| prefix - 96)),
        (IpAddr::V4(own), _) => of_ipv4(own.to_bits(), prefix.unwrap_or(32)),
        (IpAddr::V6(own), _) => {
            let free = 128 - prefix.unwrap_or(128);
            Network {
                length: 16,
                first: own.to_bits(),
                mask: !1_u128.checked_shl(free).map_or(u128::MAX, |bit| bit - 1),
            }
        }
    }
}

fn of_ipv4(first: u32, prefix: u32) -> Network {
    let mask = !1_u32.checked_shl(32 - prefix).map_or(u32::MAX, |bit| bit - 1);
    Network { length: 4, first: first.into(), mask: mask.into() }
}

fn packed(hexadecimal: &str) -> IpAddr {
    if hexadecimal.len() == 8 {
        IpAddr::V4(u32::from_str_radix(hexadecimal, 16).unwrap().into())
    } else {
        IpAddr::V6(u128::from_str_radix(hexadecimal, 16).unwrap().into())
    }
}

fn hexadecimal(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("{:08x}", address.to_bits()),
        IpAddr::V6(address) => format!("{:032x}", address.to_bits()),
    }
}

/// Each value as text, null for one that is repeated.
fn values_json(values: Values<'_>) -> Json {
    values.into_iter().map(text_of).collect()
}

fn text_of(value: Value<'_>) -> Json {
    match value {
        Value::Missing => json!(""),
        Value::One(text) => json!(text),
        Value::Repeated => Json::Null,
    }
}
