//! The view of a sliding log that a transition has: its entries, oldest first, wherever they are stored.

/// (time, cost) in units of the limit.
pub type Entry = (i64, i64);

/// What a hold remembers of a limit right after its charge; the numbers are the algorithm's.
pub type Marked = [i64; 2];

/// The entries of a log, oldest first.
pub trait LogEntries: Iterator<Item = Entry> + Clone + Default {
    /// The next entry, which stays.
    fn oldest(&self) -> Option<Entry>;
}

/// A key's entries, to be read.
pub struct Log<E> {
    /// All stored entries, oldest first.
    pub entries: E,
    /// Units of all stored entries.
    pub used: i64,
    /// The time of the newest entry.
    pub last: i64,
    /// What is added to all stored times, `last` among them.
    pub shift: i64,
}

impl<E: LogEntries + From<Entry>> Log<E> {
    /// A log of one entry that is not stored.
    pub fn of_one(entry: Entry) -> Self {
        Self { entries: E::from(entry), used: entry.1, last: entry.0, shift: 0 }
    }
}

/// The effect of a charge on a log: the `expired` oldest entries leave, all times move by `shift`, and `cost` is added
/// at `time`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogCharge {
    /// How many of the oldest entries leave.
    pub expired: usize,
    /// What is added to all times.
    pub shift: i64,
    /// When the cost is charged.
    pub time: i64,
    /// How much is charged.
    pub cost: i64,
}
