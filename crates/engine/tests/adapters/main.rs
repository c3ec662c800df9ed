//! The adapters against recorded replies of real engines, and against a local server
//! with faults no real engine can be made to have on demand.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake_engine;
mod faults;
mod llama_cpp;
mod parsing;
mod place;
mod probe;
mod sglang;
mod tokens;
mod vllm;
mod weights;
