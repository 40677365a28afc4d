//! Raw memory: the only unsafe code of Headgate.
//!
//! In the memory of one process the slots of all shards lie in one mapping, cut into ranges that do
//! not overlap. A mapping costs nothing until it is touched, large ones get large pages, and what a
//! shard leaves behind goes back to the system at once. A file that many processes map is cut into
//! shards, each with a lock that all of them obey and that outlives a holder that dies; see `shared`.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapRaw;

use crate::encoding::slot::Slot;

/// Mappings below this size are not worth large pages.
#[cfg(target_os = "linux")]
const LARGE: usize = 8 << 20;

/// Slots of one shard: a range of a mapping that no other shard reaches.
pub struct Slots {
    /// Where they begin, stored beside the mapping: every decision reads it several times.
    start: NonNull<Slot>,
    length: usize,
    mapping: Option<Arc<MmapRaw>>,
}

// SAFETY: the range belongs to this value alone (see `deref`), and the mapping may be unmapped by any thread: slots go
// from thread to thread, and are read by several, as those of a `Box<[Slot]>` do.
unsafe impl Send for Slots {}
// SAFETY: as above; a shared borrow gives nothing but shared views of integers.
unsafe impl Sync for Slots {}

impl Slots {
    /// A new zeroed mapping, cut into `ranges` ranges of `length` slots each.
    pub fn map(ranges: usize, length: usize) -> io::Result<Vec<Self>> {
        let slots = ranges.checked_mul(length).filter(|slots| *slots > 0);
        let bytes = slots.and_then(|slots| slots.checked_mul(size_of::<Slot>()));
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping: MmapRaw = memmap2::MmapOptions::new().len(bytes).map_anon()?.into();
        #[cfg(target_os = "linux")]
        if bytes >= LARGE {
            // Advice only: without it the table is slower, not wrong.
            let _ = mapping.advise(memmap2::Advice::HugePage);
        }
        let mapping = Arc::new(mapping);
        let first = NonNull::new(mapping.as_mut_ptr().cast::<Slot>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let cut = |index: usize| {
            // SAFETY: `index < ranges`, and the mapping holds `ranges * length` slots.
            let start = unsafe { first.add(index * length) };
            Self { start, length, mapping: Some(Arc::clone(&mapping)) }
        };
        Ok((0..ranges).map(cut).collect())
    }

    /// Where the slots begin, for prefetching them.
    pub fn start(&self) -> *const Slot {
        self.start.as_ptr()
    }
}

impl Default for Slots {
    /// No slots.
    fn default() -> Self {
        Self { start: NonNull::dangling(), length: 0, mapping: None }
    }
}

impl Deref for Slots {
    type Target = [Slot];

    #[inline(always)]
    fn deref(&self) -> &[Slot] {
        // SAFETY: `map` made the mapping long enough for every range it cut, mappings start on a page
        // and so are aligned for slots, and any bytes (zeroes at first) are valid integers. `map` cuts
        // ranges that do not overlap and nothing copies a range, so no other value has a mutable view. The
        // mapping lives as long as `self`. Without one the length is 0, and an aligned start will do.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Slots {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Slot] {
        // SAFETY: as in `deref`; and the exclusive borrow of `self` is the only view of the range.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(mapping) = &self.mapping
            && Arc::strong_count(mapping) > 1
        {
            const PAGE: usize = 4096;
            let start = self.start.addr().get() - mapping.as_ptr().addr();
            let pages = start.next_multiple_of(PAGE)..(start + size_of_val(&**self)) / PAGE * PAGE;
            if pages.start < pages.end {
                // SAFETY: whole pages inside this range, of a private anonymous mapping: their content
                // is lost, and with this drop no value has a view of it any more. Where it fails, the
                // memory goes back with the rest of the mapping.
                let _ = unsafe {
                    mapping.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        pages.start,
                        pages.end - pages.start,
                    )
                };
            }
        }
    }
}

