//! Numbers for JSON values, so that each message and each set of tools is stored once.
//!
//! The writer keeps a keyed 64-bit hash per value and not the value: its memory must not
//! grow with the text. The key is drawn anew for each journal, so equal hashes cannot be
//! provoked, and among a hundred thousand values the odds of a chance one are below one in a
//! billion.

use serde_json::Value;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// Which values were seen, and under which number.
#[derive(Debug, Default)]
pub(crate) struct ValueNumbers {
    numbers: HashMap<u64, u32>,
    key: RandomState,
}

/// Values that a record adds; part of the numbering only once the record is written.
#[derive(Debug, Default)]
pub(crate) struct FreshValues<'a> {
    pub(crate) values: Vec<&'a Value>,
    hashes: HashMap<u64, u32>,
}

impl ValueNumbers {
    /// The number of `value`: a known one, or the next free one, noted in `fresh`.
    pub(crate) fn number<'a>(&self, value: &'a Value, fresh: &mut FreshValues<'a>) -> u32 {
        let hash = self.hash(value);
        if let Some(number) = self.numbers.get(&hash) {
            return *number;
        }
        let next = (self.numbers.len() + fresh.values.len()) as u32;
        *fresh.hashes.entry(hash).or_insert_with(|| {
            fresh.values.push(value);
            next
        })
    }

    /// Makes the values of a written record known.
    pub(crate) fn keep(&mut self, fresh: FreshValues<'_>) {
        self.numbers.extend(fresh.hashes);
    }

    /// Bytes held, counting what is reserved.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.numbers.capacity() * (size_of::<(u64, u32)>() + 1)
    }

    fn hash(&self, value: &Value) -> u64 {
        let mut hasher = self.key.build_hasher();
        hash_exactly(value, &mut hasher);
        hasher.finish()
    }
}

/// Takes the order of keys into account, which `Value`'s own hash does not: what comes
/// back must be what went in, as it was spelled.
fn hash_exactly(value: &Value, hasher: &mut impl Hasher) {
    match value {
        Value::Null => 0u8.hash(hasher),
        Value::Bool(flag) => (1u8, flag).hash(hasher),
        // A number's own hash takes 0.0 and -0.0 for the same.
        Value::Number(number) => {
            let bits = number.as_f64().filter(|_| number.is_f64()).map(f64::to_bits);
            (2u8, number, bits).hash(hasher);
        }
        Value::String(text) => (3u8, text).hash(hasher),
        Value::Array(items) => {
            (4u8, items.len()).hash(hasher);
            items.iter().for_each(|item| hash_exactly(item, hasher));
        }
        Value::Object(entries) => {
            (5u8, entries.len()).hash(hasher);
            for (key, item) in entries {
                key.hash(hasher);
                hash_exactly(item, hasher);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_spelling_has_one_number_and_every_difference_another() {
        let values = [
            json!({"role": "user", "content": "a"}),
            json!({"content": "a", "role": "user"}),
            json!({"role": "user", "content": ["a"]}),
            json!([["a"], []]),
            json!([["a", []]]),
            json!(1),
            json!(1.0),
            json!(0.0),
            json!(-0.0),
            json!("1"),
            json!(null),
            json!(false),
        ];
        let mut numbers = ValueNumbers::default();
        let mut fresh = FreshValues::default();
        let first: Vec<u32> =
            values.iter().map(|value| numbers.number(value, &mut fresh)).collect();
        assert_eq!(first, (0..values.len() as u32).collect::<Vec<_>>());
        numbers.keep(fresh);
        let mut fresh = FreshValues::default();
        let again: Vec<u32> =
            values.iter().map(|value| numbers.number(value, &mut fresh)).collect();
        assert_eq!(again, first);
        assert!(fresh.values.is_empty());
    }
}
