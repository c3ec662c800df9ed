//! Telling the client's URL, with a real receiver.

use crate::support::{DEADLINE, Fixture, report_of};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use polar_server::{EVENT_ID_HEADER, SIGNATURE_HEADER, sign};
use polar_types::Outcome;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// A receiver that answers what it is told to, and keeps what came.
struct Receiver {
    url: String,
    answer: Arc<Mutex<StatusCode>>,
    received: watch::Receiver<Vec<(HeaderMap, Bytes)>>,
}

type Shared = (Arc<Mutex<StatusCode>>, watch::Sender<Vec<(HeaderMap, Bytes)>>);

impl Receiver {
    async fn start(answer: StatusCode) -> Self {
        let answer = Arc::new(Mutex::new(answer));
        let (sender, received) = watch::channel(Vec::new());
        let take = |State((answer, sender)): State<Shared>, headers: HeaderMap, body: Bytes| async move {
            sender.send_modify(|all| all.push((headers, body)));
            *answer.lock().unwrap()
        };
        let app = Router::new()
            .route("/results", axum::routing::post(take))
            .with_state((Arc::clone(&answer), sender));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/results", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, answer, received }
    }

    fn answer_from_now(&self, status: StatusCode) {
        *self.answer.lock().unwrap() = status;
    }

    /// Waits until so many requests came.
    async fn received(&self, count: usize) -> Vec<(HeaderMap, Bytes)> {
        let mut received = self.received.clone();
        let enough = received.wait_for(|all| all.len() >= count);
        timeout(DEADLINE, enough).await.expect("too few requests came").unwrap().clone()
    }
}

async fn end_a_session(server: &Fixture, url: &str) {
    server
        .submit(json!({ "task_id": "t", "metadata": { "step": 7 },
        "callback": { "url": url, "secret": "s3cret" } }))
        .await;
    let lease = server.lease("n1", 1).await.remove(0);
    server.report(&report_of(&lease, "n1", Outcome::Completed)).await;
}

fn id_of(request: &(HeaderMap, Bytes)) -> &str {
    request.0[EVENT_ID_HEADER].to_str().unwrap()
}

#[tokio::test]
async fn ends_are_told_once_signed_and_with_the_result() {
    let receiver = Receiver::start(StatusCode::OK).await;
    let server = Fixture::start().await;
    end_a_session(&server, &receiver.url).await;
    let mut received = receiver.received(2).await;
    received.sort_by_key(|request| id_of(request).to_owned());
    let bodies: Vec<Value> =
        received.iter().map(|(_, body)| serde_json::from_slice(body).unwrap()).collect();
    assert_eq!(
        received.iter().map(id_of).collect::<Vec<_>>(),
        ["t-s0:session.ended", "t:task.ended"]
    );
    assert_eq!(bodies[0]["session"]["attempts"][0]["report"]["reward"], json!(1.0));
    assert_eq!(bodies[0]["event"]["kind"], "session.ended");
    assert_eq!(bodies[0]["task"]["metadata"], json!({ "step": 7 }));
    assert_eq!(bodies[1]["task"]["status"], "completed");

    for (headers, body) in &received {
        let signature = headers[SIGNATURE_HEADER].to_str().unwrap();
        let seconds = signature.split(',').next().unwrap().strip_prefix("t=").unwrap();
        assert_eq!(signature, sign("s3cret", seconds.parse().unwrap(), body));
        assert_ne!(signature, sign("other", seconds.parse().unwrap(), body));
        assert!(!String::from_utf8_lossy(body).contains("s3cret"));
    }
    server.until("/api/sessions/t-s0", |s| s["callback"]["status"] == "delivered").await;
    let task = server.until("/api/tasks/t", |t| t["callback"]["status"] == "delivered").await;
    assert_eq!(task["callback"]["attempts"], 1);
}

#[tokio::test]
async fn promise_4_a_callback_survives_refusals_and_restarts_under_one_id() {
    let receiver = Receiver::start(StatusCode::SERVICE_UNAVAILABLE).await;
    let mut server = Fixture::start().await;
    end_a_session(&server, &receiver.url).await;
    let first = receiver.received(2).await;
    let session =
        server.until("/api/sessions/t-s0", |s| s["callback"]["attempts"] == json!(1)).await;
    assert_eq!(session["callback"]["status"], "pending");
    assert!(session["callback"]["error"].as_str().unwrap().contains("503"));
    server.until("/api/tasks/t", |t| t["callback"]["attempts"] == json!(1)).await;
    server.down().await;

    receiver.answer_from_now(StatusCode::NO_CONTENT);
    server.up().await;
    // Not before its pause is over, on the server's clock.
    assert_eq!(receiver.received(2).await.len(), 2);
    server.clock.advance(Duration::from_secs(2));
    let all = receiver.received(4).await;
    let mut first: Vec<_> = first.iter().map(id_of).collect();
    let mut second: Vec<_> = all[2..].iter().map(id_of).collect();
    first.sort_unstable();
    second.sort_unstable();
    assert_eq!(first, second, "a repeat carries the same id");
    server.until("/api/sessions/t-s0", |s| s["callback"]["status"] == "delivered").await;
}

#[tokio::test]
async fn promise_6_a_callback_that_is_never_taken_ends_and_shows_it() {
    let receiver = Receiver::start(StatusCode::INTERNAL_SERVER_ERROR).await;
    let server = Fixture::start_with(|config| {
        config.callbacks.give_up_after = Duration::from_secs(10);
    })
    .await;
    end_a_session(&server, &receiver.url).await;
    for attempt in 1..=4_u32 {
        server
            .until("/api/sessions/t-s0", |s| {
                s["callback"]["attempts"].as_u64() >= Some(attempt.into())
            })
            .await;
        // 1, 2, 4 and 8 seconds: the pauses double until the next would be too late.
        server.clock.advance(Duration::from_secs(1 << (attempt - 1)));
    }
    let session = server.until("/api/sessions/t-s0", |s| s["callback"]["status"] == "failed").await;
    assert!(session["callback"]["error"].as_str().unwrap().contains("500"));
    assert_eq!(session["callback"]["attempts"], 4);
    assert_eq!(session["status"], "completed", "the session itself is not touched");
}

#[tokio::test]
async fn a_receiver_that_cannot_be_reached_or_is_gone_is_told_apart() {
    let gone = Receiver::start(StatusCode::GONE).await;
    let server = Fixture::start().await;
    end_a_session(&server, &gone.url).await;
    let session = server.until("/api/sessions/t-s0", |s| s["callback"]["status"] == "failed").await;
    assert_eq!(session["callback"]["attempts"], 1);

    // Nobody listens on the port of a listener that was dropped.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    server.submit(json!({ "task_id": "u", "callback": url })).await;
    let lease = server.lease("n1", 1).await.remove(0);
    server.report(&report_of(&lease, "n1", Outcome::Completed)).await;
    let session =
        server.until("/api/sessions/u-s0", |s| s["callback"]["attempts"] == json!(1)).await;
    assert_eq!(session["callback"]["status"], "pending");
}
