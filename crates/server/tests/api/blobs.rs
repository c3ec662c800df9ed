//! Blobs over HTTP.

use crate::support::{Fixture, json_of};
use reqwest::{Method, StatusCode};
use serde_json::json;

#[tokio::test]
async fn blobs_go_in_by_hash_and_come_out_in_ranges() {
    let server = Fixture::start().await;
    let file = server.upload("x", "0123456789").await;
    let again = server.upload("x", "0123456789").await;
    assert_eq!(again, file);
    let path = format!("/api/blobs/{}", file.sha256);
    for (range, status, text, content_range) in [
        (None, 200, "0123456789", None),
        (Some("bytes=2-4"), 206, "234", Some("bytes 2-4/10")),
        (Some("bytes=-3"), 206, "789", Some("bytes 7-9/10")),
        (Some("bytes=8-"), 206, "89", Some("bytes 8-9/10")),
        (Some("bytes=0-1,4-5"), 200, "0123456789", None),
    ] {
        let mut request = server.request(Method::GET, &path);
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{range:?}");
        let header = answer.headers().get("content-range").map(|v| v.to_str().unwrap().to_owned());
        assert_eq!(header.as_deref(), content_range);
        assert_eq!(answer.text().await.unwrap(), text);
    }
    let beyond = server.request(Method::GET, &path).header("range", "bytes=10-");
    let (status, answer) = json_of(beyond).await;
    assert_eq!(status, StatusCode::RANGE_NOT_SATISFIABLE, "{answer}");
}

#[tokio::test]
async fn blobs_of_another_hash_or_too_large_are_refused() {
    let server = Fixture::start_with(|config| config.blob_limit = 10).await;
    let file = server.upload("x", "0123456789").await;
    let path = format!("/api/blobs/{}", file.sha256);
    let (status, answer) = json_of(server.request(Method::PUT, &path).body("other")).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid"))
    );
    let (status, answer) = json_of(server.request(Method::PUT, &path).body("0123456789+")).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &json!("too_large"))
    );
}
