//! A gate as a server in Rust has it: a policy, a table and requests, without Python.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

use std::convert::Infallible;
use std::thread;

use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::DamagedState;
use headgate_core::shard::registered::Definition;
use headgate_core::table::Table;
use headgate_core::table::answer::{Mode, OnFull};
use headgate_policy::client_address::AddressRules;
use headgate_policy::compiled::{ANY_TIER, Conditions, Policy, Rule, Ruleset, TierLimits, Tiers};
use headgate_policy::costs::Cost;
use headgate_policy::gate::{Decision, Gate, RuleLimit};
use headgate_policy::identity::{AddressSource, Combination, Identity, Source};
use headgate_policy::subject::{Name, Sent, Subject};
use headgate_policy::value::NeedsPython;

const NOW_US: i64 = 1_800_000_000_000_000;
const HIT: Mode = Mode { commit: true, max_delay_us: None };
const PEEK: Mode = Mode { commit: false, max_delay_us: None };

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

/// A request as a server has it.
#[derive(Clone, Default)]
struct Request {
    path: &'static str,
    client_ip: String,
    headers: Vec<(&'static str, &'static str)>,
}

impl Subject for Request {
    type Error = Failed;

    fn method(&self) -> Result<&str, Failed> {
        Ok("GET")
    }

