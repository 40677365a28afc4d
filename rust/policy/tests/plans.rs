//! The caches of a resolver stay bounded, whatever requests clients make up.

#![allow(clippy::expect_used)] // a test says so when it fails

use std::cell::Cell;

use headgate_policy::compiled::{ANY_TIER, Conditions, Policy, Rule, Ruleset, TierLimits};
use headgate_policy::identity::Combination;
use headgate_policy::resolver::Resolver;
use headgate_policy::selection::Bind;
use headgate_policy::subject::{Name, Sent, Subject};
use headgate_policy::value::NeedsPython;

const HOSTS: usize = 12;

struct Request {
    host: String,
    /// The headers that it has, as bits by their numbers.
    headers: usize,
}

impl Subject for Request {
    type Error = NeedsPython;

    fn method(&self) -> Result<&str, NeedsPython> {
        Ok("GET")
    }

    fn path(&self) -> Result<&str, NeedsPython> {
        Ok("/")
    }

    fn host(&self) -> Result<&str, NeedsPython> {
        Ok(&self.host)
    }

    fn client_ip(&self) -> Result<&str, NeedsPython> {
        Ok("203.0.113.9")
    }

    fn endpoint(&self) -> Result<&str, NeedsPython> {
        Ok("")
    }

    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, NeedsPython> {
        Ok((self.headers >> name.number & 1 == 1).then_some(Sent::One("sent")))
    }

    fn attribute(&self, _: &str) -> Result<&str, NeedsPython> {
        Ok("")
    }
}

/// Counts how often limits are bound: once for each cached selection.
struct Counting(Cell<usize>);

impl Bind for Counting {
    type Limits = ();
    type Error = NeedsPython;

    fn bind(&self, _: &[usize], _: &str) -> Result<(), NeedsPython> {
        self.0.set(self.0.get() + 1);
        Ok(())
    }
}

/// A rule for each header, of requests that have it, and one for all requests.
fn policy_of_headers() -> Policy {
    let header = |number: usize| Name { text: format!("x-{number}").into(), number };
    let mut policy = policy();
    policy.headers = (0..HOSTS).map(|number| header(number).text).collect();
    for (number, rule) in policy.rules.iter_mut().enumerate() {
        let headers = (number < HOSTS).then(|| (header(number), None));
        rule.conditions = Conditions { headers: headers.into_iter().collect(), ..Conditions::default() };
    }
    policy
}

fn host(number: usize) -> String {
    format!("h{number}.example")
}

/// A rule for each host, and one for all below `.example.com`; each counts all requests together.
fn policy() -> Policy {
    let rule = |number| Rule {
        name: host(number).into(),
        conditions: Conditions { hosts: vec![host(number).into()], ..Conditions::default() },
        key: Combination { members: vec![], refuses_missing: false, refuses_repeated: false },
        limits: vec![TierLimits { tier: ANY_TIER.into(), units: vec![0] }],
        costs: vec![1],
        default: false,
        shadow: false,
    };
    let below = Rule {
        conditions: Conditions { parent_hosts: vec![".example.com".into()], ..Conditions::default() },
        ..rule(HOSTS)
    };
    Policy {
        headers: vec![],
        units: vec!["requests".into()],
        tiers: None,
        rules: (0..HOSTS).map(rule).chain([below]).collect(),
        exempt: vec![],
        rulesets: vec![Ruleset { name: "default".into(), has: vec![true; HOSTS + 1] }],
    }
}

#[test]
fn a_flood_of_lists_of_hosts_leaves_room_for_the_plans_of_each_host() {
    let (resolver, bind) = (Resolver::new(policy()), Counting(Cell::new(0)));
    let resolve =
        |host: String| resolver.resolve(&Request { host, headers: 0 }, 0, &bind, |_| Ok(())).expect("what applies");
    for several in 1..1_usize << HOSTS {
        let hosts: Vec<String> = (0..HOSTS).filter(|number| several >> number & 1 == 1).map(host).collect();
        if hosts.len() > 1 {
            resolve(hosts.join(","));
        }
    }
    let before = bind.0.get();
    for _ in 0..3 {
        (0..HOSTS).for_each(|number| resolve(host(number)));
    }
    assert_eq!(bind.0.get() - before, HOSTS);
}

#[test]
fn a_host_is_below_another_however_many_dots_it_has() {
    let (resolver, bind) = (Resolver::new(policy()), Counting(Cell::new(0)));
    let rules = |host: String| {
        resolver
            .resolve(&Request { host, headers: 0 }, 0, &bind, |resolved| Ok(resolved.selection.rules.to_vec()))
            .expect("rules")
    };
    assert_eq!(rules("a.example.com".into()), [HOSTS]);
    assert_eq!(rules(format!("{}.example.com", ".a".repeat(32_000))), [HOSTS]);
    assert_eq!(rules("example.com".into()), []);
    assert_eq!(rules("a.example.com.evil".into()), []);
}

#[test]
fn a_flood_of_headers_neither_grows_the_caches_nor_evicts_what_is_used_again_and_again() {
    let (resolver, bind) = (Resolver::new(policy_of_headers()), Counting(Cell::new(0)));
    let resolve = |headers: usize| {
        let rules = |request: &Request| {
            resolver.resolve(request, 0, &bind, |resolved| Ok(resolved.selection.rules.len())).expect("rules")
        };
        assert_eq!(rules(&Request { host: String::new(), headers }), 1 + headers.count_ones() as usize);
    };
    let all = 1 << HOSTS;
    (1..all - 1).for_each(resolve); // takes all permanent places
    resolve(all - 1);
    for headers in 1..all - 1 {
        resolve(headers);
        if headers % 100 == 0 {
            let before = bind.0.get();
            resolve(all - 1);
            assert_eq!(bind.0.get(), before, "what is met again and again was made anew");
        }
    }
    let mut count = 0;
    let counted: Result<(), ()> = resolver.visit_limits(|()| {
        count += 1;
        Ok(())
    });
    assert!(counted.is_ok() && count <= 2048 + 2 * 512, "{count} are kept");
}