/// Prefetch the cache line of `place`, which may be any address.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and cannot fault, and SSE is part of every x86-64 processor.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod shared {
    //! A file that many processes map at once.
    //!
    //! It is cut into shards. The thread that holds the lock of a shard has its slots and blocks for itself, in
    //! all processes; everything else that is shared is read and written as atomic words.

    use std::cell::UnsafeCell;
    use std::fs::File;
    use std::io;
    use std::marker::PhantomData;
    use std::os::fd::{AsRawFd, FromRawFd, RawFd};
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};
    use std::time::Duration;

    use memmap2::{MmapOptions, MmapRaw};

    use crate::encoding::block::Block;
    use crate::encoding::slot::Slot;

    /// Bytes that a lock takes, whatever the C library needs of them.
    pub const LOCK_BYTES: usize = 48;
    /// Words of a shard beside its lock.
    pub const SHARD_WORDS: usize = 26;
    /// Records of a shard.
    pub const RECORDS: usize = 256;
    /// Where the records begin in a shard.
    pub const RECORDS_AT: usize = LOCK_BYTES + SHARD_WORDS * size_of::<u64>();
    /// Where the slots begin in a shard.
    pub const SLOTS_AT: usize = RECORDS_AT + size_of::<Records>();

    /// Words that all processes read and write.
    pub type Words<const N: usize> = [AtomicU64; N];
    /// The records of a shard of writes that are not committed yet.
    pub type Records = [[AtomicU64; 4]; RECORDS];

    const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= LOCK_BYTES && align_of::<libc::pthread_mutex_t>() <= 8);
    const _: () = assert!(RECORDS_AT.is_multiple_of(64) && SLOTS_AT.is_multiple_of(64));

    /// The layout of the shards in a mapped file. All numbers are bytes, except the counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShardLayout {
        /// How many there are.
        pub count: usize,
        /// Where the first begins.
        pub first: usize,
        /// From one to the next.
        pub stride: usize,
        /// Slots of each.
        pub slots: usize,
        /// Log blocks of each, behind its slots.
        pub blocks: usize,
        /// Where the lock of the limits is, before the first shard.
        pub lock: usize,
        /// Where the words that all shards share begin, behind the last shard.
        pub pool: usize,
        /// How many words those are.
        pub pool_words: usize,
        /// Where the waiting lines are, behind those words.
        pub lines: LineLayout,
    }

    /// The layout of the waiting lines: locks, each with a bell, and behind them their words.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct LineLayout {
        /// Where the first lock is, in bytes.
        pub at: usize,
        /// How many there are.
        pub locks: usize,
        /// How many words are behind them.
        pub words: usize,
    }

    impl LineLayout {
        /// Bytes of a lock and its bell.
        pub const LOCK: usize = 64;

        /// Where the words begin.
        fn words_at(&self) -> usize {
            self.at + self.locks * Self::LOCK
        }

        /// Where they end.
        fn end(&self) -> usize {
            self.words_at() + self.words * size_of::<u64>()
        }
    }

    impl ShardLayout {
        /// Where the blocks begin in a shard.
        fn blocks_at(&self) -> usize {
            SLOTS_AT + self.slots * size_of::<Slot>()
        }

        /// Whether all parts lie in a mapping of this many bytes, aligned and without overlaps.
        fn fit(&self, bytes: usize) -> bool {
            let end = self.blocks_at().checked_add(self.blocks.saturating_mul(size_of::<Block>()));
            let all = self.count.checked_mul(self.stride).and_then(|all| all.checked_add(self.first));
            let pool = self.pool_words.checked_mul(8).and_then(|pool| pool.checked_add(self.pool));
            self.lock.is_multiple_of(8)
                && self.lock + LOCK_BYTES <= self.first
                && self.first.is_multiple_of(64)
                && self.stride.is_multiple_of(64)
                && end.is_some_and(|end| end <= self.stride)
                && self.pool.is_multiple_of(64)
                && all.is_some_and(|all| all <= self.pool)
                && pool.is_some_and(|pool| pool <= self.lines.at)
                && self.lines.at.is_multiple_of(64)
                && self.lines.end() <= bytes
        }
    }

    /// A lock for all processes that map it; where its holder dies, the next process gets it.
    #[repr(C)]
    pub struct Lock {
        mutex: UnsafeCell<libc::pthread_mutex_t>,
    }

    // SAFETY: a process-shared mutex is made to be used by many threads at once, through pointers.
    unsafe impl Sync for Lock {}

    impl Lock {
        /// Initialize the lock. No other thread may use the memory yet.
        fn init(&self) -> io::Result<()> {
            let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            // SAFETY: `attributes` is initialized by the first call before the others read it, and
            // destroyed once; the mutex is memory of the right size and alignment that no thread uses.
            unsafe {
                checked(libc::pthread_mutexattr_init(attributes.as_mut_ptr()))?;
                checked(libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED))?;
                checked(libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST))?;
                checked(libc::pthread_mutex_init(self.mutex.get(), attributes.as_ptr()))?;
                checked(libc::pthread_mutexattr_destroy(attributes.as_mut_ptr()))
            }
        }

        /// Take the lock, unless another thread holds it. Where its holder has died, it is taken over.
        #[inline(always)]
        fn take(&self) -> bool {
            // SAFETY: the mutex was initialized before its mapping was handed out.
            match unsafe { libc::pthread_mutex_trylock(self.mutex.get()) } {
                0 => true,
                libc::EOWNERDEAD => self.take_over(),
                _ => false,
            }
        }

        #[cold]
        fn take_over(&self) -> bool {
            // SAFETY: this thread holds the mutex, and its state is the one that this call is for. What
            // its holder left unfinished is recorded in the words of the shard, not in the mutex.
            unsafe { libc::pthread_mutex_consistent(self.mutex.get()) == 0 }
        }

        /// Release the lock. This thread must hold it.
        #[inline(always)]
        fn give(&self) {
            // SAFETY: the mutex is initialized, and `HeldShard` and `Taken` exist only while their thread holds it.
            unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
        }
    }

    /// A lock that this thread holds until this is dropped.
    pub struct Taken<'map> {
        lock: &'map Lock,
        /// Only the thread that took a mutex may release it.
        not_send: PhantomData<*const ()>,
    }

    impl Drop for Taken<'_> {
        #[inline(always)]
        fn drop(&mut self) {
            self.lock.give();
        }
    }

    /// A counter on which one thread waits and that any thread of any process rings (a futex).
    #[repr(transparent)]
    pub struct Bell(AtomicU32);

    impl Bell {
        /// How often the bell was rung.
        pub fn rung(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        /// Ring the bell without waking anyone: a waiting thread sees it when it wakes up.
        pub fn ring(&self) {
            self.0.fetch_add(1, Ordering::Release);
        }

        /// Wake the thread that waits for the bell.
        pub fn wake(&self) {
            // SAFETY: the address of a mapped word, which the kernel reads and does not retain.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        }

        /// Sleep until the bell was rung other than `heard` times, but no longer than `longest`.
        pub fn wait(&self, heard: u32, longest: Duration) {
            let longest = libc::timespec {
                tv_sec: longest.as_secs() as libc::time_t,
                tv_nsec: longest.subsec_nanos() as libc::c_long,
            };
            // SAFETY: as in `wake`; the timeout outlives the call. Whatever ends it, the caller checks again.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAIT, heard, &raw const longest) };
        }
    }

    /// A shard that this thread holds, and that no other thread of any process reaches until this is dropped.
    pub struct HeldShard<'map> {
        /// All its slots.
        pub slots: &'map mut [Slot],
        /// All its log blocks.
        pub blocks: &'map mut [Block],
        /// Its words.
        pub words: &'map Words<SHARD_WORDS>,
        /// Its records.
        pub records: &'map Records,
        /// Its number.
        pub number: usize,
        /// The mapping, for the words that all shards share.
        map: &'map SharedMap,
        _taken: Taken<'map>,
    }

    impl<'map> HeldShard<'map> {
        /// The words that all shards share: a thread writes only those that its shard has taken.
        #[inline(always)]
        pub fn pool(&self) -> &'map [AtomicU64] {
            self.map.pool()
        }
    }

    /// A mapped file.
    pub struct SharedMap {
        map: MmapRaw,
        shards: ShardLayout,
    }

    impl SharedMap {
        /// Map a file that has at least `bytes` bytes; the mapping keeps it open, and a `flock` on it held.
        ///
        /// Its locks must be initialized once, by `init_locks`.
        pub fn map(file: &File, bytes: usize, shards: ShardLayout) -> io::Result<Self> {
            if !shards.fit(bytes) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let map = MmapOptions::new().len(bytes).map_raw(file)?;
            // Advice only, and few systems take it for files in memory: without it more pages are looked up.
            let _ = map.advise(memmap2::Advice::HugePage);
            Ok(Self { map, shards })
        }

        /// Initialize all locks. No other process may have mapped the file.
        pub fn init_locks(&mut self) -> io::Result<()> {
            for shard_number in 0..self.shards.count {
                self.lock_at(self.place_of(shard_number)).init()?;
            }
            for number in 0..self.shards.lines.locks {
                self.lock_at(self.line_lock(number)).init()?;
            }
            self.lock_at(self.shards.lock).init()
        }

        /// Words at a place outside the shards.
        #[inline]
        pub fn words<const N: usize>(&self, place: usize) -> &Words<N> {
            let (end, lock) = (place + N * size_of::<u64>(), self.shards.lock);
            assert!(place.is_multiple_of(8) && end <= self.shards.first && (end <= lock || lock + LOCK_BYTES <= place));
            // SAFETY: inside the mapping (`fit`: the shards begin in it), aligned for words since mappings
            // begin on a page, and outside shards and locks, where nothing is ever viewed as anything else.
            unsafe { &*self.map.as_ptr().add(place).cast() }
        }

        /// Take the lock outside the shards, unless another thread holds it.
        pub fn take(&self) -> Option<Taken<'_>> {
            let lock = self.lock_at(self.shards.lock);
            lock.take().then(|| Taken { lock, not_send: PhantomData }) // dropping one releases the lock
        }

        /// Take a shard, unless another thread holds it.
        #[inline(always)]
        pub fn hold(&self, shard_number: usize) -> Option<HeldShard<'_>> {
            let shards = &self.shards;
            let lock = self.lock_at(self.place_of(shard_number));
            if !lock.take() {
                return None;
            }
            let taken = Taken { lock, not_send: PhantomData };
            // SAFETY: `fit` has checked that the shard lies in the mapping, aligned for slots and blocks, and apart
            // from all others; any bytes are valid slots and blocks, which are integers. This thread holds
            // the shard's lock, and the only way to slots and blocks is through `HeldShard`, which keeps it.
            unsafe {
                let start = self.map.as_mut_ptr().add(self.place_of(shard_number));
                Some(HeldShard {
                    slots: std::slice::from_raw_parts_mut(start.add(SLOTS_AT).cast(), shards.slots),
                    blocks: std::slice::from_raw_parts_mut(start.add(shards.blocks_at()).cast(), shards.blocks),
                    words: self.shard_words(shard_number),
                    records: &*start.add(RECORDS_AT).cast(),
                    number: shard_number,
                    map: self,
                    _taken: taken,
                })
            }
        }

        /// The words of a shard, which any thread may read.
        #[inline(always)]
        pub fn shard_words(&self, shard_number: usize) -> &Words<SHARD_WORDS> {
            // SAFETY: as in `hold`; and words are atomic, so that no lock is needed to read them.
            unsafe { &*self.map.as_ptr().add(self.place_of(shard_number) + LOCK_BYTES).cast() }
        }

        /// The words that all shards share.
        #[inline(always)]
        pub fn pool(&self) -> &[AtomicU64] {
            // SAFETY: `fit` has checked that they lie in the mapping, aligned, and behind all shards; nothing there is
            // ever viewed as anything but atomic words.
            unsafe {
                std::slice::from_raw_parts(self.map.as_ptr().add(self.shards.pool).cast(), self.shards.pool_words)
            }
        }

        /// The words of waiting lines.
        #[inline(always)]
        pub fn line_words(&self) -> &[AtomicU64] {
            let lines = &self.shards.lines;
            // SAFETY: `fit` has checked that they lie in the mapping, aligned, and behind all else; nothing there is
            // ever viewed as anything but atomic words.
            unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(lines.words_at()).cast(), lines.words) }
        }

        /// Take a lock of waiting lines, unless another thread holds it.
        pub fn take_line_lock(&self, number: usize) -> Option<Taken<'_>> {
            let lock = self.lock_at(self.line_lock(number));
            lock.take().then(|| Taken { lock, not_send: PhantomData }) // dropping one releases the lock
        }

        /// The bell beside a lock of waiting lines.
        pub fn bell(&self, number: usize) -> &Bell {
            // SAFETY: behind the lock, in its cache line: `fit` has checked that this lies in the mapping, and a lock
            // takes less than that. Nothing there is ever viewed as anything but a bell, which any bytes are.
            unsafe { &*self.map.as_ptr().add(self.line_lock(number) + LOCK_BYTES).cast() }
        }

        /// `holder` of a lock of waiting lines.
        pub fn holder_of_line_lock(&self, number: usize) -> u32 {
            self.holder_at(self.line_lock(number))
        }

        #[inline]
        fn line_lock(&self, number: usize) -> usize {
            assert!(number < self.shards.lines.locks);
            self.shards.lines.at + number * LineLayout::LOCK
        }

        /// Where a slot of a shard is, for prefetching it.
        #[inline(always)]
        pub fn slot_place(&self, shard_number: usize, index: usize) -> *const Slot {
            self.map.as_ptr().wrapping_add(self.place_of(shard_number) + SLOTS_AT).cast::<Slot>().wrapping_add(index)
        }

        /// The number of the thread that seems to hold a shard, for a message; 0 for none.
        pub fn holder(&self, shard_number: usize) -> u32 {
            self.holder_at(self.place_of(shard_number))
        }

        /// `holder` of the lock outside the shards.
        pub fn holder_of_limits(&self) -> u32 {
            self.holder_at(self.shards.lock)
        }

        fn holder_at(&self, lock: usize) -> u32 {
            const THREAD: u32 = 0x3fff_ffff;
            // SAFETY: the place of a lock, so in the mapping and aligned. Both C libraries on Linux begin a mutex with
            // the word that the kernel uses, which holds the thread's number; it is only read.
            let word: &AtomicU32 = unsafe { &*self.map.as_ptr().add(lock).cast() };
            word.load(Ordering::Relaxed) & THREAD
        }

        #[inline(always)]
        fn place_of(&self, shard_number: usize) -> usize {
            assert!(shard_number < self.shards.count);
            self.shards.first + shard_number * self.shards.stride
        }

        #[inline(always)]
        fn lock_at(&self, place: usize) -> &Lock {
            // SAFETY: in the mapping and aligned, as `fit` has checked for the places of locks, and no other place is
            // passed here; and a lock may be shared by all.
            unsafe { &*self.map.as_ptr().add(place).cast() }
        }
    }

    /// Write a value after all that was written before, and before all that is written later.
    ///
    /// A process that is killed has executed everything before some point of its program, and nothing
    /// after it: the processor guarantees that. The compiler needs the fences.
    #[inline(always)]
    pub fn put<T: Copy>(place: &mut T, value: T) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a reference that may be written through.
        unsafe { std::ptr::write_volatile(place, value) };
        compiler_fence(Ordering::SeqCst);
    }

    /// `put` for a word.
    #[inline(always)]
    pub fn set(word: &AtomicU64, value: u64) {
        compiler_fence(Ordering::SeqCst);
        word.store(value, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// A file that the caller has opened, on a duplicate of its descriptor. A lock on the file stays until both are
    /// closed.
    pub fn same_file(descriptor: RawFd) -> io::Result<File> {
        // SAFETY: the call takes a number, and fails where that is no open file.
        let ours = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
        if ours < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so no other code closes it.
        Ok(unsafe { File::from_raw_fd(ours) })
    }

    /// The kind of the file system that a file lies on, by the number that the kernel has for it.
    pub fn file_system(file: &File) -> io::Result<u64> {
        let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: an open file, and a place of the right size that the call fills where it succeeds.
        let kind = unsafe {
            if libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            about.assume_init().f_type
        };
        Ok(u64::from(kind as u32))
    }

    fn checked(code: i32) -> io::Result<()> {
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
    }
}
