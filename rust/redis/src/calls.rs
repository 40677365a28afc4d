//! Packing calls of scripts as the bytes of commands: `headgate.stores.redis.commands`.

use headgate_core::limit::Limit;
use smallvec::SmallVec;

/// The most bytes of a key's text in the name of a Redis key; longer ones are named by a digest, which Python computes.
const LONGEST_NAME: usize = 128;

/// The argument that tells a script to charge.
const HIT: f64 = 0.0;
/// The argument for "no delay is too long", and for "use the server's own clock".
const NONE: f64 = -1.0;

/// A limit as the scripts see it: `headgate.stores.redis.commands.Member`.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its integers.
    pub limit: Limit,
    /// The integers in the form that the scripts read.
    pub numbers: Box<[u8]>,
    /// The hash field of its state.
    pub field: Box<[u8]>,
    /// The byte that tells the script for any number of limits which algorithm to use.
    pub kind: u8,
    /// Whether it is a shadow limit.
    pub shadow: bool,
    /// The index of its key and cost among those of an operation.
    pub group: usize,
    /// What follows the key in the name of its Redis key.
    pub tail: Box<[u8]>,
}

/// The arguments of a script beside its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The numbers of one limit.
    One,
    /// The numbers of a few limits.
    Few,
    /// Kinds, and then the numbers and the field of each of any number of limits.
    Several,
}

/// A script that decides the limits.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its SHA1 digest in hexadecimal, by which a server knows it.
    pub sha: Box<[u8]>,
    /// The arguments it takes.
    pub form: Form,
}

/// The call that decides a set of limits together.
#[derive(Clone, Debug)]
pub struct Calls {
    /// The prefix before the key in the name of a Redis key.
    pub head: Box<[u8]>,
    /// The limits, in the order of their definitions.
    pub members: Box<[Member]>,
    /// The indexes of the limits in the order that the scripts get them in.
    pub order: Box<[usize]>,
    /// The script for limits of one Redis key.
    pub together: Script,
    /// The script for limits of several.
    pub apart: Script,
}

impl Calls {
    /// Whether a call for these keys can be packed here.
    pub fn can_pack<K: AsRef<str>>(&self, keys: &[K]) -> bool {
        keys.iter().all(|key| key.as_ref().len() <= LONGEST_NAME)
    }

    /// Add the command that charges a key and a cost for each group, at a moment or by the server's clock.
    ///
    /// The keys are texts of `encode_key` for which `can_pack` holds.
    pub fn pack<K: AsRef<str>>(&self, keys: &[K], costs: &[i64], now_us: Option<i64>, packed: &mut Vec<u8>) {
        let in_order = || self.order.iter().map(|place| &self.members[*place]);
        let first = &self.members[self.order[0]];
        let same_key = |one: &Member| one.tail == first.tail && keys[one.group].as_ref() == keys[first.group].as_ref();
        let is_together = in_order().all(same_key);
        let script = if is_together { &self.together } else { &self.apart };
        let count = self.order.len();
        let one_key = script.form != Form::Several && is_together;
        let named = if one_key { 1 } else { count };
        let is_usual = now_us.is_none() && in_order().all(|member| costs[member.group] == 1);
        let arguments = match script.form {
            Form::One => 1 + usize::from(!is_usual),
            Form::Few => count + usize::from(!is_usual || in_order().any(|member| member.shadow)),
            Form::Several => 1 + 2 * count,
        };
        push_head(packed, b'*', 3 + named + arguments);
        push(packed, &[b"EVALSHA"]);
        push(packed, &[&script.sha]);
        push(packed, &[named.to_string().as_bytes()]);
        for member in in_order().take(named) {
            push(packed, &[&self.head, keys[member.group].as_ref().as_bytes(), &member.tail]);
        }
        let mut options: SmallVec<[u8; 64]> = SmallVec::new();
        for number in [HIT, NONE, now_us.map_or(NONE, |now_us| now_us as f64)] {
            options.extend_from_slice(&number.to_le_bytes());
        }
        let cost_of = |member: &Member| (costs[member.group] as f64).to_le_bytes();
        match script.form {
            Form::One => {
                push(packed, &[&first.numbers]);
                if !is_usual {
                    push(packed, &[&options, &cost_of(first)]);
                }
            }
            Form::Few => {
                for member in in_order() {
                    push(packed, &[&member.numbers]);
                }
                if arguments > count {
                    for member in in_order() {
                        options.extend_from_slice(&cost_of(member));
                        options.push(u8::from(member.shadow));
                    }
                    push(packed, &[&options]);
                }
            }
            Form::Several => {
                let mut kinds: SmallVec<[u8; 64]> = in_order().map(|member| member.kind).collect();
                if !is_usual {
                    kinds.extend_from_slice(&options);
                    for member in in_order() {
                        kinds.extend_from_slice(&cost_of(member));
                    }
                }
                push(packed, &[&kinds]);
                for member in in_order() {
                    push(packed, &[&member.numbers]);
                    push(packed, &[&member.field]);
                }
            }
        }
    }
}

/// Append a word of a command, joined from parts.
fn push(packed: &mut Vec<u8>, parts: &[&[u8]]) {
    push_head(packed, b'$', parts.iter().map(|part| part.len()).sum());
    for part in parts {
        packed.extend_from_slice(part);
    }
    packed.extend_from_slice(b"\r\n");
}

fn push_head(packed: &mut Vec<u8>, mark: u8, number: usize) {
    packed.push(mark);
    if number < 10 {
        packed.push(b'0' + number as u8);
    } else {
        packed.extend_from_slice(number.to_string().as_bytes());
    }
    packed.extend_from_slice(b"\r\n");
}
