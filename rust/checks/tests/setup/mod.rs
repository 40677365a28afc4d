//! Checks on a table whose clock and failures a test decides.

#![allow(dead_code, clippy::expect_used, clippy::panic)] // each file uses some of it; a test says so when it fails

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};

use headgate_answers::NamedLimit;
use headgate_answers::ratelimit::Form;
use headgate_checks::bound::{RuleLimit, RuleLimits};
use headgate_checks::checks::{Checks, Unit};
use headgate_checks::figures::Tally;
use headgate_checks::late_checks::{LateChecks, Owner};
use headgate_checks::queue::Queue;
use headgate_checks::table::{self, Failed};
use headgate_core::hash::Seed;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::table::Table;
use headgate_core::table::answer::{Answer, Check, Mode, OnFull};
use headgate_policy::client_address::{AddressRules, Network};
use headgate_policy::compiled::{ANY_TIER, Conditions, Policy, Rule, Ruleset, TierLimits};
use headgate_policy::identity::{AddressSource, Combination, Identity, Source};
use headgate_policy::subject::Name;
use headgate_server::decide::{self, Decide, Question, Reply};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

pub const NOW_US: i64 = 1_800_000_000_000_000;
const HOUR_US: i64 = 3_600_000_000;
/// As many as no number of requests in a test.
pub const NEVER_FAILS: usize = usize::MAX;

/// A table that counts its queries, and fails from one of them on.
pub struct TestTable {
    table: Table<ProcessStorage>,
    now_us: AtomicI64,
    queries: AtomicUsize,
    fails_at: AtomicUsize,
}

impl TestTable {
    /// How many queries it received.
    pub fn queries(&self) -> usize {
        self.queries.load(SeqCst)
    }

    pub fn fail_at(&self, question: usize) {
        self.fails_at.store(question, SeqCst);
    }

    pub fn advance(&self, by_us: i64) {
        self.now_us.fetch_add(by_us, SeqCst);
    }
}

/// A table that checks and a test share.
pub struct SharedTable(Arc<TestTable>);

impl table::Table for SharedTable {
    fn seed(&self) -> &Seed {
        self.0.table.seed()
    }

    fn now_us(&self) -> Result<i64, Failed> {
        Ok(self.0.now_us.load(SeqCst))
    }

    fn fits(&self, limits: &[Arc<Registered>]) -> bool {
        !limits.is_empty()
    }

    fn decide(&self, checks: &[Check<'_>], now_us: i64) -> Result<Answer, Failed> {
        if self.0.queries.fetch_add(1, SeqCst) >= self.0.fails_at.load(SeqCst) {
            return Err(Failed);
        }
        self.0.table.apply(checks, now_us, Mode { commit: true, max_delay_us: None }).map_err(|_| Failed)
    }
}

/// Checks of a test, and the table that they query.
pub struct TestChecks {
    pub table: Arc<TestTable>,
    pub checks: Checks<SharedTable>,
}

/// Checks on a table.
pub fn checks_on_table(tally: &Tally) -> TestChecks {
    let bounds = Bounds { max_keys: 1000, max_log_blocks: 1000, max_holds: 1000, on_full: OnFull::Refuse };
    let table = Table::new([7; 16], ProcessStorage::new(bounds));
    let (policy, limits, units) = parts(|name, limit| {
        let registered = table.register(Definition { scope: name, text: name, limit }, NOW_US);
        registered.expect("a sound table").expect("room for a limit")
    });
    let table = Arc::new(TestTable {
        table,
        now_us: AtomicI64::new(NOW_US),
        queries: AtomicUsize::new(0),
        fails_at: AtomicUsize::new(NEVER_FAILS),
    });
    let checks = Checks::new(policy, limits, units, SharedTable(Arc::clone(&table)), tally);
    TestChecks { table, checks }
}

/// Represents limits by the places of their rules, and their tier.
pub struct Places;

impl Owner for Places {
    type Choice = String;

    fn choice(&self, rules: &[usize], tier: &str) -> String {
        format!("{rules:?} {tier}")
    }
}

/// Checks by the same policy on a store that answers later.
pub struct LateTestChecks(LateChecks<Places>);

pub fn late(tally: &Tally, queue: Arc<Queue<String>>) -> LateTestChecks {
    let (policy, limits, units) = parts(|_, _| ());
    LateTestChecks(LateChecks::new(policy, limits, units, Places, queue, tally))
}

impl LateTestChecks {
    /// Check as a gateway does.
    pub fn forwarded(&self, headers: &HeaderMap) -> decide::Answer {
        decide(&self.0, Question::Forwarded { ruleset: "default", path: "/", bare: false }, headers)
    }

    /// Check with a body.
    pub fn described(&self, body: &[u8]) -> decide::Answer {
        self.described_in_pieces(body).at_once()
    }

