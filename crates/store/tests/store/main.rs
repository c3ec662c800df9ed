//! The task stores, held to one behaviour.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

/// Runs each test against each store.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                let limits = crate::samples::LIMITS;
                super::$name(&polar_store::MemoryStore::new(limits)).await;
            })*
        }
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("polar.db");
                let store = polar_store::SqliteStore::open(&path, crate::samples::LIMITS).await.unwrap();
                super::$name(&store).await;
            })*
        }
    };
}

mod conformance;
mod crash;
mod file;
mod groups;
mod machine;
mod regrades;
mod room;
mod samples;
mod weights;
