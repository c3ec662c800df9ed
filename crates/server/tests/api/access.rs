//! Who may do what.

use crate::support::{DEADLINE, Fixture, ManualClock, config, json_of, node_info};
use polar_http::testing::answer_after_all;
use polar_server::{Server, StartError};
use reqwest::{Method, StatusCode};
use serde_json::json;

#[tokio::test]
async fn promise_9_no_address_but_loopback_without_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let mut open = config(folder.path(), &ManualClock::new());
    open.bind = "0.0.0.0:0".parse().unwrap();
    // A node token does not close the control API.
    open.node_token = Some("node".to_owned());
    let refused = Server::start(open.clone()).await.err().unwrap();
    assert!(matches!(refused, StartError::Open(_)), "{refused}");
    open.control_token = Some(String::new());
    let refused = Server::start(open.clone()).await.err().unwrap();
    assert!(matches!(refused, StartError::EmptyToken("control")), "{refused}");
    open.control_token = Some("control".to_owned());
    Server::start(open).await.unwrap().shutdown().await;
}

#[tokio::test]
async fn promise_9_each_side_needs_its_own_token() {
    let server = Fixture::start_with(|config| {
        config.control_token = Some("control".to_owned());
        config.node_token = Some("node".to_owned());
    })
    .await;
    let blob = format!("/api/blobs/{}", "0".repeat(64));
    // What each of no token, a wrong one, the control token and the node token is told.
    let cases = [
        (Method::GET, "/api/health", [200, 200, 200, 200]),
        (Method::GET, "/api/version", [200, 200, 200, 200]),
        (Method::GET, "/api/openapi.json", [200, 200, 200, 200]),
        (Method::GET, "/api/tasks", [401, 401, 200, 401]),
        (Method::GET, "/api/events", [401, 401, 200, 401]),
        (Method::GET, "/api/nodes", [401, 401, 200, 401]),
        (Method::POST, "/api/tasks", [401, 401, 422, 401]),
        (Method::DELETE, "/api/tasks/t", [401, 401, 404, 401]),
        (Method::GET, "/api/sessions/s/logs", [401, 401, 404, 401]),
        (Method::POST, "/api/nodes/n1/lease", [401, 401, 401, 422]),
        (Method::POST, "/api/nodes/n1/renew", [401, 401, 401, 422]),
        (Method::POST, "/api/nodes/n1/release", [401, 401, 401, 422]),
        (Method::POST, "/api/sessions/s/result", [401, 401, 401, 422]),
        (Method::PUT, blob.as_str(), [401, 401, 401, 422]),
        (Method::GET, blob.as_str(), [401, 401, 404, 404]),
    ];
    for (method, path, expected) in cases {
        for (token, expected) in
            [None, Some("wrong"), Some("control"), Some("node")].into_iter().zip(expected)
        {
            let mut request = server.request(method.clone(), path);
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let status = request.send().await.unwrap().status();
            assert_eq!(status.as_u16(), expected, "{method} {path} with {token:?}");
        }
    }
}

#[tokio::test]
async fn nodes_use_the_control_token_when_there_is_no_other() {
    let server = Fixture::start_with(|config| config.control_token = Some("c".to_owned())).await;
    let ask = json!({ "node": node_info("n1", "boot-1"), "free": 1 });
    let request = server.request(Method::POST, "/api/nodes/n1/lease").json(&ask);
    assert_eq!(json_of(request.try_clone().unwrap()).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(json_of(request.bearer_auth("c")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn promise_9_a_web_page_of_elsewhere_cannot_use_a_browser_against_it() {
    let server = Fixture::start().await;
    let own = server.url("");
    let cases = [
        ("origin", "http://evil.example", StatusCode::FORBIDDEN),
        ("origin", "null", StatusCode::FORBIDDEN),
        ("host", "evil.example", StatusCode::FORBIDDEN),
        ("host", "evil.example:50051", StatusCode::FORBIDDEN),
        ("origin", own.as_str(), StatusCode::OK),
        ("host", "localhost:50051", StatusCode::OK),
        ("host", "[::1]:50051", StatusCode::OK),
    ];
    for (header, value, expected) in cases {
        let request = server.request(Method::GET, "/api/tasks").header(header, value);
        let (status, answer) = json_of(request).await;
        assert_eq!(status, expected, "{header}: {value}: {answer}");
    }
}

#[tokio::test]
async fn a_refusal_arrives_whatever_was_sent_with_it() {
    let server = Fixture::start_with(|config| {
        config.control_token = Some("control".to_owned());
        config.body_limit = 1 << 20;
    })
    .await;
    let blob = format!("PUT /api/blobs/{}", "0".repeat(64));
    let cases = [
        ("POST /api/tasks", "wrong", StatusCode::UNAUTHORIZED),
        ("POST /api/nodes/n1/lease", "wrong", StatusCode::UNAUTHORIZED),
        (blob.as_str(), "wrong", StatusCode::UNAUTHORIZED),
        ("PUT /api/blobs/no-hash", "control", StatusCode::UNPROCESSABLE_ENTITY),
        ("POST /api/tasks", "control", StatusCode::PAYLOAD_TOO_LARGE),
        ("POST /api/nothing", "control", StatusCode::NOT_FOUND),
        ("PUT /api/tasks", "control", StatusCode::METHOD_NOT_ALLOWED),
    ];
    for (request, token, status) in cases {
        let address = server.url("").trim_start_matches("http://").parse().unwrap();
        let answer = answer_after_all(address, request, token, vec![b'x'; 8 << 20]);
        let line = tokio::time::timeout(DEADLINE, answer).await.unwrap().unwrap();
        assert!(line.starts_with(&format!("HTTP/1.1 {}", status.as_u16())), "{request}: {line}");
    }
}

#[tokio::test]
async fn the_api_describes_itself() {
    let server = Fixture::start().await;
    let (status, document) = server.get("/api/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(document, serde_json::to_value(polar_server::openapi()).unwrap());
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/api/tasks",
        "/api/tasks/{id}",
        "/api/tasks/{id}/sessions",
        "/api/tasks/{id}/trajectories",
        "/api/tasks/{id}/regrade",
        "/api/sessions/{id}",
        "/api/sessions/{id}/trajectory",
        "/api/sessions/{id}/calls",
        "/api/sessions/{id}/logs",
        "/api/sessions/{id}/result",
        "/api/events",
        "/api/nodes",
        "/api/nodes/{id}/lease",
        "/api/nodes/{id}/renew",
        "/api/nodes/{id}/release",
        "/api/blobs/{sha256}",
        "/api/health",
        "/api/version",
    ] {
        assert!(paths.contains_key(path), "{path} is not described");
    }
    // Every name that is referred to is defined.
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(!document["components"]["schemas"][name].is_null(), "{name} is not defined");
    }
}
