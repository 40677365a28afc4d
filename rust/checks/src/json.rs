//! JSON of a bounded shape: the values that the body of a check may contain, read as Python's `json` reads them.
//!
//! Anything else is no value here, and left to Python: numbers with a fraction, null, names that are given twice, text
//! with lone surrogates, what is nested deeper or longer than any body that is answered.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::table::LeftToPython;

/// So deep is a header that is there several times, in one of several requests.
const DEEPEST: usize = 6;
const LONGEST_LIST: usize = 1000;
const MOST_NAMES: usize = 256;
/// So many names are compared with each other one by one.
const FEW_NAMES: usize = 16;

/// A value.
#[derive(Debug, PartialEq)]
pub enum Value<'a> {
    Number(i64),
    Text(Cow<'a, str>),
    List(Vec<Value<'a>>),
    /// In the order that it was sent in; no name is there twice.
    Map(Vec<(Cow<'a, str>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// The value that bytes are.
    pub fn read(bytes: &'a [u8]) -> Result<Self, LeftToPython> {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let value = Seed { deeper: DEEPEST }.deserialize(&mut deserializer).map_err(|_| LeftToPython)?;
        deserializer.end().map_err(|_| LeftToPython)?;
        Ok(value)
    }
}

/// Reads a value that may be nested so deep.
#[derive(Clone, Copy)]
struct Seed {
    deeper: usize,
}

impl Seed {
    fn below<E: Error>(self) -> Result<Self, E> {
        match self.deeper.checked_sub(1) {
            Some(deeper) => Ok(Self { deeper }),
            None => Err(E::custom("nested too deep")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Value<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("what the body of a check is made of")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value<'de>, E> {
        i64::try_from(number).map(Value::Number).map_err(E::custom)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
        let below = self.below()?;
        let mut list = Vec::new();
        while let Some(value) = items.next_element_seed(below)? {
            if list.len() == LONGEST_LIST {
                return Err(A::Error::custom("too long a list"));
            }
            list.push(value);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value<'de>, A::Error> {
        let below = self.below()?;
        let mut map: Vec<(Cow<'de, str>, Value<'de>)> = Vec::new();
        while let Some(ItemName(name)) = entries.next_key()? {
            if map.len() == MOST_NAMES {
                return Err(A::Error::custom("too many names"));
            }
            map.push((name, entries.next_value_seed(below)?));
        }
        if has_doubles(&map) {
            return Err(A::Error::custom("a name is given twice"));
        }
        Ok(Value::Map(map))
    }
}

fn has_doubles(map: &[(Cow<'_, str>, Value<'_>)]) -> bool {
    if map.len() <= FEW_NAMES {
        return map.iter().enumerate().any(|(place, (name, _))| map[..place].iter().any(|(other, _)| other == name));
    }
    let mut met = HashSet::new();
    !map.iter().all(|(name, _)| met.insert(&**name))
}

/// The name of an entry, borrowed where it is written without escapes.
struct ItemName<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for ItemName<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = ItemName<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<ItemName<'de>, E> {
        Ok(ItemName(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ItemName<'de>, E> {
        Ok(ItemName(Cow::Owned(text.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value<'_>, LeftToPython> {
        Value::read(text.as_bytes())
    }

    #[test]
    fn what_bodies_are_made_of_is_read() {
        let text = r#" {"a": [1, "x"], "b\n": {"c": "\ud83d\ude00"}} "#;
        let number = Value::Number(1);
        let list = Value::List(vec![number, Value::Text("x".into())]);
        let inner = Value::Map(vec![("c".into(), Value::Text("😀".into()))]);
        assert_eq!(read(text), Ok(Value::Map(vec![("a".into(), list), ("b\n".into(), inner)])));
    }

    #[test]
    fn anything_else_is_left_to_python() {
        for text in [
            "",
            "null",
            "true",
            "1.0",
            "1e3",
            "-0.5",
            "9223372036854775808",
            "NaN",
            "{\"a\": 1, \"a\": 1}",
            "{\"a\": 1, \"\\u0061\": 1}",
            "\"\\ud800\"",
            "\"a\nb\"",
            "{} {}",
            "[[[[[[[1]]]]]]]",
            "\u{feff}{}",
            "[1,]",
        ] {
            assert_eq!(read(text), Err(LeftToPython), "{text}");
        }
        assert_eq!(Value::read(b"\"\xff\""), Err(LeftToPython));
        let many: Vec<String> = (0..300).map(|number| format!("\"{number}\": 1")).collect();
        assert_eq!(read(&format!("{{{}}}", many.join(","))), Err(LeftToPython));
        let doubled: Vec<String> = (0..100).map(|number| format!("\"{}\": 1", number % 99)).collect();
        assert_eq!(read(&format!("{{{}}}", doubled.join(","))), Err(LeftToPython));
        assert_eq!(read(&format!("[{}1]", "1,".repeat(1000))), Err(LeftToPython));
        assert!(read(&format!("[{}1]", "1,".repeat(999))).is_ok());
    }
}
