//! The bounded run of what the fuzzers ask: all seeds as they are, then so many changed ones, without their tools.
//!
//! Seeds are in `rust/fuzz/seeds`, one a line with `\` escapes. The generator's failures repeat, and the input that fails
//! is printed in the same form. `HEADGATE_FUZZ` is how many changed inputs there are.

use std::path::Path;

/// What is put between, or in place of, parts of seeds.
const SIGNS: [&[u8]; 32] = [
    b"\r\n",
    b"\r",
    b"\n",
    b"\r\n\r\n",
    b"\0",
    b"\t",
    b" ",
    b":",
    b";",
    b",",
    b"/",
    b"..",
    b"%2f",
    b"\"",
    b"\\",
    b"[",
    b"]",
    b"{",
    b"}",
    b"0",
    b"1",
    b"-1",
    b"99999999999999999999",
    b"\x7f",
    b"\xff",
    b"\xc3\xa9",
    b"chunked",
    b"content-length: 3",
    b"transfer-encoding: chunked",
    b"connection: close",
    b"\x00\x00\x09",
    b"x: y\r\n",
];

/// Beyond this, inputs grow no longer.
const LONGEST: usize = 4096;

/// Ask a target about each of its seeds, and about `count` changed ones where `HEADGATE_FUZZ` gives no other number.
pub fn each(target: &str, count: usize, ask: fn(&[u8])) {
    let seeds = seeds(target);
    assert!(!seeds.is_empty(), "{target} has no seeds");
    for seed in &seeds {
        Asked(seed).about(ask);
    }
    let count = std::env::var("HEADGATE_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(count);
    let mut random = Random(0x5EED);
    for _ in 0..count {
        Asked(&changed(&seeds, &mut random)).about(ask);
    }
}

/// An input that is told where it fails.
struct Asked<'a>(&'a [u8]);

impl Asked<'_> {
    fn about(self, ask: fn(&[u8])) {
        ask(self.0);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it was asked about {}", self.0.escape_ascii());
        }
    }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(format!("{target}.txt"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines().map(|line| read(line).unwrap_or_else(|| panic!("{target} has a seed that is none: {line}"))).collect()
}

/// Bytes as `escape_ascii` writes them.
fn read(line: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), line.as_bytes());
    while let [first, following @ ..] = rest {
        rest = following;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (sign, following) = rest.split_first()?;
        rest = following;
        bytes.push(match sign {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'\\' | b'\'' | b'"' => *sign,
            b'x' => {
                let (digits, following) = rest.split_at_checked(2)?;
                rest = following;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            _ => return None,
        });
    }
    Some(bytes)
}

fn changed(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..1 + random.below(4) {
        let place = random.below(bytes.len() + 1);
        let end = bytes.len().min(place + random.below(4));
        match random.below(8) {
            0 => bytes.truncate(place),
            1 => drop(bytes.drain(place..end)),
            2 if bytes.len() < LONGEST => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                bytes.splice(place..place, other[from..].iter().copied());
            }
            3 if bytes.len() < LONGEST => {
                let again = bytes[..place].to_vec();
                bytes.splice(place..place, again);
            }
            4 if place < bytes.len() => bytes[place] ^= 1 << random.below(8),
            _ => drop(bytes.splice(place..end, SIGNS[random.below(SIGNS.len())].iter().copied())),
        }
    }
    bytes
}

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
}
