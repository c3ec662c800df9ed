//! Reading the event log by cursor.

use crate::support::{DEADLINE, Fixture, report_of};
use polar_types::Outcome;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Runs a task of two samples to its end.
async fn run_task(server: &Fixture, id: &str) {
    server.submit(json!({ "task_id": id, "num_samples": 2 })).await;
    for lease in server.lease("n1", 2).await {
        server.report(&report_of(&lease, "n1", Outcome::Completed)).await;
    }
}

#[tokio::test]
async fn promise_5_a_cursor_gives_each_result_once_over_restarts_of_either_side() {
    let mut server = Fixture::start().await;
    let mut cursor = 0;
    let mut seen = Vec::new();
    for round in 0..4 {
        run_task(&server, &format!("t{round}")).await;
        // The reader takes small pages, and between two of them the server may restart: the
        // cursor is all that the reader keeps.
        for page in 0.. {
            let path = format!("/api/events?after={cursor}&limit=1&kinds=session.ended");
            let (_, answer) = server.get(&path).await;
            cursor = answer["cursor"].as_u64().unwrap();
            let events = answer["events"].as_array().unwrap();
            seen.extend(events.iter().map(|e| e["session_id"].as_str().unwrap().to_owned()));
            if page == 0 {
                server.down().await;
                server.up().await;
            }
            if events.is_empty() {
                break;
            }
        }
    }
    let expected: Vec<String> =
        (0..4).flat_map(|t| (0..2).map(move |s| format!("t{t}-s{s}"))).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_reader_that_waits_is_told_at_once_and_passes_what_it_filters() {
    let server = Fixture::start().await;
    let wait = async { server.get("/api/events?wait_seconds=40&kinds=task.ended").await };
    let ((_, page), ()) =
        timeout(DEADLINE, async { tokio::join!(wait, run_task(&server, "t")) }).await.unwrap();
    assert_eq!(page["events"][0]["kind"], "task.ended");
    assert_eq!(page["events"][0]["data"]["status"], "completed");
    let last = page["cursor"].as_u64().unwrap();
    let (_, page) = server.get(&format!("/api/events?after={last}&task_id=t")).await;
    assert_eq!(page, json!({ "events": [], "cursor": last }));
}

#[tokio::test]
async fn a_server_that_ends_lets_its_waiting_readers_go() {
    let mut server = Fixture::start().await;
    let (client, url) = (server.client.clone(), server.url("/api/events?wait_seconds=50"));
    let waiting = tokio::spawn(async move { client.get(url).send().await.unwrap().text().await });
    server.until("/api/health", |health| health["status"] == "ok").await;
    timeout(DEADLINE, server.down()).await.unwrap();
    // Told that there is nothing, or cut off before it was heard; never left hanging.
    let _ = timeout(DEADLINE, waiting).await.unwrap();
}

#[tokio::test]
async fn server_sent_events_resume_after_the_last_one_read() {
    let server = Fixture::start().await;
    run_task(&server, "t").await;
    let follow = |last: Option<&str>| {
        let mut request =
            server.request(Method::GET, "/api/events").header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        request
    };
    let first = read_events(follow(None), 3).await;
    assert_eq!(first[0].0, "1");
    assert_eq!(first[0].1["kind"], "task.created");
    // New ones come on the open stream.
    let more = async {
        run_task(&server, "u").await;
    };
    let (rest, ()) = tokio::join!(read_events(follow(Some("3")), 6), more);
    let numbers: Vec<&str> = rest.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(numbers, ["4", "5", "6", "7", "8", "9"]);
}

/// So many events of a stream, as id and data.
async fn read_events(request: reqwest::RequestBuilder, count: usize) -> Vec<(String, Value)> {
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let reading = async {
        while text.matches("\n\n").count() < count {
            text.push_str(std::str::from_utf8(&answer.chunk().await.unwrap().unwrap()).unwrap());
        }
    };
    timeout(DEADLINE, reading).await.unwrap();
    let field = |event: &str, name: &str| {
        event.lines().find_map(|line| line.strip_prefix(name)).map(|v| v.trim().to_owned())
    };
    text.split("\n\n")
        .take(count)
        .map(|event| {
            let data = field(event, "data:").unwrap();
            (field(event, "id:").unwrap(), serde_json::from_str(&data).unwrap())
        })
        .collect()
}
