//! Blobs in a folder.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use polar_blobs::{BlobError, BlobHash, BlobStore};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn chunks(parts: &[&'static str]) -> impl futures_util::Stream<Item = Result<Bytes, io::Error>> {
    let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::from_static(part.as_bytes()))).collect();
    stream::iter(parts)
}

async fn read(store: &BlobStore, hash: BlobHash, range: Option<std::ops::Range<u64>>) -> Vec<u8> {
    let parts: Vec<Bytes> =
        store.get(hash, range).await.unwrap().bytes.try_collect().await.unwrap();
    parts.concat()
}

fn files_in(folder: &Path) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        count += if path.is_dir() { files_in(&path) } else { 1 };
    }
    count
}

#[tokio::test]
async fn what_is_put_is_what_is_read_whole_and_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let store = BlobStore::in_folder(folder.path(), 100).unwrap();
    let hash = BlobHash::of(b"hello, blobs");
    assert_eq!(store.size(hash).await.unwrap(), None);
    assert_eq!(store.put(hash, chunks(&["hello", ", ", "blobs"])).await.unwrap(), 12);
    assert_eq!(
        store.put(hash, chunks(&["hello, blobs"])).await.unwrap(),
        12,
        "again is no conflict"
    );
    assert_eq!(files_in(folder.path()), 1);
    assert_eq!(store.size(hash).await.unwrap(), Some(12));
    assert_eq!(read(&store, hash, None).await, b"hello, blobs");
    assert_eq!(read(&store, hash, Some(7..12)).await, b"blobs");

    // A store opened later finds it; an empty blob is one too.
    let store = BlobStore::in_folder(folder.path(), 100).unwrap();
    assert_eq!(read(&store, hash, None).await, b"hello, blobs");
    let empty = store.put_bytes(Bytes::new()).await.unwrap();
    assert_eq!(read(&store, empty, None).await, b"");
}

#[tokio::test]
async fn large_blobs_go_through_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let store = BlobStore::in_folder(folder.path(), 1 << 30).unwrap();
    let bytes: Vec<u8> = (0..20_000_001_u32).map(|i| (i % 251) as u8).collect();
    let parts: Vec<_> =
        bytes.chunks(1_000_003).map(|c| Ok::<_, io::Error>(Bytes::copy_from_slice(c))).collect();
    let hash = BlobHash::of(&bytes);
    assert_eq!(store.put(hash, stream::iter(parts)).await.unwrap(), 20_000_001);
    assert_eq!(BlobHash::of(&read(&store, hash, None).await), hash);
    assert_eq!(
        read(&store, hash, Some(16_000_000..16_000_003)).await,
        bytes[16_000_000..16_000_003]
    );
}

#[tokio::test]
async fn what_is_refused_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let store = BlobStore::in_folder(folder.path(), 10).unwrap();
    let hash = BlobHash::of(b"0123456789");
    let wrong = store.put(hash, chunks(&["012345678", "x"])).await;
    assert!(matches!(wrong, Err(BlobError::HashMismatch { .. })), "{wrong:?}");
    let large = store.put(BlobHash::of(b"0123456789a"), chunks(&["0123456789", "a"])).await;
    assert!(matches!(large, Err(BlobError::TooLarge { limit: 10 })), "{large:?}");
    let broken = stream::iter([Ok(Bytes::from_static(b"01")), Err(io::Error::other("hung up"))]);
    let broken = store.put(hash, broken).await;
    assert!(matches!(broken, Err(BlobError::BrokenOff(_))), "{broken:?}");
    assert_eq!(store.size(hash).await.unwrap(), None);
    assert_eq!(files_in(folder.path()), 0);
    assert!(matches!(store.get(hash, None).await, Err(BlobError::NotFound(_))));
    store.put(hash, chunks(&["0123456789"])).await.unwrap();
    assert!(matches!(store.get(hash, Some(5..11)).await, Err(BlobError::InvalidRange { .. })));
}

#[test]
fn names_are_lower_case_hashes_and_nothing_else() {
    let hash = BlobHash::of(b"x").to_string();
    assert_eq!(hash.parse::<BlobHash>().unwrap().to_string(), hash);
    for bad in ["", "abc", "../../etc/passwd", &hash.to_uppercase(), &format!("{hash}0")] {
        assert!(bad.parse::<BlobHash>().is_err(), "{bad:?} was accepted");
    }
}

#[tokio::test]
async fn promise_7_an_upload_cut_by_a_kill_is_removed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = BlobStore::in_folder(folder.path(), 100).unwrap();
    let kept = store.put_bytes(Bytes::from_static(b"whole")).await.unwrap();
    let stuck = chunks(&["01"]).chain(stream::pending());
    let mut upload = Box::pin(store.put(BlobHash::of(b"0123"), stuck));
    while files_in(folder.path()) < 2 {
        assert!(upload.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    // A killed process cleans up nothing behind it.
    std::mem::forget(upload);

    let store = BlobStore::in_folder(folder.path(), 100).unwrap();
    assert_eq!(files_in(folder.path()), 1);
    assert_eq!(read(&store, kept, None).await, b"whole");
}

#[tokio::test]
async fn promise_9_only_the_user_can_read_blobs() {
    let folder = tempfile::tempdir().unwrap();
    let all = folder.path().join("sha256");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    // As an earlier version left it.
    std::fs::create_dir(&all).unwrap();
    std::fs::set_permissions(&all, std::fs::Permissions::from_mode(0o755)).unwrap();
    let store = BlobStore::in_folder(folder.path(), 100).unwrap();
    let hash = store.put_bytes(Bytes::from_static(b"secret")).await.unwrap();
    assert_eq!(mode(&all), 0o700);
    let name = hash.to_string();
    assert_eq!(mode(&all.join(&name[..2]).join(&name)), 0o600);
}
