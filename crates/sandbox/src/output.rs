//! What a command prints, kept in a file on the host up to a limit: how it begins and how
//! it ends.

use crate::{Exec, SandboxError};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Most that is kept of an end. It is held in memory until the output is over.
const LONGEST_END: u64 = 512 << 10;

/// A file that takes so many bytes: those at the beginning and those at the end. It says
/// in between how many are missing.
pub(crate) struct LimitedFile {
    file: File,
    /// Bytes that the beginning still takes.
    left: u64,
    end: End,
}

impl LimitedFile {
    pub(crate) async fn create(path: &Path, limit: u64) -> io::Result<LimitedFile> {
        if let Some(folder) = path.parent() {
            tokio::fs::create_dir_all(folder).await?;
        }
        let file = File::create(path).await?;
        let longest = (limit / 2).min(LONGEST_END);
        Ok(LimitedFile { file, left: limit - longest, end: End::of_at_most(longest) })
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fits = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let (beginning, rest) = bytes.split_at(fits);
        self.file.write_all(beginning).await?;
        self.left -= beginning.len() as u64;
        self.end.push(rest);
        Ok(())
    }

    pub(crate) async fn finish(mut self) -> io::Result<()> {
        self.file.write_all(&self.end.after_cut()).await?;
        self.file.flush().await
    }
}

/// The last bytes of what does not fit.
struct End {
    bytes: VecDeque<u8>,
    longest: usize,
    dropped: u64,
}

impl End {
    fn of_at_most(longest: u64) -> End {
        let longest = usize::try_from(longest).unwrap_or(usize::MAX);
        End { bytes: VecDeque::new(), longest, dropped: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        let (skipped, kept) = bytes.split_at(bytes.len().saturating_sub(self.longest));
        let too_many = (self.bytes.len() + kept.len()).saturating_sub(self.longest);
        self.bytes.drain(..too_many);
        self.bytes.extend(kept);
        self.dropped += (skipped.len() + too_many) as u64;
    }

    /// What follows the beginning in the file. Neither half of a line that was cut can be
    /// taken for a whole one: the word of the cut stands on the line of the first, and on
    /// that of the second when it is kept because no whole line follows.
    fn after_cut(mut self) -> Vec<u8> {
        if self.dropped == 0 {
            return self.bytes.into();
        }
        let newline = self.bytes.iter().position(|byte| *byte == b'\n');
        let half_line = newline.filter(|newline| newline + 1 < self.bytes.len());
        if let Some(newline) = half_line {
            self.bytes.drain(..=newline);
            self.dropped += newline as u64 + 1;
        }
        let between = if half_line.is_some() { "\n" } else { " " };
        let mut all = format!(" [cut here: {} bytes dropped]{between}", self.dropped).into_bytes();
        all.extend(self.bytes);
        all
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
