//! Properties that hold for any request to a gate; the fuzzers of `rust/fuzz` test them, too.

#![allow(clippy::expect_used, clippy::panic)] // it says so when it fails

use std::convert::Infallible;

use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::DamagedState;
use headgate_core::shard::registered::Definition;
use headgate_core::table::Table;
use headgate_core::table::answer::{Answer, Mode, OnFull};
use headgate_policy::client_address::{AddressRules, Network};
use headgate_policy::compiled::{ANY_TIER, Conditions, Policy, Rule, Ruleset, TierLimits, Tiers};
use headgate_policy::costs::Cost;
use headgate_policy::gate::{Decision, Gate, RuleLimit};
use headgate_policy::identity::{AddressSource, Combination, Identity, Source};
use headgate_policy::sent_values::SentName;
use headgate_policy::subject::{Name, Sent, Subject};
use headgate_policy::value::NeedsPython;

const NOW_US: i64 = 1_800_000_000_000_000;
const HOUR_US: i64 = 3_600_000_000;
const HIT: Mode = Mode { commit: true, max_delay_us: None };
const PEEK: Mode = Mode { commit: false, max_delay_us: None };
const HEADERS: [&str; 4] = ["x-forwarded-for", "x-user", "x-tier", "cookie"];
/// The quota of each rule for an hour; the second has more for a tier.
const RULES: [(&str, Algorithm, i64); 4] = [
    ("ip", Algorithm::FixedWindow, 7),
    ("user", Algorithm::SlidingLog, 3),
    ("session", Algorithm::TokenBucket, 4),
    ("host", Algorithm::SlidingWindow, 6),
];
const PRO: i64 = 5;

/// Why a request was not decided.
#[derive(Debug, PartialEq)]
enum Failed {
    LeftToPython,
    Damaged,
}

impl From<NeedsPython> for Failed {
    fn from(_: NeedsPython) -> Self {
        Self::LeftToPython
    }
}

impl From<DamagedState> for Failed {
    fn from(_: DamagedState) -> Self {
        Self::Damaged
    }
}

impl From<Infallible> for Failed {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// A request: lines of its method and path, its client, its host, and then `name: value`.
struct Request {
    line: String,
    client_ip: String,
    host: String,
    headers: Vec<Vec<String>>,
    joined: Vec<String>,
}

impl Request {
    fn read(sent: &[u8]) -> Self {
        let text = String::from_utf8_lossy(sent);
        let mut lines = text.split('\n');
        let mut next = || lines.next().unwrap_or_default().to_owned();
        let (line, client_ip, host) = (next(), next(), next());
        let fields: Vec<(&str, &str)> = lines.take(40).filter_map(|line| line.split_once(": ")).collect();
        let of = |name: &&str| -> Vec<String> {
            fields.iter().filter(|(own, _)| own == name).map(|(_, value)| (*value).to_owned()).collect()
        };
        let headers: Vec<Vec<String>> = HEADERS.iter().map(of).collect();
        let joined = headers.iter().map(|lines| lines.join(", ")).collect();
        Self { line, client_ip, host, headers, joined }
    }
}

impl Subject for Request {
    type Error = Failed;

    fn method(&self) -> Result<&str, Failed> {
        Ok(self.line.split(' ').next().unwrap_or_default())
    }

    fn path(&self) -> Result<&str, Failed> {
        Ok(self.line.split_once(' ').map_or("/", |(_, path)| path))
    }

    fn host(&self) -> Result<&str, Failed> {
        Ok(&self.host)
    }

    fn client_ip(&self) -> Result<&str, Failed> {
        Ok(&self.client_ip)
    }

    fn endpoint(&self) -> Result<&str, Failed> {
        Ok("")
    }

    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, Failed> {
        Ok(match &self.headers[name.number][..] {
            [] => None,
            [line] => Some(Sent::One(line)),
            lines => Some(Sent::Several {
                joined: &self.joined[name.number],
                lines: lines.iter().map(String::as_str).collect(),
            }),
        })
    }

