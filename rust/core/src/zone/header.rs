//! The header of a zone's file: its identity, and whether this program can read it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::hash::Seed;
use crate::memory::shared::{SharedMap, set};
use crate::zone::layout::{HEADER, Layout};

/// "headgate" as bytes.
const MAGIC: u64 = u64::from_ne_bytes(*b"headgate");
/// The version of the layout of a zone without holds; the next one had room for holds.
const PLAIN: u64 = 2;
/// The version of a zone that has room for callers that wait.
const WAITING: u64 = 4;
/// The version of a zone whose tries have a node only where leaves differ. Higher versions cannot be read; lower ones
/// can, if they have no room for holds.
const NEWEST: u64 = 6;

const WAY_OUT: &str = "name another path, or delete the file once no process uses it";
const WORDS: usize = 16;
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_MACHINE: usize = 2;
const AT_SIZE: usize = 3;
const AT_LOG_PERCENT: usize = 4;
const AT_SEED: usize = 5;
const AT_BOOT: usize = 7;
const AT_ANCHOR: usize = 9;
const AT_CREATED: usize = 10;
const AT_MAX_HOLDS: usize = 11;
const AT_SUM: usize = 15;

/// What identifies a zone.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// 128 secret random bits.
    pub seed: [u8; 16],
    /// The id of this boot of the system.
    pub boot: [u8; 16],
    /// The offset from the monotonic clock to microseconds since the epoch, for all processes.
    pub anchor_us: i64,
    /// The moment of its creation, in microseconds since the epoch.
    pub created_us: i64,
}

/// Write the header of a new zone; the magic word comes last.
pub fn write_header(map: &SharedMap, layout: &Layout, birth: &Birth) {
    let places = map.words::<WORDS>(HEADER);
    for (place, word) in places.iter().zip(words_of(layout, birth)).skip(1) {
        set(place, word);
    }
    set(&places[AT_MAGIC], MAGIC);
}

fn words_of(layout: &Layout, birth: &Birth) -> [u64; WORDS] {
    let half = |bytes: &[u8; 16], half: usize| {
        bytes[half * 8..][..8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    let mut words = [0; WORDS];
    words[AT_MAGIC] = MAGIC;
    words[AT_VERSION] = NEWEST;
    words[AT_MAX_HOLDS] = layout.max_holds as u64;
    words[AT_MACHINE] = machine();
    words[AT_SIZE] = layout.size as u64;
    words[AT_LOG_PERCENT] = layout.log_percent as u64;
    for number in [0, 1] {
        words[AT_SEED + number] = half(&birth.seed, number);
        words[AT_BOOT + number] = half(&birth.boot, number);
    }
    words[AT_ANCHOR] = birth.anchor_us as u64;
    words[AT_CREATED] = birth.created_us as u64;
    words[AT_SUM] = sum(&words);
    words
}

/// Read the layout and birth from a file's header, or why it is no zone that can be used here.
pub fn read_header(file: &File, bytes: usize) -> io::Result<Result<(Layout, Birth), String>> {
    let mut page = [0; WORDS * 8];
    if bytes < page.len() {
        return Ok(Err(format!("is no zone of Headgate, it has {bytes} bytes; name another path")));
    }
    file.read_exact_at(&mut page, HEADER as u64)?;
    let mut words = [0; WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&page[index * 8..][..8]);
        *word = u64::from_ne_bytes(bytes);
    }
    if words[AT_MAGIC] != MAGIC {
        return Ok(Err("is no zone of Headgate; name another path".into()));
    }
    let holds_otherwise = words[AT_VERSION] < NEWEST && words[AT_MAX_HOLDS] != 0;
    if !(PLAIN..=NEWEST).contains(&words[AT_VERSION]) || holds_otherwise {
        return Ok(Err(format!(
            "is a zone of layout {}, and this program reads layout {NEWEST}, or {PLAIN} to {} without holds; {WAY_OUT}",
            words[AT_VERSION],
            NEWEST - 1
        )));
    }
    if words[AT_MACHINE] != machine() {
        return Ok(Err(format!("was made for another kind of processor or C library; {WAY_OUT}")));
    }
    if words[AT_SUM] != sum(&words) {
        return Ok(Err(format!("is damaged in its header; {WAY_OUT}")));
    }
    if words[AT_SIZE] != bytes as u64 {
        return Ok(Err(format!("is damaged, it has {bytes} bytes instead of {}; {WAY_OUT}", words[AT_SIZE])));
    }
    let bytes_at = |at: usize| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[at].to_be_bytes());
        bytes[8..].copy_from_slice(&words[at + 1].to_be_bytes());
        bytes
    };
    let birth = Birth {
        seed: bytes_at(AT_SEED),
        boot: bytes_at(AT_BOOT),
        anchor_us: words[AT_ANCHOR] as i64,
        created_us: words[AT_CREATED] as i64,
    };
    let layout_of = if words[AT_VERSION] < WAITING { Layout::without_lines } else { Layout::new };
    let layout = layout_of(bytes, words[AT_LOG_PERCENT] as usize, words[AT_MAX_HOLDS] as usize);
    Ok(layout.map(|layout| (layout, birth)))
}

/// A number for what makes a zone of one machine unreadable on another: word size, processor, and the C library's
/// locks.
fn machine() -> u64 {
    let library = if cfg!(target_env = "gnu") { 1 } else { 2 };
    let kind =
        std::env::consts::ARCH.bytes().fold(0, |kind: u64, byte| kind.wrapping_mul(31).wrapping_add(byte.into()));
    kind << 16 | u64::from(usize::BITS) << 8 | library
}

/// A checksum of the header's words, to detect damage; not secret.
fn sum(words: &[u64; WORDS]) -> u64 {
    let bytes: Vec<u8> = words[..AT_SUM].iter().flat_map(|word| word.to_le_bytes()).collect();
    Seed::new([0; 16]).text(&bytes).tag
}
