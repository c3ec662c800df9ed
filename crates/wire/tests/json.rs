//! The borrowing tree says what [`serde_json::Value`] says.

use polar_wire::json::Node;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::borrow::Cow;

#[test]
fn texts_and_names_without_escapes_borrow_from_the_body() {
    let body = r#"{"plain":"text","esc\n":"a\tb"}"#.to_owned();
    let Ok(Node::Object(fields)) = serde_json::from_str(&body) else { panic!("an object") };
    assert!(matches!(&fields[0], (Cow::Borrowed("plain"), Node::Text(Cow::Borrowed("text")))));
    assert_eq!(fields[1], (Cow::Borrowed("esc\n"), Node::Text(Cow::Borrowed("a\tb"))));
}

#[test]
fn of_fields_with_one_name_the_last_is_got() {
    let node: Node<'_> = serde_json::from_str(r#"{"a":1,"a":null,"b":2}"#).unwrap();
    assert!(node.get("a").is_some_and(Node::is_null));
    assert_eq!(node.clone().into_value(), json!({"a": null, "b": 2}));
    assert_eq!(node.to_string(), r#"{"a":1,"a":null,"b":2}"#);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}|[\"\\\\\n\u{1}]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec(("[a-c\"]{0,2}", inner), 0..5)
                .prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn a_tree_is_the_value_of_the_same_text(value in any_json()) {
        let text = value.to_string();
        let value: Value = serde_json::from_str(&text).unwrap();
        let node: Node<'_> = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(node.to_string(), value.to_string());
        prop_assert_eq!(node.into_value(), value);
    }
}
