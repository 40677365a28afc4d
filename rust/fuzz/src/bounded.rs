//! A bounded run of the fuzz targets without the fuzzer: all seeds as they are, then a number of mutated ones.
//!
//! Seeds are in `rust/fuzz/seeds`, one a line with `\` escapes. The generator is deterministic, and a failing input is
//! printed in the same form. `HEADGATE_FUZZ` is the number of mutated inputs.

use std::path::Path;

/// Tokens that are inserted into seeds, or replace parts of them.
const TOKENS: [&[u8]; 32] = [
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

/// The length beyond which inputs do not grow.
const LONGEST: usize = 4096;

/// Run a target on each of its seeds, and on `count` mutated ones, or as many as `HEADGATE_FUZZ` says.
pub fn each(target: &str, count: usize, check: fn(&[u8])) {
    let seeds = seeds(target);
    assert!(!seeds.is_empty(), "{target} has no seeds");
    for seed in &seeds {
        Input(seed).run(check);
    }
    let count = std::env::var("HEADGATE_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(count);
    let mut random = Random(0x5EED);
    for _ in 0..count {
        Input(&mutated(&seeds, &mut random)).run(check);
    }
}

/// An input that is printed where the target panics.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn run(self, check: fn(&[u8])) {
        check(self.0);
    }
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing input is {}", self.0.escape_ascii());
        }
    }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(format!("{target}.txt"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines().map(|line| read(line).unwrap_or_else(|| panic!("{target} has a malformed seed: {line}"))).collect()
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

fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
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
            _ => drop(bytes.splice(place..end, TOKENS[random.below(TOKENS.len())].iter().copied())),
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
