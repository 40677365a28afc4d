//! Compact storage for log entries: the texts of all entries lie in one buffer.

use crate::LogLine;

/// The `method_bytes` of an entry that was not read from a line.
const OTHER: u8 = u8::MAX;

/// The place of an entry.
#[derive(Clone, Copy, Debug)]
struct Record {
    time_us: i64,
    /// Where the texts of a line begin: client, method, path. Of an entry of another kind, its index among those.
    place: usize,
    client_bytes: u16,
    path_bytes: u16,
    method_bytes: u8,
}

/// Entries of a log in some order: lines that were read here, and entries of another kind.
#[derive(Debug)]
pub struct Entries<T> {
    texts: String,
    others: Vec<Option<T>>,
    records: Vec<Record>,
}

/// An entry.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry<'own, T> {
    /// A line that was read here.
    Line(LogLine<'own>),
    /// One of another kind.
    Other(&'own T),
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self { texts: String::new(), others: Vec::new(), records: Vec::new() }
    }
}

impl<T> Entries<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The moments of the first and of the last.
    pub fn ends_us(&self) -> Option<(i64, i64)> {
        Some((self.records.first()?.time_us, self.records.last()?.time_us))
    }

    /// An entry by its place.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Entry<'_, T>> {
        let record = self.records.get(index)?;
        if record.method_bytes == OTHER {
            return self.others.get(record.place)?.as_ref().map(Entry::Other);
        }
        let text = self.texts.get(record.place..)?;
        let (client, text) = text.split_at_checked(record.client_bytes.into())?;
        let (method, text) = text.split_at_checked(record.method_bytes.into())?;
        let path = text.get(..record.path_bytes.into())?;
        Some(Entry::Line(LogLine { time_us: record.time_us, client, method, path }))
    }

    /// Add a line. One that is longer than a line may be is left out: `read_line` reads none.
    #[inline]
    pub fn push_line(&mut self, line: &LogLine<'_>) {
        let (client, method, path) = (line.client.len(), line.method.len(), line.path.len());
        let (Ok(client_bytes), Ok(path_bytes), Ok(method_bytes)) =
            (u16::try_from(client), u16::try_from(path), u8::try_from(method))
        else {
            return;
        };
        let place = self.texts.len();
        self.texts.push_str(line.client);
        self.texts.push_str(line.method);
        self.texts.push_str(line.path);
        self.records.push(Record { time_us: line.time_us, place, client_bytes, path_bytes, method_bytes });
    }

    /// Add an entry of another kind.
    pub fn push_other(&mut self, time_us: i64, other: T) {
        let place = self.others.len();
        self.others.push(Some(other));
        self.records.push(Record { time_us, place, client_bytes: 0, path_bytes: 0, method_bytes: OTHER });
    }

    /// Move an entry of `from` here, by its index; it must not be read from there again.
    #[inline]
    fn take(&mut self, from: &mut Self, index: usize) {
        let record = from.records[index];
        if record.method_bytes == OTHER {
            if let Some(other) = from.others[record.place].take() {
                self.push_other(record.time_us, other);
            }
            return;
        }
        let bytes =
            usize::from(record.client_bytes) + usize::from(record.path_bytes) + usize::from(record.method_bytes);
        let place = self.texts.len();
        self.texts.push_str(&from.texts[record.place..record.place + bytes]);
        self.records.push(Record { place, ..record });
    }

    /// Add all entries of another list behind these.
    pub fn append(&mut self, from: &mut Self) {
        if self.is_empty() {
            return std::mem::swap(self, from);
        }
        let (texts, others) = (self.texts.len(), self.others.len());
        self.texts.push_str(&from.texts);
        self.others.append(&mut from.others);
        let moved = from.records.iter().map(|record| {
            let behind = if record.method_bytes == OTHER { others } else { texts };
            Record { place: record.place + behind, ..*record }
        });
        self.records.extend(moved);
        *from = Self::default();
    }

    /// Sort the entries by time; entries of one moment keep their order.
    pub fn sort(&mut self) {
        if !self.records.is_sorted_by_key(|record| record.time_us) {
            self.records.sort_by_key(|record| record.time_us);
        }
    }

    /// Take the first `count` entries out.
    pub fn take_first(&mut self, count: usize) -> Self {
        let (mut first, mut rest) = (Self::default(), Self::default());
        first.records.reserve(count.min(self.len()));
        for index in 0..self.len() {
            let into = if index < count { &mut first } else { &mut rest };
            into.take(self, index);
        }
        *self = rest;
        first
    }

    /// Drop the entries outside of two moments, the second not included; returns how many were dropped.
    pub fn retain_within(&mut self, from_us: i64, to_us: i64) -> usize {
        let before = self.len();
        self.records.retain(|record| (from_us..to_us).contains(&record.time_us));
        before - self.len()
    }
}

