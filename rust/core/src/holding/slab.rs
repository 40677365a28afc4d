//! Values in chunks that never move, named by small numbers; the places of removed values are used again.

/// The number of values in a chunk.
const CHUNK: usize = 64;

/// Values by small numbers.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Box<[Option<T>]>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Take a place for one more value, which `put` must fill.
    #[inline(always)]
    pub fn take(&mut self) -> u32 {
        match self.free.pop() {
            Some(number) => number,
            None => self.grow(),
        }
    }

    /// Put a value in a place that was taken.
    #[inline(always)]
    pub fn put(&mut self, number: u32, value: T) {
        self.chunks[number as usize / CHUNK][number as usize % CHUNK] = Some(value);
    }

    /// The number that `take` gives next.
    #[inline(always)]
    pub fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or((self.chunks.len() * CHUNK) as u32)
    }

    /// Add a chunk; returns the number of its first place, which is taken.
    #[cold]
    fn grow(&mut self) -> u32 {
        let first = (self.chunks.len() * CHUNK) as u32;
        self.chunks.push(std::iter::repeat_with(|| None).take(CHUNK).collect());
        self.free.extend((first + 1..first + CHUNK as u32).rev());
        first
    }

    /// The value of a number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.chunks.get(number as usize / CHUNK)?[number as usize % CHUNK].as_ref()
    }

    /// The value of a number, mutably.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.chunks.get_mut(number as usize / CHUNK)?[number as usize % CHUNK].as_mut()
    }

    /// Take a value out.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.chunks.get_mut(number as usize / CHUNK)?[number as usize % CHUNK].take();
        if value.is_some() {
            self.free.push(number);
        }
        value
    }

    /// How many places there are, used or not.
    #[inline]
    pub fn places(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// All values, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let places = self.chunks.iter().flat_map(|chunk| chunk.iter());
        (0..).zip(places).filter_map(|(number, value)| Some((number, value.as_ref()?)))
    }

    /// Bytes of all places, used or not.
    pub fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Option<T>>() + self.free.capacity() * size_of::<u32>()
    }
}
