//! Whose templates match a path.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// By owner, in order, the template that was found.
pub type Found = BTreeMap<i32, u32>;

/// Whose templates match a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathMatch {
    found: Vec<(i32, u32)>,
    surely: Vec<i32>,
}

impl PathMatch {
    /// `surely` are those owners, in order, whose templates match in every form.
    pub fn new(found: &Found, surely: Vec<i32>) -> Self {
        Self { found: found.iter().map(|(owner, template)| (*owner, *template)).collect(), surely }
    }

    /// The match of a path that has one form.
    pub fn of_one_form(found: &Found) -> Self {
        Self::new(found, found.keys().copied().collect())
    }

    /// The template of an owner that matches in some form, the most literal one: its index among those added.
    #[inline]
    pub fn template_of(&self, owner: i32) -> Option<u32> {
        let place = self.found.binary_search_by_key(&owner, |(owner, _)| *owner).ok()?;
        self.found.get(place).map(|(_, template)| *template)
    }

    /// Whether a template of an owner matches in every form.
    #[inline]
    pub fn is_surely(&self, owner: i32) -> bool {
        self.surely.binary_search(&owner).is_ok()
    }

    /// The owners whose templates match in any form, in order, each with the index of the most literal that does.
    pub fn found(&self) -> &[(i32, u32)] {
        &self.found
    }

    /// The owners whose templates match in every form, in order.
    pub fn surely(&self) -> &[i32] {
        &self.surely
    }
}

/// The templates that match a path; `number` is below `PathTree::count` where the tree knows this match in advance.
#[derive(Clone, Debug)]
pub struct Matched<'t> {
    /// The same for all paths that are matched alike, None for a match that was made for this path alone.
    pub number: Option<u32>,
    /// Whose templates match.
    pub paths: Cow<'t, PathMatch>,
    /// Whether the path has several forms that match differently: of such clients make up as many as they like.
    pub is_unusual: bool,
}

/// The templates that match any of these forms, and those that match all; of two of one owner, that of the usual form.
pub fn together<'t>(mut matches: Vec<Matched<'t>>) -> Matched<'t> {
    let alike = matches.windows(2).all(|two| two[0].paths == two[1].paths);
    if alike && let Some(only) = matches.pop() {
        return only;
    }
    let mut found = Found::new();
    for matched in matches.iter().rev() {
        found.extend(matched.paths.found().iter().copied());
    }
    let in_all = |owner: &i32| matches.iter().all(|matched| matched.paths.is_surely(*owner));
    let surely = found.keys().copied().filter(in_all).collect();
    Matched { number: None, paths: Cow::Owned(PathMatch::new(&found, surely)), is_unusual: true }
}

/// The templates that match a path or the one that an application may take it for; surely those that match both.
#[cold]
pub fn rooted<'t>(sent: Matched<'t>, other: &Matched<'_>) -> Matched<'t> {
    if sent.paths == other.paths {
        return sent;
    }
    let mut found: Found = other.paths.found().iter().copied().collect();
    found.extend(sent.paths.found().iter().copied());
    let paths = Cow::Owned(PathMatch::new(&found, sent.paths.surely().to_vec()));
    Matched { number: None, paths, is_unusual: true }
}
