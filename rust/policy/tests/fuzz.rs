//! The parsers under text that no client sends by accident: nothing panics, and the properties of every answer hold.
//!
//! Inputs are made of the seeds in `seeds/`, one a line with `\` escapes, cut, joined and changed by a generator whose
//! failures repeat. `HEADGATE_FUZZ` is how many inputs each parser reads.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // a test says so when it fails

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use headgate_core::hash::Seed;
use headgate_policy::client_address::{AddressRules, address_text, forwarded_for, is_in, parse_address};
use headgate_policy::path_forms::{Forms, forms_of};
use headgate_policy::path_templates::{Segment, template_segments};
use headgate_policy::path_tree::PathTree;
use headgate_policy::sent_values::{SentName, cookie_values, query_values};
use headgate_policy::text::{strip, unquote};
use headgate_policy::value::{Value, one_of_values};
use headgate_policy::{key_parts, keys};

/// A small generator (xorshift64*), so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound.max(1)
    }

    fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Texts that are put between, or in place of, parts of seeds.
const SIGNS: [&str; 40] = [
    "/", "//", ".", "..", ";", "\\", "#", "?", "%", "%2f", "%25", "%00", "\0", "\t", "\n", "\"", "\\\"", ",", "=", "&",
    "+", ":", "::", "[", "]", " ", "\u{1c}", "\u{3000}", "é", "\u{212a}", "😀", "%C3", "%E2%82", "*", "{", "}", "|",
    "eyJ", "for=", "0",
];

/// Inputs made of the seeds of a file.
struct Inputs {
    seeds: Vec<Vec<char>>,
    random: Random,
}

impl Inputs {
    fn of(file: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds").join(file);
        let text = std::fs::read_to_string(path).expect("seeds");
        let seeds = text.lines().map(|line| serde_json::from_str::<String>(line).expect("a seed").chars().collect());
        Self { seeds: seeds.collect(), random: Random(0x5EED) }
    }

    /// Each seed as it is, then changed ones.
    fn each(mut self, mut check: impl FnMut(&str)) {
        let count = std::env::var("HEADGATE_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000);
        for seed in &self.seeds {
            check(&seed.iter().collect::<String>());
        }
        for _ in 0..count {
            check(&self.changed());
        }
    }

    fn changed(&mut self) -> String {
        let Self { seeds, random } = self;
        let mut text = random.one_of(seeds).clone();
        for _ in 0..1 + random.below(4) {
            let place = random.below(text.len() + 1);
            match random.below(6) {
                0 => text.truncate(place),
                1 => drop(text.drain(place.min(text.len())..(place + 2).min(text.len()))),
                2 => {
                    let other = random.one_of(seeds);
                    let from = random.below(other.len() + 1);
                    text.splice(place..place, other[from..].iter().copied());
                }
                3 if text.len() < 200 => {
                    let again = text[..place].to_vec();
                    text.splice(place..place, again);
                }
                _ => {
                    let sign: Vec<char> = random.one_of(&SIGNS).chars().collect();
                    text.splice(place..place, sign);
                }
            }
        }
        text.into_iter().collect()
    }
}

#[test]
fn every_path_has_few_forms_and_the_usual_one_has_no_detours() {
    Inputs::of("paths.txt").each(|path| {
        let plain = matches!(forms_of(path), Forms::One(Cow::Borrowed(_)));
        let forms = forms_of(path).lists();
        assert!(forms.len() <= 64 && (!plain || forms.len() == 1), "{path:?}");
        if let Some(usual) = forms.first() {
            let detour = |segment: &String| ["", ".", ".."].contains(&segment.as_str());
            assert!(!usual.iter().any(detour), "{path:?} {usual:?}");
            // No segment that a server may have decoded is lost: written again, it is the same path.
            let written = usual.join("/").replace('%', "%25").replace('?', "%3F").replace('#', "%23");
            assert_eq!(forms_of(&format!("/{written}")).lists().first(), Some(usual), "{path:?}");
        }
    });
}

#[test]
fn a_tree_finds_what_its_templates_match_one_by_one() {
    let mut templates = vec![
        "/",
        "/**",
        "/api/**",
        "/api/login",
        "/api/{x}/login",
        "/{a}/b",
        "/{a}/{b}/c",
        "/health",
        "/caf%C3%A9/{x}/**",
        "/a%2Fb",
    ];
    // So many ways to be partly literal that no states are made for most of them.
    let deep: Vec<String> = (0..14)
        .map(|literal| {
            (0..14).map(|place| if place == literal { "/a".into() } else { format!("/{{x{place}}}") }).collect()
        })
        .collect();
    templates.extend(deep.iter().map(String::as_str));
    let tree = PathTree::new(templates.iter().enumerate().map(|(index, template)| (index as i32 % 20, *template)));
    let read: Vec<Vec<Segment>> = templates.iter().map(|template| template_segments(template)).collect();
    let mut unknown = 0;
    let mut check = |path: &str| {
        let matched = tree.match_path(path);
        unknown += usize::from(matched.number.is_none());
        assert!(matched.number.is_none_or(|number| (number as usize) < tree.count()));
        let forms = forms_of(path).lists();
        let finds = |form: &Vec<String>| -> BTreeSet<i32> {
            let fitting = read.iter().enumerate().filter(|(_, segments)| fits(segments, form));
            fitting.map(|(index, _)| index as i32 % 20).collect()
        };
        let by_form: Vec<BTreeSet<i32>> = forms.iter().map(finds).collect();
        let found: BTreeMap<i32, u32> = matched.paths.found().iter().copied().collect();
        if path.chars().count() > 4096 {
            return;
        }
        let any: BTreeSet<i32> = by_form.iter().flatten().copied().collect();
        assert_eq!(found.keys().copied().collect::<BTreeSet<i32>>(), any, "{path:?}");
        let all = any.iter().copied().filter(|owner| by_form.iter().all(|form| form.contains(owner)));
        assert_eq!(matched.paths.surely(), all.collect::<Vec<i32>>(), "{path:?}");
        for (owner, index) in found {
            assert_eq!(index as i32 % 20, owner);
            assert!(forms.iter().any(|form| fits(&read[index as usize], form)), "{path:?}");
        }
    };
    Inputs::of("paths.txt").each(&mut check);
    let mut random = Random(7);
    for _ in 0..2_000 {
        let path: String = (0..14).map(|_| *random.one_of(&["/a", "/b", "/c"])).collect();
        check(&path);
    }
    assert!(unknown > 1_000, "no path left the states that were made in advance");
}

fn fits(segments: &[Segment], form: &[String]) -> bool {
    match (segments, form) {
        ([], []) | ([Segment::Below, ..], _) => true,
        ([Segment::Any, rest @ ..], [_, following @ ..]) => fits(rest, following),
        ([Segment::Literal(text), rest @ ..], [first, following @ ..]) => text == first && fits(rest, following),
        _ => false,
    }
}

#[test]
fn an_address_has_one_form_and_is_believed_only_from_proxies() {
    let network = headgate_policy::client_address::Network { length: 4, first: 10 << 24, mask: 0xff00_0000 };
    let behind = |header: &str| AddressRules {
        header: header.to_owned(),
        trusted: vec![network],
        ipv6_prefix: 128,
        ..AddressRules::default()
    };
    let (list, forwarded) = (behind("x-forwarded-for"), behind("forwarded"));
    Inputs::of("addresses.txt").each(|text| {
        if let Some(address) = parse_address(text) {
            assert_eq!(parse_address(&address_text(address)), Some(address), "{text:?}");
            assert_eq!(list.client(text, ""), address_text(address), "{text:?}");
        }
        for rules in [&list, &forwarded] {
            assert_eq!(rules.client("203.0.113.9", text), "203.0.113.9", "a stranger is believed: {text:?}");
            let seen = rules.address("10.0.0.1", text).expect("at least the peer");
            let named: Vec<Cow<'_, str>> = if rules.header == "forwarded" {
                forwarded_for(text)
            } else {
                text.split(',').map(Cow::from).collect()
            };
            let vouched =
                named.iter().rev().filter_map(|node| parse_address(node)).find(|own| !is_in(*own, &[network]));
            assert!(is_in(seen, &[network]) || Some(seen) == vouched, "{text:?}");
        }
    });
}

