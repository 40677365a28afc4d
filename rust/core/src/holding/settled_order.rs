//! The order in which holds were settled: a full table forgets the first of them for a new one.

/// The end of the chain, on both sides.
const NONE: u32 = u32::MAX;

/// The neighbours of one hold in the chain.
#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    behind: u32,
}

/// The numbers of the holds that are settled, as a chain from the first to the last.
#[derive(Debug)]
pub struct SettledOrder {
    /// The links by number; meaningless for holds that are not in the chain.
    links: Vec<Links>,
    first: u32,
    last: u32,
}

impl Default for SettledOrder {
    fn default() -> Self {
        Self { links: Vec::new(), first: NONE, last: NONE }
    }
}

impl SettledOrder {
    /// The one that was settled first.
    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Append a hold that is not in the chain yet.
    #[inline]
    pub fn add(&mut self, number: u32) {
        let place = number as usize;
        if place >= self.links.len() {
            self.links.resize(place + 1, Links { before: NONE, behind: NONE });
        }
        self.links[place] = Links { before: self.last, behind: NONE };
        self.set_behind(self.last, number);
        self.last = number;
    }

    /// Remove a hold that is in the chain.
    #[inline]
    pub fn remove(&mut self, number: u32) {
        let Links { before, behind } = self.links[number as usize];
        self.set_behind(before, behind);
        match self.links.get_mut(behind as usize) {
            Some(links) => links.before = before,
            None => self.last = before,
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Links>()
    }

    fn set_behind(&mut self, number: u32, behind: u32) {
        match self.links.get_mut(number as usize) {
            Some(links) => links.behind = behind,
            None => self.first = behind,
        }
    }
}
