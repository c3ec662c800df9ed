//! A client for the tests of the listeners.

use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The first line of the answer to a client that sends everything before it reads.
/// `request` is method and path.
pub async fn answer_after_all(
    address: SocketAddr,
    request: &str,
    token: &str,
    body: Vec<u8>,
) -> io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let head = format!(
        "{request} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(&body).await?;
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line).await?;
    Ok(line)
}
