//! A relay that copies bytes and reads nothing of them: the least that anything between
//! harness and engine costs on the machine.

use anyhow::Result;
use std::io::Write as _;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};

pub(crate) async fn serve(to: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    loop {
        let (mut client, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut engine = TcpStream::connect(to).await?;
            client.set_nodelay(true)?;
            engine.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut engine).await
        });
    }
}