#[test]
fn spellings_are_brought_into_one_that_stays() {
    let seed = Seed::new([7; 16]);
    Inputs::of("credentials.txt").each(|text| {
        let token = key_parts::plain_token(text).into_owned();
        assert_eq!(key_parts::plain_token(token.as_str()), token, "{text:?}");
        if let Ok(spelled) = key_parts::one_spelling(text) {
            assert_eq!(key_parts::one_spelling(spelled.as_ref()), Ok(spelled.clone()), "{text:?}");
        } else {
            assert!(!text.is_ascii());
        }
        if let Ok(hosts) = key_parts::hosts_of(text) {
            assert!(!hosts.is_empty() && hosts.len() <= 17);
            assert_eq!(hosts.iter().collect::<BTreeSet<_>>().len(), hosts.len());
        }
        let part = key_parts::bounded(text);
        assert!(part.chars().count() <= key_parts::LONGEST_VALUE);
        let parts = ["a", part.as_ref()];
        assert_eq!(keys::hash_key(&parts, &seed).is_some(), !part.is_empty());
        let written = keys::encode_key(&parts);
        assert_eq!(written.is_some(), !part.is_empty());
        if let Some(written) = written {
            let read: Vec<Cow<'_, str>> = written.split('|').map(unquote).collect();
            assert_eq!(read, parts, "{text:?}");
            assert!(!written.contains(['{', '}', ' ', '\n', '\0']));
        }
    });
}

#[test]
fn any_value_that_is_sent_for_a_name_is_read() {
    let names = ["s", "session", "my_id", "k"].map(|name| SentName::new(name).expect("a name of ASCII"));
    Inputs::of("sent.txt").each(|text| {
        for name in &names {
            let halves = text.split_at(text.char_indices().nth(text.chars().count() / 2).map_or(0, |(place, _)| place));
            for values in
                [cookie_values(&[text], name), cookie_values(&[halves.0, halves.1], name), query_values(text, name)]
            {
                if let Value::One(value) = one_of_values(values) {
                    assert_eq!(strip(&value), value);
                    assert!(!value.is_empty());
                }
            }
        }
        // A value that is hidden behind padding is repeated, never missing or another value.
        let padded = format!("{};s=1", ";".repeat(513));
        assert_eq!(one_of_values(cookie_values(&[text, &padded], &names[0])), Value::Repeated);
        let padded = format!("{}&s=1&{text}", "&".repeat(1000));
        assert_eq!(one_of_values(query_values(&padded, &names[0])), Value::Repeated);
    });
}