    fn path(&self) -> Result<&str, Failed> {
        Ok(self.path)
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

    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, Failed> {
        let found = self.headers.iter().find(|(own, _)| *own == &*name.text);
        Ok(found.map(|(_, value)| Sent::One(value)))
    }

    fn attribute(&self, _: &str) -> Result<&str, Failed> {
        Ok("")
    }
}

fn header(number: usize, text: &str) -> Name {
    Name { text: text.into(), number }
}

fn rule(name: &str, members: Vec<Identity>, tiers: &[&str], paths: &[&str]) -> Rule {
    let limits = tiers.iter().map(|tier| TierLimits { tier: (*tier).into(), units: vec![0] });
    Rule {
        name: name.into(),
        conditions: Conditions { paths: paths.iter().map(|path| (*path).into()).collect(), ..Conditions::default() },
        key: Combination { members, refuses_missing: name == "user", refuses_repeated: false },
        limits: limits.collect(),
        costs: vec![1],
        default: false,
        shadow: false,
    }
}

/// A rule of one request in flight, for all together.
fn places() -> Gate<ProcessStorage> {
    let policy = Policy {
        headers: vec![],
        units: vec!["requests".into()],
        tiers: None,
        rules: vec![rule("places", vec![], &[ANY_TIER], &[])],
        exempt: vec![],
        rulesets: vec![Ruleset { name: "default".into(), has: vec![true] }],
    };
    let bounds = Bounds { max_keys: 1000, max_log_blocks: 1000, max_holds: 1000, on_full: OnFull::Refuse };
    let table = Table::new([7; 16], ProcessStorage::new(bounds));
    let limit = Limit::new(Algorithm::Concurrent, 1, 1, 1, 0).expect("a limit");
    let registered = table.register(Definition { scope: "places", text: "places", limit }, NOW_US);
    let limit = RuleLimit { limit: registered.expect("a sound table").expect("room for a limit"), unit: 0 };
    Gate::new(policy, vec![vec![("".into(), vec![limit])]], table)
}

/// Two requests an hour by address everywhere; by user below /api, two for any tier and five for `pro`.
fn gate() -> Gate<ProcessStorage> {
    let rules = AddressRules {
        header: String::new(),
        trusted: Vec::new(),
        trust_unix: false,
        hops: 0,
        ipv4_prefix: 32,
        ipv6_prefix: 64,
    };
    let ip = Identity { name: "ip".into(), source: Source::Address(AddressSource { rules, header: None }) };
    let user = |number, text| Source::Header { header: header(number, text), secret: false };
    let policy = Policy {
        headers: vec!["x-user".into(), "x-tier".into()],
        units: vec!["requests".into()],
        tiers: Some(Tiers { source: Identity { name: "tier".into(), source: user(1, "x-tier") }, map: None }),
        rules: vec![
            rule("ip", vec![ip], &[ANY_TIER], &[]),
            rule("user", vec![Identity { name: "user".into(), source: user(0, "x-user") }], &["pro", ""], &["/api/**"]),
        ],
        exempt: vec![Conditions { paths: vec!["/health".into()], ..Conditions::default() }],
        rulesets: vec![Ruleset { name: "default".into(), has: vec![true, true] }],
    };
    let bounds = Bounds { max_keys: 1000, max_log_blocks: 1000, max_holds: 1000, on_full: OnFull::Refuse };
    let table = Table::new([7; 16], ProcessStorage::new(bounds));
    let limit = |scope: &str, quota: i64| {
        let limit = Limit::new(Algorithm::FixedWindow, 1, quota, 3_600_000_000, 0).expect("a limit");
        let registered = table.register(Definition { scope, text: scope, limit }, NOW_US);
        vec![RuleLimit { limit: registered.expect("a sound table").expect("room for a limit"), unit: 0 }]
    };
    let limits =
        vec![vec![("".into(), limit("ip", 8))], vec![("pro".into(), limit("user", 5)), ("".into(), limit("user", 2))]];
    Gate::new(policy, limits, table)
}

fn request(path: &'static str, headers: &[(&'static str, &'static str)]) -> Request {
    Request { path, client_ip: "203.0.113.9".to_owned(), headers: headers.to_vec() }
}

fn hit(gate: &Gate<ProcessStorage>, request: &Request) -> (bool, Vec<usize>) {
    match gate.decide(request, Cost::ONE, 0, NOW_US, HIT).expect("an answer") {
        Decision::Free => (true, vec![]),
        Decision::Refused(rules) => (false, rules.into_iter().map(|(rule, _)| rule).collect()),
        Decision::NeverEnds(_) => panic!("no limit counts what is in flight"),
        Decision::Decided(answer, rules) => (answer.allowed, rules),
    }
}

#[test]
fn all_rules_that_match_apply_and_all_are_charged_or_none() {
    let gate = gate();
    let user = request("/api/7?page=1", &[("x-user", "1")]);
    let passed: Vec<bool> = (0..4).map(|_| hit(&gate, &user).0).collect();
    assert_eq!(passed, [true, true, false, false]);
    assert_eq!(hit(&gate, &user).1, [0, 1]);
    // Refused requests took nothing of the address.
    let others: Vec<bool> = (0..7).map(|_| hit(&gate, &request("/", &[])).0).collect();
    assert_eq!(others, [true, true, true, true, true, true, false]);
}

#[test]
fn a_tier_has_limits_of_its_own() {
    let gate = gate();
    let pro = request("/api/7", &[("x-user", "1"), ("x-tier", "pro")]);
    let passed: Vec<bool> = (0..6).map(|_| hit(&gate, &pro).0).collect();
    assert_eq!(passed, [true, true, true, true, true, false]);
}

#[test]
fn a_request_without_an_identity_that_a_rule_insists_on_is_refused_and_charged_nothing() {
    let gate = gate();
    for _ in 0..20 {
        let refused = gate.decide(&request("/api//7", &[]), Cost::ONE, 0, NOW_US, HIT).expect("an answer");
        assert!(matches!(refused, Decision::Refused(rules) if rules == [(0, false), (1, true)]));
    }
    assert_eq!(hit(&gate, &request("/", &[])), (true, vec![0]));
}

#[test]
fn an_exemption_holds_for_paths_that_match_in_every_form() {
    let gate = gate();
    assert_eq!(hit(&gate, &request("/health", &[])), (true, vec![]));
    assert_eq!(hit(&gate, &request("/health/../api/x", &[("x-user", "1")])).1, [0, 1]);
}

#[test]
fn a_peek_changes_nothing_and_a_cost_is_so_many_requests() {
    let gate = gate();
    let decide = |times, mode| {
        gate.decide(&request("/", &[]), Cost { times, amounts: &[] }, 0, NOW_US, mode).expect("an answer")
    };
    for _ in 0..3 {
        assert!(matches!(decide(8, PEEK), Decision::Decided(answer, _) if answer.allowed));
    }
    assert!(matches!(decide(9, HIT), Decision::Decided(answer, _) if !answer.allowed));
    assert!(matches!(decide(8, HIT), Decision::Decided(answer, _) if answer.allowed));
    assert!(matches!(decide(1, HIT), Decision::Decided(answer, _) if !answer.allowed));
}

#[test]
fn limits_in_flight_are_reported_and_never_charged_without_a_hold() {
    let gate = places();
    let decide = |mode| gate.decide(&request("/", &[]), Cost::ONE, 0, NOW_US, mode).expect("an answer");
    for _ in 0..3 {
        assert!(matches!(decide(HIT), Decision::NeverEnds(rules) if rules == [0]));
        assert!(matches!(decide(PEEK), Decision::Decided(answer, _) if answer.allowed));
    }
}

#[test]
fn exactly_the_limit_is_admitted_when_many_threads_use_one_new_gate() {
    for _ in 0..50 {
        let gate = gate();
        let user = request("/api/7", &[("x-user", "1"), ("x-tier", "pro")]);
        let passed: usize = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..3).filter(|_| hit(&gate, &user).0).count())).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
        });
        assert_eq!(passed, 5);
    }
}