    fn attribute(&self, _: &str) -> Result<&str, Failed> {
        Ok("")
    }
}

fn header(number: usize) -> Name {
    Name { text: HEADERS[number].into(), number }
}

fn named(name: &str, source: Source) -> Identity {
    Identity { name: name.into(), source }
}

/// Limits by the address behind proxies of 10.0.0.0/8, by user below /api and /files, by a cookie or a parameter, and by
/// host and method for what is put.
fn shop() -> Gate<ProcessStorage> {
    let rules = AddressRules {
        header: HEADERS[0].to_owned(),
        trusted: vec![Network { length: 4, first: 10 << 24, mask: 0xff00_0000 }],
        ipv6_prefix: 64,
        ipv4_prefix: 32,
        ..AddressRules::default()
    };
    let sent_name = |name| SentName::new(name).expect("a name of ASCII");
    let ip = named("ip", Source::Address(AddressSource { rules, header: Some(header(0)) }));
    let user = named("user", Source::Header { header: header(1), secret: false });
    let cookie = Source::Cookie { cookie: sent_name("s"), header: header(3), secret: true };
    let parameter = Source::Query { parameter: sent_name("key"), secret: false };
    let session = Source::FirstOf(vec![named("cookie", cookie), named("parameter", parameter), ip.clone()]);
    let any = Conditions::default;
    let below = |paths: &[&str]| Conditions { paths: paths.iter().map(|path| (*path).into()).collect(), ..any() };
    let members = [
        (vec![ip], any()),
        (vec![user], below(&["/api/**", "/files/{name}/{part}"])),
        (vec![named("session", session)], below(&["/api/{number}", "/queue/**"])),
        (
            vec![named("host", Source::Host), named("method", Source::Method)],
            Conditions { methods: vec!["PUT".into()], ..any() },
        ),
    ];
    let bounds = Bounds { max_keys: 100, max_log_blocks: 100, max_holds: 100, on_full: OnFull::Refuse };
    let table = Table::new([7; 16], ProcessStorage::new(bounds));
    let limit = |scope: &str, algorithm, quota| {
        let limit = Limit::new(algorithm, 1_000_000, quota, HOUR_US / 1_000_000, quota).expect("a limit");
        let registered = table.register(Definition { scope, text: scope, limit }, NOW_US);
        vec![RuleLimit { limit: registered.expect("a sound table").expect("room for a limit"), unit: 0 }]
    };
    let (mut compiled, mut limits) = (vec![], vec![]);
    for ((name, algorithm, quota), (members, conditions)) in RULES.into_iter().zip(members) {
        let mut tiers = vec![(ANY_TIER.into(), limit(name, algorithm, quota))];
        if name == "user" {
            tiers.insert(0, ("pro".into(), limit("user of pro", algorithm, PRO)));
        }
        compiled.push(Rule {
            name: name.into(),
            conditions,
            key: Combination { members, refuses_missing: name == "user", refuses_repeated: name == "session" },
            limits: tiers.iter().map(|(tier, _)| TierLimits { tier: Box::clone(tier), units: vec![0] }).collect(),
            costs: vec![1],
            default: false,
            shadow: false,
        });
        limits.push(tiers);
    }
    let tier = Identity { name: "tier".into(), source: Source::Header { header: header(2), secret: false } };
    let policy = Policy {
        headers: HEADERS.iter().map(|name| (*name).into()).collect(),
        units: vec!["requests".into()],
        tiers: Some(Tiers { source: tier, map: None }),
        rules: compiled,
        exempt: vec![below(&["/health"])],
        rulesets: vec![Ruleset { name: "default".into(), has: vec![true; RULES.len()] }],
    };
    Gate::new(policy, limits, table)
}

fn decision_text(decision: &Result<Decision, Failed>) -> String {
    match decision {
        Ok(Decision::Free) => "free".to_owned(),
        Ok(Decision::Refused(rules)) => format!("refused by {rules:?}"),
        Ok(Decision::NeverEnds(_)) => panic!("no limit counts what is in flight"),
        Ok(Decision::Decided(answer, rules)) => format!("{answer:?} of {rules:?}"),
        Err(failed) => format!("{failed:?}"),
    }
}

/// The gate decides one request as before, and admits exactly the limit, at the moment that it gave and no sooner.
pub fn gate(sent: &[u8]) {
    let request = Request::read(sent);
    let (gate, used) = (shop(), shop());
    let decide = |gate: &Gate<ProcessStorage>, now_us, mode| gate.decide(&request, Cost::ONE, 0, now_us, mode);
    // Whatever requests other clients sent before.
    for other in [&b"GET /api/9\n192.0.2.200\nother\nx-user: other\ncookie: s=other"[..], b"GET /health\n192.0.2.200\n"]
    {
        let _ = used.decide(&Request::read(other), Cost::ONE, 0, NOW_US, PEEK);
    }
    let first = decide(&gate, NOW_US, PEEK);
    assert_eq!(decision_text(&first), decision_text(&decide(&gate, NOW_US, PEEK)), "a peek changes something");
    assert_eq!(
        decision_text(&first),
        decision_text(&decide(&used, NOW_US, PEEK)),
        "the requests of others change something"
    );
    assert_ne!(first.as_ref().err(), Some(&Failed::Damaged));
    let Ok(Decision::Decided(answer, rules)) = first else {
        assert_eq!(decision_text(&first), decision_text(&decide(&gate, NOW_US, HIT)), "a hit and a peek differ");
        return;
    };
    assert!(answer.allowed && answer.readings.all().len() == rules.len(), "a fresh gate refuses");
    let quotas = rules.iter().map(|rule| RULES[*rule].2);
    let quota = quotas.clone().zip(&rules).map(|(quota, rule)| match RULES[*rule].0 {
        "user" if request.headers[2].len() == 1 && request.joined[2] == "pro" => PRO,
        _ => quota,
    });
    // Readings are those after the request, which takes one.
    let most = 1 + answer.readings.all().iter().map(|reading| reading.remaining).min().expect("at least one limit");
    if request.headers[2].len() <= 1 {
        assert_eq!(Some(most), quota.min(), "not the least of the limits that apply");
    }
    for _ in 0..most {
        assert!(decided(decide(&gate, NOW_US, HIT)).allowed, "less than the limit");
    }
    let refused = decided(decide(&gate, NOW_US, HIT));
    assert!(!refused.allowed, "more than the limit");
    assert_eq!(
        format!("{refused:?}"),
        format!("{:?}", decided(decide(&gate, NOW_US, HIT))),
        "a refusal changes something"
    );
    let waits = refused.readings.all().iter().map(|reading| reading.retry_after_us);
    let wait_us = waits.max().expect("at least one limit");
    assert!(wait_us > 0);
    assert!(!decided(decide(&gate, NOW_US + wait_us - 1, PEEK)).allowed, "before the moment that it gave");
    assert!(decided(decide(&gate, NOW_US + wait_us, HIT)).allowed, "not at the moment that it gave");
}

fn decided(decision: Result<Decision, Failed>) -> Answer {
    match decision {
        Ok(Decision::Decided(answer, _)) => answer,
        other => panic!("it was decided before, and is now {}", decision_text(&other)),
    }
}
