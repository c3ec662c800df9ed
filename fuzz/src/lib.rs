//! What must hold of any input, for the fuzz targets.
//!
//! Each function takes the fuzzer's bytes and panics where a promise breaks. The targets in
//! `fuzz_targets/` only name them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a broken promise ends the run"
)]

pub mod decoders;
pub mod journal;
pub mod parsers;
pub mod pieces;
pub mod seeds;
pub mod sse;
