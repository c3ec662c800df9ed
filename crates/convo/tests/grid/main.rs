//! The grid: each fixture in each dialect, as a stream and as a whole.
//!
//! A fixture is a file. Snapshots are named after fixture, dialect and form; the properties hold
//! in every cell. A new fixture needs no code.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../readers/mod.rs"]
mod readers;
mod replies;
mod requests;

use polar_convo::Dialect;
use serde_json::Value;
use std::path::Path;

const DIALECTS: [Dialect; 4] =
    [Dialect::Chat, Dialect::Messages, Dialect::Responses, Dialect::Google];

/// The fixtures in a folder beside this file, by name.
fn fixtures(folder: &str) -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grid").join(folder);
    let mut fixtures: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(path).unwrap();
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect();
    fixtures.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(!fixtures.is_empty());
    fixtures
}

/// Compares with the snapshot of a cell.
fn golden(cell: &str, seen: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(cell, seen));
}
