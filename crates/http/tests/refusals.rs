//! Refusals over real connections.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use axum::Router;
use axum::body::Body;
use axum::middleware::from_fn;
use axum::routing::post;
use http::StatusCode;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// No test waits longer for anything.
const DEADLINE: Duration = Duration::from_secs(60);
const LIMIT: usize = 1 << 20;
const LARGE: usize = 8 << 20;

async fn listener() -> SocketAddr {
    let router = Router::new()
        .route("/unread", post(async || StatusCode::UNAUTHORIZED))
        .route("/read", post(read))
        .layer(from_fn(polar_http::read_to_the_end_before_refusing));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn read(body: Body) -> Result<String, StatusCode> {
    let body = axum::body::to_bytes(body, LIMIT).await;
    body.map(|body| body.len().to_string()).map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)
}

#[tokio::test]
async fn a_refusal_arrives_whatever_was_sent_with_it() {
    let address = listener().await;
    for (path, status) in [("/unread", "401"), ("/read", "413"), ("/none", "404")] {
        let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {LARGE}\r\n\r\n");
        let mut connection = TcpStream::connect(address).await.unwrap();
        // On the same connection again: it is whole.
        for _ in 0..2 {
            connection.write_all(request.as_bytes()).await.unwrap();
            connection.write_all(&vec![b'x'; LARGE]).await.unwrap();
            let answer = within(head(&mut connection)).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_wanted_comes_through_whole() {
    let mut connection = TcpStream::connect(listener().await).await.unwrap();
    let request = format!("POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: {LIMIT}\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    connection.write_all(&vec![b'x'; LIMIT]).await.unwrap();
    assert!(within(head(&mut connection)).await.starts_with("HTTP/1.1 200"));
    let mut body = vec![0; LIMIT.to_string().len()];
    within(connection.read_exact(&mut body)).await.unwrap();
    assert_eq!(body, LIMIT.to_string().as_bytes());
}

#[tokio::test]
async fn a_client_that_asks_first_is_not_told_to_send() {
    let mut connection = TcpStream::connect(listener().await).await.unwrap();
    let request = "POST /unread HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
                content-length: 8388608\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let answer = within(head(&mut connection)).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

/// The head of an answer; its body, which is short or empty, is left.
async fn head(connection: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.unwrap()
}
