//! When two spellings of a call's arguments say the same.
//!
//! Clients that read arguments as JSON and write them again change blanks, escapes, the order of
//! keys and the spelling of numbers (`1.0`, `1`, `1e0`). That much is the same. Anything else is
//! an edit: another value, a key more or less, a text without the blanks at its end.

use polar_wire::json::Node;
use std::collections::HashMap;

/// Whether what came back says what was sampled. Arguments that are no JSON say only themselves.
pub(crate) fn say_the_same(sampled: &str, came_back: &str) -> bool {
    sampled == came_back
        || read(came_back).is_some_and(|came_back| says_what_was_sampled(sampled, &came_back))
}

/// The same, where what came back is read already. A call without arguments has an empty object.
pub(crate) fn says_what_was_sampled(sampled: &str, came_back: &Node<'_>) -> bool {
    match sampled.trim().is_empty() {
        true => *came_back == Node::Object(Vec::new()),
        false => read(sampled).is_some_and(|sampled| equal(&sampled, came_back)),
    }
}

fn read(text: &str) -> Option<Node<'_>> {
    serde_json::from_str(text).ok()
}

fn equal(one: &Node<'_>, other: &Node<'_>) -> bool {
    match (one, other) {
        (Node::Number(one), Node::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Node::List(one), Node::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Node::Object(one), Node::Object(other)) => {
            let (one, other) = (last_values(one), last_values(other));
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(name, value)| other.get(name).is_some_and(|other| equal(value, other)))
        }
        _ => one == other,
    }
}

/// Of a name that occurs twice the last value counts, as for other readers of JSON.
fn last_values<'a, 'n>(fields: &'a polar_wire::json::Fields<'n>) -> HashMap<&'a str, &'a Node<'n>> {
    fields.iter().map(|(name, value)| (name.as_ref(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_spelling_is_no_edit() {
        let same = [
            (r#"{"a":1,"b":2}"#, r#"{ "b" : 2, "a" : 1 }"#),
            (r#"{"a":1.0}"#, r#"{"a":1}"#),
            (r#"{"a":1e4}"#, r#"{"a":10000}"#),
            (r#"{"a":"\u00fc\/"}"#, r#"{"a":"ü/"}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#"{"a":[{"b":1,"c":2}]}"#, r#"{"a":[{"c":2,"b":1}]}"#),
            ("", "{}"),
            (" \n", "{}"),
            ("no JSON", "no JSON"),
        ];
        for (sampled, came_back) in same {
            assert!(say_the_same(sampled, came_back), "{sampled} and {came_back}");
        }
        let other = [
            (r#"{"a":"x "}"#, r#"{"a":"x"}"#),
            (r#"{"a":"5"}"#, r#"{"a":5}"#),
            // The same letter, composed and not: another name of a file.
            (r#"{"a":"\u00fc"}"#, r#"{"a":"u\u0308"}"#),
            (r#"{"a":1}"#, r#"{"a":1,"b":false}"#),
            (r#"{"a":1,"b":null}"#, r#"{"a":1}"#),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
            (r#"{"a":1}"#, "{}"),
            ("no JSON", "{}"),
            ("{}", "no JSON"),
        ];
        for (sampled, came_back) in other {
            assert!(!say_the_same(sampled, came_back), "{sampled} and {came_back}");
        }
    }
}
