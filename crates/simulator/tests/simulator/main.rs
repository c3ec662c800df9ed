//! The simulator over HTTP, as its users meet it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panics")]

mod control;
mod fix_test;
mod ids;
mod replies;
mod support;
mod tensorrt;
