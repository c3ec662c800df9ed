//! The HTTP API, over real sockets and a real database.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod access;
mod batches;
mod blobs;
mod callbacks;
mod crash;
mod demands;
mod documents;
mod events;
mod leases;
mod metrics;
mod published;
mod refusals;
mod regrades;
mod support;
mod tasks;
mod weights;
