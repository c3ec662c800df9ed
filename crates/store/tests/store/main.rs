//! The task stores, held to one behaviour.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod conformance;
mod crash;
mod file;
mod machine;
mod samples;
