//! Where Polar keeps its things, and what it was told by the environment.

use anyhow::{Context, Result};
use std::env;
use std::path::PathBuf;

/// Harness installations and downloads. Safe to delete. `$POLAR_CACHE`, else
/// `$XDG_CACHE_HOME/polar`, else `~/.cache/polar`.
pub(crate) fn cache() -> Result<PathBuf> {
    chosen("POLAR_CACHE")
        .or_else(|| chosen("XDG_CACHE_HOME").map(|base| base.join("polar")))
        .map_or_else(|| Ok(home()?.join(".cache/polar")), Ok)
}

/// Database, blobs and running sessions: what the user said, else
/// `$XDG_STATE_HOME/polar`, else `~/.local/state/polar`.
pub(crate) fn state(given: Option<PathBuf>) -> Result<PathBuf> {
    given
        .or_else(|| chosen("XDG_STATE_HOME").map(|base| base.join("polar")))
        .map_or_else(|| Ok(home()?.join(".local/state/polar")), Ok)
}

fn chosen(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn home() -> Result<PathBuf> {
    env::home_dir().context("no home folder; set POLAR_CACHE and --state")
}

/// This machine's name, as a node id.
pub(crate) fn node_id(given: Option<String>) -> String {
    let name = given.unwrap_or_else(|| {
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "node".to_owned())
    });
    let safe: String = name
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .take(64)
        .collect();
    let trimmed = safe.trim_start_matches(['.', '_', '-']);
    if trimmed.is_empty() { "node".to_owned() } else { trimmed.to_owned() }
}
