//! Replies as models write them, taken apart whole and in pieces.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod chunking;
mod families;
mod fixtures;
mod folding;
mod json_families;
mod rendered;
mod tagged_families;
