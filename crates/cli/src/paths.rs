//! Where Polar keeps its things, and what it was told by the environment.

use anyhow::{Context, Result};
use polar_types::NodeId;
use std::env;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

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

/// Makes a folder that is Polar's own, and lets nobody but this user look into it, whoever
/// made it: tasks hold secrets.
pub(crate) fn make_private(folder: &Path) -> Result<()> {
    let closed = || -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        if fs::metadata(folder)?.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    };
    closed().with_context(|| format!("make {} a folder for this user alone", folder.display()))
}

fn chosen(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn home() -> Result<PathBuf> {
    env::home_dir().context("no home folder; set POLAR_CACHE and --state")
}

/// The name of the node whose state is in `folder`: the one given, else this machine's with
/// some digits that are kept there, since each GPU of a machine may have a node.
pub(crate) fn node_id(given: Option<String>, folder: &Path) -> Result<String> {
    if let Some(given) = given {
        return as_given(&given);
    }
    let instance = polar_node::instance_id(folder)?;
    let digits = &instance[instance.len().saturating_sub(SUFFIX)..];
    let machine = as_node_id(&machine(), LONGEST_NODE_ID - SUFFIX - 1);
    Ok(format!("{machine}-{digits}"))
}

/// The same for a node that is alone with its server, and whose state is not kept.
pub(crate) fn passing_node_id(given: Option<String>) -> Result<String> {
    given.map_or_else(|| Ok(as_node_id(&machine(), LONGEST_NODE_ID)), |given| as_given(&given))
}

/// A name that was given is taken as it is, or refused: never made into another.
fn as_given(name: &str) -> Result<String> {
    Ok(name.parse::<NodeId>().context("--node-id")?.to_string())
}

const LONGEST_NODE_ID: usize = 64;

/// Digits behind a machine's name.
const SUFFIX: usize = 6;

fn machine() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "node".to_owned())
}

fn as_node_id(name: &str, longest: usize) -> String {
    let safe: String = name
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .take(longest)
        .collect();
    let trimmed = safe.trim_start_matches(['.', '_', '-']);
    if trimmed.is_empty() { "node".to_owned() } else { trimmed.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_machine_have_names_of_their_own_which_they_keep() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = node_id(None, &one.path().join("deep/node")).unwrap();
        assert_eq!(node_id(None, &one.path().join("deep/node")).unwrap(), name);
        assert_ne!(node_id(None, other.path()).unwrap(), name);
        assert!(name.parse::<NodeId>().is_ok(), "{name}");
        assert!(name.starts_with(&as_node_id(&machine(), 57)), "{name}");
        assert_eq!(node_id(Some("gpu-3".to_owned()), one.path()).unwrap(), "gpu-3");
        let refused = node_id(Some("gpu 3".to_owned()), one.path()).unwrap_err();
        assert!(format!("{refused:#}").contains("--node-id: "), "{refused:#}");
    }
}
