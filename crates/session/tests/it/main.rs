//! Sessions with real parts: the simulated engine, the gateway on its sockets, sandboxes,
//! and an agent of a few lines.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod adapters;
mod check;
mod ends;
mod evaluators;
mod grading;
mod ground;
mod install;
mod real_harnesses;
mod room;
mod seen;
mod stages;
mod starts;
mod warming;
