//! Folders of the node that a task may have shown, where the node's operator allows it.

use crate::SandboxError;
use std::path::{Component, Path, PathBuf};

/// A folder of the node shown inside, as a task asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// On the node.
    pub source: PathBuf,
    /// Inside.
    pub target: PathBuf,
    /// Nothing can be written there.
    pub read_only: bool,
}

/// What tasks may have shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedMount {
    /// On the node, with all that lies below.
    pub path: PathBuf,
    /// Tasks may write there.
    pub writable: bool,
}

/// Places inside that are the kernel's, or ours.
const TAKEN: [&str; 5] = ["/dev", "/proc", "/sys", "/.polar", "/run/polar"];

/// What is to be shown, by where links lead, which is what has to be allowed.
pub(crate) fn resolve(
    asked: &[Mount],
    allowed: &[AllowedMount],
) -> Result<Vec<Mount>, SandboxError> {
    let resolve = |(number, mount): (usize, &Mount)| resolve_one(number, mount, allowed);
    asked.iter().enumerate().map(resolve).collect()
}

fn resolve_one(
    number: usize,
    mount: &Mount,
    allowed: &[AllowedMount],
) -> Result<Mount, SandboxError> {
    let refuse = |part: &str, what: String| {
        SandboxError::new("make sandbox", format!("`mounts[{number}].{part}` {what}"))
    };
    let target = &mount.target;
    let plain = target.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if !target.is_absolute() || !plain || target == Path::new("/") {
        let what = format!("{} must be an absolute path without `..`", target.display());
        return Err(refuse("target", what));
    }
    if let Some(taken) = TAKEN.iter().find(|taken| target.starts_with(taken)) {
        return Err(refuse("target", format!("{} lies in {taken}", target.display())));
    }
    let source = mount.source.canonicalize().map_err(|problem| {
        refuse("source", format!("{} cannot be shown: {problem}", mount.source.display()))
    })?;
    if !source.is_dir() {
        return Err(refuse("source", format!("{} is not a folder", mount.source.display())));
    }
    let lies_in = |allowed: &&AllowedMount| {
        allowed.path.canonicalize().is_ok_and(|path| source.starts_with(path))
    };
    let mut places = allowed.iter().filter(lies_in).peekable();
    if places.peek().is_none() {
        let what = format!(
            "{} is not in a folder that this node allows; its operator allows one with \
             --allow-mount PATH",
            mount.source.display()
        );
        return Err(refuse("source", what));
    }
    if !mount.read_only && !places.any(|place| place.writable) {
        let what = format!(
            "must be true for {}; the node's operator allows writing with --allow-mount PATH:rw",
            mount.source.display()
        );
        return Err(refuse("read_only", what));
    }
    Ok(Mount { source, target: target.clone(), read_only: mount.read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promise_9_only_what_the_node_allows_is_shown_wherever_links_lead() {
        let folder = tempfile::tempdir().unwrap();
        let place = |path: &str| folder.path().join(path);
        for made in ["data/sub", "data-of-others", "scratch", "secret"] {
            std::fs::create_dir_all(place(made)).unwrap();
        }
        std::fs::write(place("data/file"), "").unwrap();
        std::os::unix::fs::symlink(place("secret"), place("data/link")).unwrap();
        let allowed = [
            AllowedMount { path: place("data"), writable: false },
            AllowedMount { path: place("scratch"), writable: true },
        ];
        let mount = |source: PathBuf, target: &str, read_only| Mount {
            source,
            target: target.into(),
            read_only,
        };
        let check = |mount: Mount| resolve(&[mount], &allowed);
        for source in ["data", "data/sub", "data/sub/../sub"] {
            check(mount(place(source), "/data", true)).unwrap();
        }
        check(mount(place("scratch"), "/scratch", false)).unwrap();
        for (asked, field) in [
            (mount(place("secret"), "/data", true), "mounts[0].source"),
            (mount(place("data/link"), "/data", true), "mounts[0].source"),
            (mount(place("data/../secret"), "/data", true), "mounts[0].source"),
            (mount(place("data-of-others"), "/data", true), "mounts[0].source"),
            (mount(place("data/missing"), "/data", true), "mounts[0].source"),
            (mount(place("data/file"), "/data", true), "mounts[0].source"),
            (mount("/".into(), "/data", true), "mounts[0].source"),
            (mount(place("data"), "/data", false), "mounts[0].read_only"),
            (mount(place("data"), "data", true), "mounts[0].target"),
            (mount(place("data"), "/a/../../proc", true), "mounts[0].target"),
            (mount(place("data"), "/proc/sys", true), "mounts[0].target"),
            (mount(place("data"), "/", true), "mounts[0].target"),
        ] {
            let problem = check(asked.clone()).unwrap_err();
            assert!(problem.message.contains(field), "{asked:?}: {problem}");
        }
    }
}
