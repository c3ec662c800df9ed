//! The blob store: journals, trajectories, logs and diffs, each under the SHA-256 of its
//! bytes.
//!
//! A blob is written whole or not at all: bytes go to a temporary file, are hashed on the
//! way, and get their name only when the hash is the promised one. Since the name is the
//! content, writing the same blob twice is no conflict. The store never looks inside, and
//! never deletes.

use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{DirBuilder, Permissions};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;

/// Bytes collected before they are handed to the store below.
const PART: usize = 8 * 1024 * 1024;

/// Why a blob could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// Not a SHA-256 in hex.
    #[error("{0:?} is not a SHA-256: 64 lower-case hexadecimal digits")]
    InvalidHash(String),
    /// The bytes are others than their name promises.
    #[error("the bytes have SHA-256 {found}, not {expected}; send them again")]
    HashMismatch {
        /// The name they were sent under.
        expected: BlobHash,
        /// The hash of what came.
        found: BlobHash,
    },
    /// More bytes than a blob may have.
    #[error("a blob may have at most {limit} bytes")]
    TooLarge {
        /// The most allowed.
        limit: u64,
    },
    /// Nothing is stored under this name.
    #[error("there is no blob {0}")]
    NotFound(BlobHash),
    /// The range asked for lies outside the blob.
    #[error("the range {}..{} is not within the blob's {size} bytes", range.start, range.end)]
    InvalidRange {
        /// What was asked for.
        range: Range<u64>,
        /// What there is.
        size: u64,
    },
    /// The sender failed in the middle.
    #[error("the upload broke off: {0}")]
    BrokenOff(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The folder cannot be used.
    #[error("cannot use the blob folder {path}: {source}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The storage below failed.
    #[error("the blob storage failed: {0}")]
    Storage(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The name of a blob: the SHA-256 of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    fn path(&self) -> ObjectPath {
        // Two levels, so that no folder holds more than a 256th of all.
        let name = self.to_string();
        let (folder, _) = name.split_at(2);
        ObjectPath::from_iter([KIND, folder, name.as_str()])
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for BlobHash {
    type Err = BlobError;
    fn from_str(text: &str) -> Result<Self, BlobError> {
        let invalid = || BlobError::InvalidHash(text.chars().take(80).collect());
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(invalid());
        }
        let mut hash = [0; 32];
        hex::decode_to_slice(text, &mut hash).map_err(|_| invalid())?;
        Ok(Self(hash))
    }
}

/// A blob being read.
pub struct BlobRead {
    /// Bytes of the whole blob.
    pub size: u64,
    /// Which of them the stream gives.
    pub range: Range<u64>,
    /// The bytes.
    pub bytes: BoxStream<'static, Result<Bytes, BlobError>>,
}

/// Folder of all blobs, after the hash that names them.
const KIND: &str = "sha256";

/// Content-addressed storage over a folder.
#[derive(Debug, Clone)]
pub struct BlobStore {
    objects: Arc<dyn ObjectStore>,
    folder: PathBuf,
    limit: u64,
}

impl BlobStore {
    /// Blobs as files in `folder`, which is made when missing; at most `limit` bytes each.
    /// Only this user can read them. A blob is on disk when `put` returns. Nobody else may be writing to the folder:
    /// uploads that an earlier process did not finish are removed.
    pub fn in_folder(folder: &Path, limit: u64) -> Result<Self, BlobError> {
        make_private(&folder.join(KIND))
            .and_then(|()| remove_unfinished(&folder.join(KIND)))
            .map_err(|source| BlobError::Folder { path: folder.to_owned(), source })?;
        let files = LocalFileSystem::new_with_prefix(folder).map_err(storage)?.with_fsync(true);
        Ok(Self { objects: Arc::new(files), folder: folder.to_owned(), limit })
    }

    /// Stores what the stream brings, if it has this hash. Returns its size.
    pub async fn put<S, E>(&self, hash: BlobHash, bytes: S) -> Result<u64, BlobError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut upload = self.objects.put_multipart(&hash.path()).await.map_err(storage)?;
        let sent = self.send(hash, bytes, &mut *upload).await;
        match sent {
            Ok(size) => {
                upload.complete().await.map_err(storage)?;
                let path = self.folder.join(hash.path().as_ref());
                std::fs::set_permissions(&path, Permissions::from_mode(0o600))
                    .map_err(|source| BlobError::Folder { path, source })?;
                Ok(size)
            }
            Err(error) => {
                // The temporary file goes; what failed first is what is told.
                let _ = upload.abort().await;
                Err(error)
            }
        }
    }

    async fn send<S, E>(
        &self,
        hash: BlobHash,
        bytes: S,
        upload: &mut dyn object_store::MultipartUpload,
    ) -> Result<u64, BlobError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut bytes = pin!(bytes);
        let mut hasher = Sha256::new();
        let mut size = 0_u64;
        let mut part: Vec<Bytes> = Vec::new();
        let mut part_size = 0;
        while let Some(chunk) = bytes.next().await {
            let chunk = chunk.map_err(|e| BlobError::BrokenOff(e.into()))?;
            size += chunk.len() as u64;
            if size > self.limit {
                return Err(BlobError::TooLarge { limit: self.limit });
            }
            hasher.update(&chunk);
            part_size += chunk.len();
            part.push(chunk);
            if part_size >= PART {
                let payload: PutPayload = std::mem::take(&mut part).into_iter().collect();
                upload.put_part(payload).await.map_err(storage)?;
                part_size = 0;
            }
        }
        if part_size > 0 {
            upload.put_part(part.into_iter().collect()).await.map_err(storage)?;
        }
        let found = BlobHash(hasher.finalize().into());
        if found == hash {
            Ok(size)
        } else {
            Err(BlobError::HashMismatch { expected: hash, found })
        }
    }

    /// Stores these bytes under their own hash.
    pub async fn put_bytes(&self, bytes: Bytes) -> Result<BlobHash, BlobError> {
        let hash = BlobHash::of(&bytes);
        let whole = futures_util::stream::iter([Ok::<_, std::io::Error>(bytes)]);
        self.put(hash, whole).await?;
        Ok(hash)
    }

    /// Bytes of a stored blob; `None` when there is none.
    pub async fn size(&self, hash: BlobHash) -> Result<Option<u64>, BlobError> {
        match self.objects.head(&hash.path()).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(storage(error)),
        }
    }

    /// Reads a blob, or a part of it, as a stream.
    pub async fn get(
        &self,
        hash: BlobHash,
        range: Option<Range<u64>>,
    ) -> Result<BlobRead, BlobError> {
        let size = self.size(hash).await?.ok_or(BlobError::NotFound(hash))?;
        if let Some(range) = &range
            && (range.start >= range.end || range.end > size)
        {
            return Err(BlobError::InvalidRange { range: range.clone(), size });
        }
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let found = self.objects.get_opts(&hash.path(), options).await.map_err(storage)?;
        let range = found.range.clone();
        Ok(BlobRead { size, range, bytes: found.into_stream().map_err(storage).boxed() })
    }
}

/// Makes the folder for this user alone, and narrows one that others could look into.
fn make_private(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if std::fs::metadata(folder)?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Uploads lie beside the blob they become, with `#` and a number behind its name.
fn remove_unfinished(blobs: &Path) -> std::io::Result<()> {
    let folders = match std::fs::read_dir(blobs) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        folders => folders?,
    };
    for folder in folders {
        for file in std::fs::read_dir(folder?.path())? {
            let file = file?;
            if file.file_name().to_string_lossy().contains('#') {
                std::fs::remove_file(file.path())?;
            }
        }
    }
    Ok(())
}

fn storage(error: object_store::Error) -> BlobError {
    BlobError::Storage(Box::new(error))
}
