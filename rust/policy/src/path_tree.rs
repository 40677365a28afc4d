//! Which templates match a path: a tree of their segments, made into an automaton.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::path_forms::{Forms, forms_of};
use crate::path_match::{Found, Matched, PathMatch, together};
use crate::path_templates::{Segment, template_segments};
use crate::plain_path::{LONGEST_PATH, PlainPath, Step};
use crate::text::is_longer;

/// States that are made in advance; paths beyond them are walked node by node.
const MOST_STATES: usize = 4096;
/// Owners that all states made in advance remember together.
const MOST_FOUND: usize = 1 << 18;
/// A step that no state was made for.
const UNMADE: u32 = u32::MAX;

type Nodes = SmallVec<[u32; 2]>;

#[derive(Default)]
struct Node {
    literal: FxHashMap<Box<[u8]>, u32>,
    any: Option<u32>,
    here: Vec<(i32, u32)>,
    below: Vec<(i32, u32)>,
}

/// A position in the tree after some segments, and the templates found on the way.
struct State {
    nodes: Nodes,
    /// The templates that match whatever follows; one that is found later is more literal, and replaces an earlier one.
    found: Found,
    matched: u32,
    /// By segments that are literal in some of the nodes.
    following: FxHashMap<Box<[u8]>, u32>,
    /// After any other segment.
    other: u32,
}

/// Templates by their segments: which of them match a path costs its length, not their number.
///
/// Nothing in it changes once it is made: many threads walk it at once.
pub struct PathTree {
    templates: Vec<String>,
    nodes: Vec<Node>,
    states: Vec<State>,
    matches: Vec<PathMatch>,
    /// The match of a path that has too many forms to be meant: it meets all rules, and no exemption.
    all: u32,
    /// The match of a text that is no path.
    none: u32,
}

