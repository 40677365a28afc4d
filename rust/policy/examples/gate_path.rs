//! Decisions of a gate of one kind, for counting the instructions that they take: `gate_path ten_rules 20000`.

#![allow(clippy::expect_used, clippy::panic)] // a tool of the benchmarks, not part of the gate

use std::convert::Infallible;

use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::DamagedState;
use headgate_core::shard::registered::Definition;
use headgate_core::table::Table;
use headgate_core::table::answer::{Mode, OnFull};
use headgate_policy::client_address::AddressRules;
use headgate_policy::compiled::{ANY_TIER, Conditions, Policy, Rule, Ruleset, TierLimits};
use headgate_policy::costs::Cost;
use headgate_policy::gate::{Decision, Gate, RuleLimit};
use headgate_policy::identity::{AddressSource, Combination, Identity, Source};
use headgate_policy::subject::{Name, Sent, Subject};
use headgate_policy::value::NeedsPython;

const NOW_US: i64 = 1_800_000_000_000_000;
const HIT: Mode = Mode { commit: true, max_delay_us: None };
const DAY_US: i64 = 86_400_000_000;
const HOUR_US: i64 = 3_600_000_000;
const QUOTA: i64 = 1_000_000;
const ADDRESSES: usize = 200;
/// Requests of a run, at the most.
const MADE: usize = 50_000;

/// Why a request was not decided.
#[derive(Debug)]
struct Failed;

impl From<NeedsPython> for Failed {
    fn from(_: NeedsPython) -> Self {
        Self
    }
}

impl From<DamagedState> for Failed {
    fn from(_: DamagedState) -> Self {
        Self
    }
}

impl From<Infallible> for Failed {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

struct Request {
    path: String,
    client_ip: String,
}

impl Subject for Request {
    type Error = Failed;

    fn method(&self) -> Result<&str, Failed> {
        Ok("GET")
    }

    fn path(&self) -> Result<&str, Failed> {
        Ok(&self.path)
    }

    fn host(&self) -> Result<&str, Failed> {
        Ok("")
    }

    fn client_ip(&self) -> Result<&str, Failed> {
        Ok(&self.client_ip)
    }

    fn endpoint(&self) -> Result<&str, Failed> {
        Ok("")
    }

    fn header(&self, _: &Name) -> Result<Option<Sent<'_>>, Failed> {
        Ok(Some(Sent::One("42")))
    }

    fn attribute(&self, _: &str) -> Result<&str, Failed> {
        Ok("")
    }
}

fn rule(name: &str, members: Vec<Identity>, conditions: Conditions) -> Rule {
    Rule {
        name: name.into(),
        conditions,
        key: Combination { members, refuses_missing: false, refuses_repeated: false },
        limits: vec![TierLimits { tier: ANY_TIER.into(), units: vec![0] }],
        costs: vec![1],
        default: false,
        shadow: false,
    }
}

fn of_path(path: String) -> Conditions {
    Conditions { paths: vec![path.into()], ..Conditions::default() }
}

/// So many rules, the last three of which match all requests here: the policy of `benchmarks/gates.py`.
fn gate(rules: usize) -> Gate<ProcessStorage> {
    let address = AddressRules {
        header: String::new(),
        trusted: Vec::new(),
        trust_unix: false,
        hops: 0,
        ipv4_prefix: 32,
        ipv6_prefix: 64,
    };
    let ip = Identity { name: "ip".into(), source: Source::Address(AddressSource { rules: address, header: None }) };
    let header = Name { text: "x-user-id".into(), number: 0 };
    let user = Identity { name: "user".into(), source: Source::Header { header, secret: false } };
    let others = (0..rules - 3)
        .map(|number| rule(&format!("other{number}"), vec![ip.clone()], of_path(format!("/other{number}/**"))));
    let get = Conditions { methods: vec!["GET".into()], ..Conditions::default() };
    let all: Vec<Rule> = others
        .chain([
            rule("ip", vec![ip.clone()], Conditions::default()),
            rule("user", vec![user.clone()], get),
            rule("api", vec![ip.clone(), user], of_path("/api/**".into())),
        ])
        .collect();
    let bounds = Bounds { max_keys: 1_000_000, max_log_blocks: 1000, max_holds: 1, on_full: OnFull::Forget };
    let table = Table::new([7; 16], ProcessStorage::new(bounds));
    let limits = all.iter().map(|rule| {
        let limit = match &*rule.name {
            "user" => Limit::new(Algorithm::TokenBucket, 1, 100_000, 36_000, 1),
            "api" => Limit::new(Algorithm::FixedWindow, 1, QUOTA, DAY_US, 0),
            _ => Limit::new(Algorithm::SlidingWindow, 1, 100_000, HOUR_US, 0),
        };
        let definition = Definition { scope: &rule.name, text: "", limit: limit.expect("a limit") };
        let limit = table.register(definition, NOW_US).expect("a sound table").expect("room for a limit");
        vec![(ANY_TIER.into(), vec![RuleLimit { limit, unit: 0 }])]
    });
    let limits = limits.collect();
    let policy = Policy {
        headers: vec!["x-user-id".into()],
        units: vec!["requests".into()],
        tiers: None,
        rulesets: vec![Ruleset { name: "default".into(), has: vec![true; all.len()] }],
        rules: all,
        exempt: vec![],
    };
    Gate::new(policy, limits, table)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("a kind of decision");
    let decisions: usize = arguments.next().and_then(|count| count.parse().ok()).expect("a number of decisions");
    let gate = gate(if kind == "two_hundred_rules" { 200 } else { 10 });
    let path = |number: usize| match kind.as_str() {
        "ten_rules" | "two_hundred_rules" => format!("/api/items/{}?page=1", 100_000 + number % 500),
        "new_paths" => format!("/api/items/{}?page=1", 100_000 + number),
        "strange_paths" => format!("/api/items/../{}", 100_000 + number),
        _ => panic!("no such kind of decision: {kind}"),
    };
    // As many are made in each run, so that two runs of different length differ by what is decided alone.
    let requests: Vec<Request> = (0..MADE)
        .map(|number| Request { path: path(number), client_ip: format!("203.0.113.{}", number % ADDRESSES) })
        .collect();
    let mut allowed = 0;
    for (number, request) in requests.iter().enumerate().take(decisions) {
        let now_us = NOW_US + number as i64 * 1000;
        match gate.decide(request, Cost::ONE, 0, now_us, HIT).expect("a decision") {
            Decision::Decided(answer, rules) if rules.len() == 3 => allowed += usize::from(answer.allowed),
            other => panic!("three rules decide, not {other:?}"),
        }
    }
    println!("{allowed}");
}
