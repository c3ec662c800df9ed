//! Writes a journal: one file, one writer, one `write` per record.
//!
//! Owns the open file. Not shared: whoever serves calls of one session at the same time
//! puts the writer behind a lock.

use crate::encode::{self, CallEncoder};
use crate::{CallRecord, JournalError, SessionHeader};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What a written record survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, however it comes: the record is with the operating system.
    #[default]
    Process,
    /// The end of the machine too: each call waits until the disk has it.
    Machine,
}

/// Appends calls to the journal of one attempt.
#[derive(Debug)]
pub struct JournalWriter {
    file: File,
    path: PathBuf,
    durability: Durability,
    encoder: CallEncoder,
    /// Length up to the end of the last whole record.
    length: u64,
    usable: bool,
}

impl JournalWriter {
    /// Makes a new journal at `path`. A file that is already there is left alone and an
    /// error: it holds another attempt's calls.
    pub fn create(path: impl AsRef<Path>, header: &SessionHeader) -> Result<Self, JournalError> {
        Self::create_with(path, header, Durability::default())
    }

    /// As [`JournalWriter::create`], with a choice of what a written record survives.
    pub fn create_with(
        path: impl AsRef<Path>,
        header: &SessionHeader,
        durability: Durability,
    ) -> Result<Self, JournalError> {
        let path = path.as_ref().to_owned();
        let beginning = encode::beginning(header)?;
        // Append mode, so that a record cut by a full disk can be cut off again and the
        // next one lands behind the last whole one.
        let opened = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(source) => return Err(JournalError::Io { doing: "create", path, source }),
        };
        let encoder = CallEncoder::default();
        let mut writer = Self { file, path, durability, encoder, length: 0, usable: true };
        writer.write(&beginning)?;
        if durability == Durability::Machine {
            writer.sync_with_folder()?;
        }
        Ok(writer)
    }

    /// Writes a call and gives its index, counted from 0; `meta.call_id` is written as the
    /// index says. When this returns, the call outlives the process.
    pub fn append_call(&mut self, record: &CallRecord) -> Result<u32, JournalError> {
        let encoded = self.encoder.encode(record)?;
        self.write(&encoded.frame)?;
        let index = self.encoder.keep(encoded);
        if self.durability == Durability::Machine {
            self.sync()?;
        }
        Ok(index)
    }

    /// Notes whether the reply of call `index` reached the harness to its end.
    pub fn append_delivery(&mut self, index: u32, delivered: bool) -> Result<(), JournalError> {
        let calls = self.encoder.calls;
        if index >= calls {
            return Err(JournalError::UnknownCall { index, calls });
        }
        self.write(&encode::delivery(index, delivered))
    }

    /// Marks the journal complete and waits until the disk has it.
    pub fn seal(mut self) -> Result<(), JournalError> {
        self.write(&encode::end(self.encoder.calls))?;
        self.sync()
    }

    /// Calls written so far.
    pub fn calls(&self) -> u32 {
        self.encoder.calls
    }

    /// Bytes in the file.
    pub fn file_bytes(&self) -> u64 {
        self.length
    }

    /// Bytes kept in memory to find what earlier calls said, counting what is reserved.
    pub fn resident_bytes(&self) -> usize {
        self.encoder.resident_bytes()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        if !self.usable {
            return Err(JournalError::Unusable);
        }
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(())
            }
            Err(source) => {
                // A record cut in the middle would hide all that come after it.
                self.usable = self.file.set_len(self.length).is_ok();
                Err(self.io("write to", source))
            }
        }
    }

    fn sync(&self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(|source| self.io("sync", source))
    }

    /// A new file's name is in its folder's data.
    fn sync_with_folder(&self) -> Result<(), JournalError> {
        self.sync()?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))
            .and_then(|folder| folder.sync_all())
            .map_err(|source| self.io("sync the folder of", source))
    }

    fn io(&self, doing: &'static str, source: io::Error) -> JournalError {
        JournalError::Io { doing, path: self.path.clone(), source }
    }
}