impl PathTree {
    /// Let each owner be found by paths that match its template. An owner may have several templates.
    pub fn new<'a>(templates: impl IntoIterator<Item = (i32, &'a str)>) -> Self {
        let mut tree = Self {
            templates: Vec::new(),
            nodes: vec![Node::default()],
            states: Vec::new(),
            matches: Vec::new(),
            all: 0,
            none: 0,
        };
        let mut all = Found::new();
        for (owner, template) in templates {
            let index = u32::try_from(tree.templates.len()).unwrap_or(UNMADE);
            all.entry(owner).or_insert(index);
            tree.add(template, owner, index);
            tree.templates.push(template.to_owned());
        }
        tree.make_states(all);
        tree
    }

    /// The template of an index, as it was given.
    pub fn template(&self, index: u32) -> &str {
        self.templates.get(index as usize).map_or("", String::as_str)
    }

    /// How many matches are known in advance: their numbers are below it.
    pub fn count(&self) -> usize {
        self.matches.len()
    }

    fn add(&mut self, template: &str, owner: i32, index: u32) {
        let mut node = 0;
        for segment in template_segments(template) {
            let next = u32::try_from(self.nodes.len()).unwrap_or(UNMADE);
            let current = &mut self.nodes[node as usize];
            let following = match segment {
                Segment::Below => {
                    current.below.push((owner, index));
                    return;
                }
                Segment::Any => *current.any.get_or_insert(next),
                Segment::Literal(text) => *current.literal.entry(text.into_bytes().into()).or_insert(next),
            };
            if following == next {
                self.nodes.push(Node::default());
            }
            node = following;
        }
        self.nodes[node as usize].here.push((owner, index));
    }

    /// Make the states that paths reach, from the shortest on, up to a bound.
    fn make_states(&mut self, all: Found) {
        let mut maker = Maker::default();
        self.all = maker.matched(PathMatch::new(&all, Vec::new()));
        self.none = maker.matched(PathMatch::default());
        maker.state(self, SmallVec::from_slice(&[0]), Found::new());
        let mut place = 0;
        while place < maker.states.len() {
            let (nodes, found) = (maker.states[place].nodes.clone(), maker.states[place].found.clone());
            let segments = nodes.iter().flat_map(|node| self.nodes[*node as usize].literal.keys());
            let segments: Vec<Box<[u8]>> = segments.cloned().collect();
            for segment in segments {
                let following = maker.state(self, self.after(&nodes, &segment), found.clone());
                maker.states[place].following.insert(segment, following);
            }
            maker.states[place].other = maker.state(self, self.wild(&nodes), found);
            place += 1;
        }
        (self.states, self.matches) = (maker.states, maker.matches);
    }

    /// Where any segment leads that is literal in none of the nodes.
    fn wild(&self, nodes: &[u32]) -> Nodes {
        nodes.iter().filter_map(|node| self.nodes[*node as usize].any).collect()
    }

    /// Where a segment leads.
    fn after(&self, nodes: &[u32], segment: &[u8]) -> Nodes {
        let mut after = self.wild(nodes);
        after.extend(nodes.iter().filter_map(|node| self.nodes[*node as usize].literal.get(segment).copied()));
        after
    }

    /// Add the templates of these nodes that match whatever follows.
    fn find_below(&self, nodes: &[u32], found: &mut Found) {
        for node in nodes {
            found.extend(self.nodes[*node as usize].below.iter().rev().copied());
        }
    }

    /// The match of a path that ends at these nodes.
    fn match_here(&self, nodes: &[u32], found: &Found) -> PathMatch {
        let mut here = found.clone();
        for node in nodes {
            here.extend(self.nodes[*node as usize].here.iter().rev().copied());
        }
        PathMatch::of_one_form(&here)
    }

    /// Whose templates match a path, which may carry a query.
    pub fn match_path(&self, path: &str) -> Matched<'_> {
        if let Some(matched) = self.match_plain(PlainPath::new(path)) {
            return matched; // by far most
        }
        if is_longer(path, LONGEST_PATH) {
            return self.known(self.all);
        }
        match forms_of(path) {
            Forms::None => self.known(self.none),
            Forms::One(text) if text.is_empty() => self.walk([].into_iter()),
            Forms::One(text) => self.walk(text.split('/').map(str::as_bytes)),
            Forms::Several(readings) => {
                let mut matches: Vec<Matched<'_>> = Vec::new();
                readings.each_form(|form| {
                    let matched = self.walk(form.iter().map(|segment| segment.as_bytes()));
                    // Most forms match alike, and a match that is known in advance is found again by its number.
                    if matched.number.is_none() || matches.iter().all(|other| other.number != matched.number) {
                        matches.push(matched);
                    }
                });
                together(matches)
            }
        }
    }

    /// Whose templates match a path that is plain; None for any other.
    #[inline]
    pub fn match_plain(&self, path: Option<PlainPath<'_>>) -> Option<Matched<'_>> {
        let path = path?;
        let mut segments = path.clone();
        let mut state = &self.states[0];
        loop {
            match segments.step() {
                Step::Segment(segment) if !state.nodes.is_empty() => match self.following(state, segment) {
                    Some(following) => state = following,
                    None => return self.match_plain_beyond(path),
                },
                Step::Segment(_) => {}
                Step::End => return Some(self.known(state.matched)),
                Step::NotPlain => return None,
            }
        }
    }

    /// `match_plain` of a path that leaves the states.
    #[cold]
    fn match_plain_beyond(&self, mut path: PlainPath<'_>) -> Option<Matched<'_>> {
        let mut segments: Vec<&[u8]> = Vec::new();
        loop {
            match path.step() {
                Step::Segment(segment) => segments.push(segment),
                Step::End => return Some(self.walk(segments.into_iter())),
                Step::NotPlain => return None,
            }
        }
    }

    fn walk<'p>(&self, mut segments: impl Iterator<Item = &'p [u8]>) -> Matched<'_> {
        let mut state = &self.states[0];
        while !state.nodes.is_empty() {
            let Some(segment) = segments.next() else { break };
            match self.following(state, segment) {
                Some(following) => state = following,
                None => return self.walk_nodes(state, segment, segments),
            }
        }
        self.known(state.matched)
    }

    /// The state after a segment; None where none was made.
    #[inline]
    fn following(&self, state: &State, segment: &[u8]) -> Option<&State> {
        let number = state.following.get(segment).copied().unwrap_or(state.other);
        self.states.get(number as usize)
    }

    /// `walk` from where no states were made.
    fn walk_nodes<'p>(&self, state: &State, first: &[u8], segments: impl Iterator<Item = &'p [u8]>) -> Matched<'_> {
        let mut found = state.found.clone();
        let mut nodes = self.after(&state.nodes, first);
        self.find_below(&nodes, &mut found);
        for segment in segments {
            if nodes.is_empty() {
                break;
            }
            nodes = self.after(&nodes, segment);
            self.find_below(&nodes, &mut found);
        }
        Matched { number: None, paths: Cow::Owned(self.match_here(&nodes, &found)), is_unusual: false }
    }

    fn known(&self, number: u32) -> Matched<'_> {
        Matched { number: Some(number), paths: Cow::Borrowed(&self.matches[number as usize]), is_unusual: false }
    }
}

/// Makes states, and each only once.
#[derive(Default)]
struct Maker {
    states: Vec<State>,
    matches: Vec<PathMatch>,
    state_numbers: FxHashMap<(Nodes, Found), u32>,
    match_numbers: FxHashMap<PathMatch, u32>,
    count_found: usize,
}

impl Maker {
    /// The number of the state at these nodes, or that none is made any more.
    fn state(&mut self, tree: &PathTree, nodes: Nodes, mut found: Found) -> u32 {
        tree.find_below(&nodes, &mut found);
        let name = (nodes, found);
        if let Some(number) = self.state_numbers.get(&name) {
            return *number;
        }
        let matched = tree.match_here(&name.0, &name.1);
        self.count_found += name.1.len() + 2 * matched.found().len();
        if self.states.len() >= MOST_STATES || (self.count_found > MOST_FOUND && !self.states.is_empty()) {
            return UNMADE;
        }
        let number = u32::try_from(self.states.len()).unwrap_or(UNMADE);
        let (nodes, found) = name.clone();
        let matched = self.matched(matched);
        self.states.push(State { nodes, found, matched, following: FxHashMap::default(), other: UNMADE });
        self.state_numbers.insert(name, number);
        number
    }

    /// The number of a match.
    fn matched(&mut self, matched: PathMatch) -> u32 {
        if let Some(number) = self.match_numbers.get(&matched) {
            return *number;
        }
        let number = u32::try_from(self.matches.len()).unwrap_or(UNMADE);
        self.matches.push(matched.clone());
        self.match_numbers.insert(matched, number);
        number
    }
}
