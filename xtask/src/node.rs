//! Node projects run as copies under the target folder, so that their packages are installed
//! there and not into the tree.

use crate::command::{Command, root};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A project with its packages installed.
pub(crate) struct Project {
    /// Below the repository's root.
    folder: PathBuf,
}

/// The project in `folder`, whose `package-lock.json` says what is installed.
pub(crate) fn project(folder: &str) -> Result<Project> {
    let copy = Path::new("target/node").join(folder.replace('/', "-"));
    let project = Project { folder: copy.clone() };
    let (from, to) = (root().join(folder), root().join(copy));
    fs::create_dir_all(&to).with_context(|| format!("create {}", to.display()))?;
    remove_files(&to)?;
    for file in files(&from)? {
        let name = file.file_name().context("a file has no name")?;
        fs::copy(&file, to.join(name)).with_context(|| format!("copy {}", file.display()))?;
    }
    let wanted = fs::read_to_string(to.join("package-lock.json")).context("read the lock file")?;
    let mark = to.join("node_modules/installed");
    if fs::read_to_string(&mark).ok().as_deref() != Some(&wanted) {
        let install = ["ci", "--no-audit", "--no-fund", "--ignore-scripts"];
        project.tool("npm", &install).run()?;
        fs::write(&mark, wanted).with_context(|| format!("write {}", mark.display()))?;
    }
    Ok(project)
}

/// What an earlier copy has left, but for the packages.
fn remove_files(folder: &Path) -> Result<()> {
    for file in files(folder)? {
        fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    Ok(paths.into_iter().filter(|path| path.is_file()).collect())
}

impl Project {
    pub(crate) fn node(&self, args: &[&str]) -> Command {
        self.tool("node", args)
    }

    fn tool(&self, name: &str, args: &[&str]) -> Command {
        Command::new(name, args).within(&self.folder)
    }
}
