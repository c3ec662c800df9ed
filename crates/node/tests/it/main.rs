//! Nodes with real parts: the rollout server, the simulated engine, sandboxes, and an
//! agent of a few lines.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod brake;
mod captures;
mod chaos;
mod child;
mod cluster;
mod engine;
mod engines;
mod gate;
mod leases;
mod regrades;
mod removals;
mod restarts;
mod room;
mod start;
mod weights;