/// Lists of entries in the order of their times, each followed by others, merged into one.
///
/// Among entries of one moment, those of the first list come first.
#[derive(Debug)]
pub struct Merge<T> {
    /// The current list of each, and how many of its entries were taken; None after the last list.
    lists: Vec<Option<(Entries<T>, usize)>>,
}

impl<T> Merge<T> {
    /// A merge of this many lists, none of which has been given yet.
    pub fn new(lists: usize) -> Self {
        Self { lists: (0..lists).map(|_| Some((Entries::default(), 0))).collect() }
    }

    /// The first list that has no entry left, but may be continued.
    pub fn wants(&self) -> Option<usize> {
        self.lists.iter().position(|list| list.as_ref().is_some_and(|(entries, taken)| *taken == entries.len()))
    }

    /// Continue a list; None ends it.
    pub fn give(&mut self, list: usize, entries: Option<Entries<T>>) {
        if let Some(place) = self.lists.get_mut(list) {
            *place = entries.map(|entries| (entries, 0));
        }
    }

    /// All entries whose order is certain, until a list has no entry left.
    pub fn merged(&mut self) -> Entries<T> {
        let mut merged = Entries::default();
        while self.wants().is_none() {
            let moment = |(place, list): (usize, &Option<(Entries<T>, usize)>)| {
                list.as_ref().map(|(entries, taken)| (entries.records[*taken].time_us, place))
            };
            let Some((_, first)) = self.lists.iter().enumerate().filter_map(moment).min() else {
                break;
            };
            if let Some((entries, taken)) = &mut self.lists[first] {
                merged.take(entries, *taken);
                *taken += 1;
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(time_us: i64, client: &str) -> LogLine<'_> {
        LogLine { time_us, client, method: "GET", path: "/ä?x" }
    }

    fn shown(entries: &Entries<i64>) -> Vec<String> {
        let show = |index| match entries.get(index) {
            Some(Entry::Line(line)) => format!("{} {}", line.time_us, line.client),
            Some(Entry::Other(other)) => format!("other {other}"),
            None => "none".into(),
        };
        (0..entries.len()).map(show).collect()
    }

    #[test]
    fn entries_are_what_was_added_in_whatever_order_they_are_brought() {
        let mut entries = Entries::default();
        entries.push_line(&line(3, "c"));
        entries.push_other(1, 1);
        entries.push_line(&line(1, "b"));
        let mut others = Entries::default();
        others.push_other(0, 0);
        others.push_line(&line(3, "d"));
        entries.append(&mut others);
        assert!(others.is_empty());
        entries.sort();
        assert_eq!(shown(&entries), ["other 0", "other 1", "1 b", "3 c", "3 d"]);
        assert_eq!(entries.get(2), Some(Entry::Line(line(1, "b"))));
        let first = entries.take_first(2);
        assert_eq!((shown(&first), shown(&entries).len()), (vec!["other 0".into(), "other 1".into()], 3));
        assert_eq!(entries.ends_us(), Some((1, 3)));
        assert_eq!(entries.retain_within(2, 3), 3);
        assert!(entries.is_empty());
    }

    #[test]
    fn lists_are_merged_in_the_order_of_time_and_then_of_the_lists() {
        let mut merge = Merge::new(2);
        let list = |moments: &[i64], client| {
            let mut entries = Entries::<i64>::default();
            moments.iter().for_each(|moment| entries.push_line(&line(*moment, client)));
            entries
        };
        let mut rest = [vec![list(&[1, 2], "a"), list(&[2, 9], "a")], vec![list(&[1, 2, 2], "b"), list(&[], "b")]];
        let mut all = Vec::new();
        loop {
            while let Some(wanted) = merge.wants() {
                let next = if rest[wanted].is_empty() { None } else { Some(rest[wanted].remove(0)) };
                merge.give(wanted, next);
            }
            let merged = merge.merged();
            if merged.is_empty() {
                break;
            }
            all.extend(shown(&merged));
        }
        assert_eq!(all, ["1 a", "1 b", "2 a", "2 a", "2 b", "2 b", "9 a"]);
    }
}
