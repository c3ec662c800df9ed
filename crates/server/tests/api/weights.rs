//! New weights, asked for over HTTP.

use crate::support::Fixture;
use reqwest::StatusCode;
use serde_json::json;

#[tokio::test]
async fn what_is_wrong_with_a_push_of_weights_is_named_in_the_words_of_json() {
    let server = Fixture::start().await;
    let cases = [
        (json!({ "version": "1" }), "source", "is missing"),
        (json!({ "version": "1", "source": "label" }), "source", "an object"),
        (json!({ "version": "1", "source": {} }), "source", "an object with one field"),
        (json!({ "version": "1", "source": { "label": null } }), "source", "not null"),
        (json!({ "version": "a b", "source": { "label": {} } }), "version", "letters, digits"),
        (
            json!({ "version": "1", "source": { "disk": { "path": "" } } }),
            "source.disk.path",
            "must not be empty",
        ),
        (
            json!({ "version": "1", "source": { "label": {} }, "deadline_seconds": 0 }),
            "deadline_seconds",
            "more than 0",
        ),
        (json!({ "version": "1", "source": { "label": {} }, "mode": "stop" }), "mode", "drain"),
    ];
    for (body, field, what) in cases {
        let (status, answer) = server.post("/api/weights", &body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {answer}");
        let problem = &answer["error"]["problems"][0];
        let said = problem["problem"].as_str().unwrap();
        assert!(problem["field"].as_str().unwrap().starts_with(field), "{answer}");
        assert!(said.contains(what), "{answer}");
        for rust in ["variant", "struct", "sequence", "enum"] {
            assert!(!said.contains(rust), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_version_is_one_update() {
    let server = Fixture::start().await;
    let push = json!({ "version": "1", "source": { "label": {} } });
    let (status, answer) = server.post("/api/weights", &push).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let (status, again) = server.post("/api/weights", &push).await;
    assert_eq!((status, &again["version"]), (StatusCode::OK, &json!("1")));
    let other = json!({ "version": "1", "source": { "disk": { "path": "/ckpt/1" } } });
    let (status, refused) = server.post("/api/weights", &other).await;
    assert_eq!(status, StatusCode::CONFLICT, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("source"), "{refused}");
    let problem = &refused["error"]["problems"][0];
    assert_eq!(
        (&problem["field"], &problem["example"]),
        (&json!("source"), &json!(r#"{"label":{}}"#))
    );
}
