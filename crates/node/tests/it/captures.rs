//! Sessions opened by hand, without a server.

use crate::cluster::{Cluster, within};
use polar_http::testing::answer_after_all;
use polar_node::{Node, NodeConfig};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

async fn alone(cluster: &Cluster) -> NodeConfig {
    NodeConfig {
        server: None,
        control_token: Some("token".to_owned()),
        ..cluster.config("alone").await
    }
}

async fn call(
    method: Method,
    url: String,
    token: &str,
    body: Option<Value>,
) -> (StatusCode, Value) {
    let client = Client::builder().no_proxy().build().unwrap();
    let request = client.request(method, url).bearer_auth(token);
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    let response = within(request.send()).await.unwrap();
    (response.status(), response.json().await.unwrap())
}

fn url(address: SocketAddr, path: &str) -> String {
    format!("http://{address}{path}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_pointed_at_the_proxy_gives_a_trajectory() {
    let cluster = Cluster::new().await;
    let node = Node::start(alone(&cluster).await).await.unwrap();
    let control = node.control_address().unwrap();
    let (status, opened) = call(Method::POST, url(control, "/sessions"), "token", None).await;
    assert_eq!(status, StatusCode::CREATED, "{opened}");
    let (secret, base) = (&opened["secret"], &opened["openai_base_url"]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    let chat = format!("{}/chat/completions", base.as_str().unwrap());
    let (status, reply) = call(Method::POST, chat, secret.as_str().unwrap(), Some(body)).await;
    assert_eq!(status, StatusCode::OK, "{reply}");

    let (_, list) = call(Method::GET, url(control, "/sessions"), "token", None).await;
    assert_eq!((list[0]["calls"].as_u64(), list.as_array().unwrap().len()), (Some(1), 1));
    let path = format!("/sessions/{}", opened["session_id"].as_str().unwrap());
    // What is refused leaves the session open, and listed as such.
    let wrong = format!("{path}?train_roles=main,boss");
    let (status, said) = call(Method::DELETE, url(control, &wrong), "token", None).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{said}");
    assert!(said.to_string().contains("train_roles"), "{said}");
    let (_, list) = call(Method::GET, url(control, "/sessions"), "token", None).await;
    assert_eq!(list.as_array().unwrap().len(), 1);
    let (status, closed) = call(Method::DELETE, url(control, &path), "token", None).await;
    assert_eq!(status, StatusCode::OK, "{closed}");
    let trace = &closed["trajectory"]["traces"][0];
    assert!(!trace["response_ids"].as_array().unwrap().is_empty());
    assert_eq!(closed["calls"][0]["reply"]["content"], reply["choices"][0]["message"]["content"]);

    // Asked again, also after a restart, it says the same; the secret is dead.
    node.shutdown(Duration::ZERO).await;
    let node = Node::start(alone(&cluster).await).await.unwrap();
    let control = node.control_address().unwrap();
    let (_, again) = call(Method::DELETE, url(control, &path), "token", None).await;
    assert_eq!(again, closed);
    let (status, _) = call(
        Method::POST,
        url(control, "/sessions"),
        "token",
        Some(json!({
            "session_id": opened["session_id"],
        })),
    )
    .await;
    assert_eq!(status, StatusCode::CONFLICT);
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_9_the_proxy_opens_no_session_and_the_control_listener_wants_its_token() {
    let cluster = Cluster::new().await;
    let node = Node::start(alone(&cluster).await).await.unwrap();
    let (control, proxy) = (node.control_address().unwrap(), node.gateway_address());
    for token in ["", "wrong", "tokenn"] {
        for method in [Method::POST, Method::GET] {
            let (status, body) = call(method, url(control, "/sessions"), token, None).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{body}");
        }
    }
    // Also when more came with it than anybody reads.
    for (token, status) in [("wrong", "401"), ("token", "413")] {
        let answer = answer_after_all(control, "POST /sessions", token, vec![b'x'; 8 << 20]);
        let line = within(answer).await.unwrap();
        assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{line}");
    }
    let (status, _) = call(Method::POST, url(proxy, "/sessions"), "token", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);

    for (body, words) in [
        (json!({"sampling": {"temperature": -1}}), "sampling.temperature"),
        (json!({"session_id": "../x"}), "session id"),
        (json!({"colour": "blue"}), "colour"),
    ] {
        let (status, said) =
            call(Method::POST, url(control, "/sessions"), "token", Some(body)).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{said}");
        assert!(said.to_string().contains(words), "{said}");
    }
    let (status, _) = call(Method::DELETE, url(control, "/sessions/none"), "token", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_prometheus_of_its_calls() {
    let cluster = Cluster::new().await;
    let node = Node::start(alone(&cluster).await).await.unwrap();
    let control = node.control_address().unwrap();
    let (_, opened) = call(Method::POST, url(control, "/sessions"), "token", None).await;
    let secret = opened["secret"].as_str().unwrap();
    let chat = format!("{}/chat/completions", opened["openai_base_url"].as_str().unwrap());
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    call(Method::POST, chat, secret, Some(body)).await;
    let page = |token: &'static str| async move {
        let client = Client::builder().no_proxy().build().unwrap();
        let asked = client.get(url(control, "/metrics")).bearer_auth(token).send();
        let answer = within(asked).await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };
    let (status, told) = page("token").await;
    assert_eq!(status, StatusCode::OK);
    for line in [
        "polar_calls_total{end=\"answered\"} 1",
        "polar_calls_total{end=\"failed\"} 0",
        "polar_call_seconds_count 1",
        "polar_engine_errors_total 0",
        "polar_engine_up 1",
        "polar_slots{stage=\"run\"} 2",
        "polar_attempts_total{reason=\"engine_loss\"} 0",
    ] {
        assert!(told.lines().any(|told| told == line), "{line} in\n{told}");
    }
    assert!(!told.contains("polar_tokens_total{kind=\"sampled\"} 0\n"), "{told}");
    assert_eq!(page("other").await.0, StatusCode::UNAUTHORIZED);
    node.shutdown(Duration::ZERO).await;
}