    /// Check with a body, of which a long list is decided in pieces.
    pub fn described_in_pieces(&self, body: &[u8]) -> decide::Answer {
        decide(&self.0, Question::Described { body: &body.to_vec().into() }, &HeaderMap::new())
    }
}

fn decide(decider: &impl Decide, question: Question<'_>, headers: &HeaderMap) -> decide::Answer {
    decider.decide(&decide::Check { question, method: &Method::GET, headers, peer: "127.0.0.1" })
}

/// Three requests an hour for each address, behind proxies of 127.0.0.0/8, and for each user below /api two, of which
/// a request that names none is refused; one an hour of all below /slow, which may wait; and a request in flight below
/// /held. The ruleset `some` has the first alone.
fn parts<L>(mut register: impl FnMut(&str, Limit) -> L) -> (Policy, Vec<RuleLimits<L>>, Vec<Unit>) {
    let header = |number, text: &str| Name { text: text.into(), number };
    let rules = AddressRules {
        header: "x-forwarded-for".to_owned(),
        trusted: vec![Network { length: 4, first: 127 << 24, mask: 0xff00_0000 }],
        trust_unix: false,
        hops: 0,
        ipv4_prefix: 32,
        ipv6_prefix: 64,
    };
    let address = Source::Address(AddressSource { rules, header: Some(header(0, "x-forwarded-for")) });
    let user = Source::Header { header: header(1, "x-user"), secret: false };
    let identity = |name: &str, source| vec![Identity { name: name.into(), source }];
    let all = [
        ("ip", identity("ip", address), "", Algorithm::FixedWindow, 3),
        ("user", identity("user", user), "/api/**", Algorithm::FixedWindow, 2),
        ("slow", vec![], "/slow/**", Algorithm::FixedWindow, 1),
        ("held", vec![], "/held/**", Algorithm::Concurrent, 1),
    ];
    let (mut rules, mut rule_limits) = (Vec::new(), Vec::new());
    for (name, members, path, algorithm, quota) in all {
        let paths = if path.is_empty() { vec![] } else { vec![path.into()] };
        rules.push(Rule {
            name: name.into(),
            conditions: Conditions { paths, ..Conditions::default() },
            key: Combination { members, refuses_missing: name == "user", refuses_repeated: false },
            limits: vec![TierLimits { tier: ANY_TIER.into(), units: vec![0] }],
            costs: vec![1, 0],
            default: false,
            shadow: false,
        });
        let in_flight = algorithm == Algorithm::Concurrent;
        let period_us = if in_flight { 1 } else { HOUR_US };
        let limit = Limit::new(algorithm, 1, quota, period_us, 0).expect("a limit");
        let form = Form {
            start: format!("\"{name}\";r=").into(),
            window_us: period_us,
            quota,
            in_flight,
            on_the_clock: true,
            shadow: false,
        };
        let named = NamedLimit {
            form,
            name: name.into(),
            rule: name.into(),
            text: format!("{quota}/hour fixed").into(),
            unit: "requests".into(),
        };
        let limit = register(name, limit);
        let policy_item = format!("\"{name}\";q={quota};w=3600").into();
        let limits = Some(vec![RuleLimit { limit, unit: 0, named, policy_item }]);
        rule_limits.push(RuleLimits { waits: name == "slow", tiers: vec![(ANY_TIER.into(), limits)] });
    }
    let policy = Policy {
        headers: vec!["x-forwarded-for".into(), "x-user".into()],
        units: vec!["requests".into(), "usd".into()],
        tiers: None,
        rules,
        exempt: vec![Conditions { paths: vec!["/health".into()], ..Conditions::default() }],
        rulesets: vec![
            Ruleset { name: "default".into(), has: vec![true; 4] },
            Ruleset { name: "some".into(), has: vec![true, false, false, false] },
        ],
    };
    let units = [("requests", false), ("usd", true)].map(|(name, is_money)| Unit { name: name.into(), is_money });
    (policy, rule_limits, units.into())
}

impl TestChecks {
    /// Check as a gateway does; None where Python is to answer.
    pub fn forwarded(&self, ruleset: &str, bare: bool, headers: &HeaderMap) -> Option<Reply> {
        let question = Question::Forwarded { ruleset, path: "/", bare };
        self.decide(question, headers)
    }

    /// Check with a body; None where Python is to answer.
    pub fn described(&self, body: &[u8]) -> Option<Reply> {
        self.decide(Question::Described { body: &body.to_vec().into() }, &HeaderMap::new())
    }

    fn decide(&self, question: Question<'_>, headers: &HeaderMap) -> Option<Reply> {
        match decide(&self.checks, question, headers).at_once() {
            decide::Answer::Reply(reply) => Some(reply),
            decide::Answer::Pass | decide::Answer::Later(_) | decide::Answer::InPieces(_) => None,
        }
    }
}

/// Header fields.
pub fn fields(fields: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
    }
    map
}

/// The value of a field of a reply.
pub fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    reply.fields.iter().find(|(field, _)| field == name).and_then(|(_, value)| value.to_str().ok())
}
