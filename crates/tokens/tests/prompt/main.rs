//! Prompts of conversations that go on: exact behind what was sampled, and the template's own
//! wherever the template only adds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod families;
mod going_on;
mod memory;
