//! What a command prints, kept in a file on the host up to a limit.

use crate::{Exec, SandboxError};
use std::io;
use std::path::{Path, PathBuf};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// A file that takes so many bytes, counts the rest, and says at its end that it was cut.
pub(crate) struct LimitedFile {
    file: File,
    left: u64,
    limit: u64,
    dropped: u64,
}

impl LimitedFile {
    pub(crate) async fn create(path: &Path, limit: u64) -> io::Result<LimitedFile> {
        if let Some(folder) = path.parent() {
            tokio::fs::create_dir_all(folder).await?;
        }
        let file = File::create(path).await?;
        Ok(LimitedFile { file, left: limit, limit, dropped: 0 })
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fits = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        self.file.write_all(&bytes[..fits]).await?;
        self.left -= fits as u64;
        self.dropped += (bytes.len() - fits) as u64;
        Ok(())
    }

    pub(crate) async fn finish(mut self) -> io::Result<()> {
        if self.dropped > 0 {
            let (limit, dropped) = (self.limit, self.dropped);
            let line = format!("\n[cut here: {limit} bytes kept, {dropped} bytes dropped]\n");
            self.file.write_all(line.as_bytes()).await?;
        }
        self.file.flush().await
    }
}

/// Keeps all that `source` gives, to its end. What doesn't fit is still read, so that
/// the command never blocks on a full pipe.
pub(crate) async fn keep(
    mut source: impl AsyncRead + Unpin,
    path: PathBuf,
    limit: u64,
) -> io::Result<()> {
    let mut file = LimitedFile::create(&path, limit).await?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match source.read(&mut buffer).await? {
            0 => return file.finish().await,
            length => file.write(&buffer[..length]).await?,
        }
    }
}

/// Makes both files, so that they are there however early the command ends.
pub(crate) async fn create_empty(exec: &Exec) -> Result<(), SandboxError> {
    for path in [&exec.stdout, &exec.stderr] {
        LimitedFile::create(path, 0).await.map_err(|problem| {
            SandboxError::retryable("keep output", format!("{}: {problem}", path.display()))
        })?;
    }
    Ok(())
}
