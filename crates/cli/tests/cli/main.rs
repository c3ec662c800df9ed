//! The `polar` binary as people and scripts use it: processes, signals, exit codes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod checks;
mod interrupts;
mod nodes;
mod parsers;
mod runs;
mod support;
mod tasks;
mod tokens;
