//! Virtual environments under the target folder, made when they are missing or when what
//! they hold has changed.

use crate::command::{Command, root};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;

/// A virtual environment.
pub(crate) struct Venv {
    bin: PathBuf,
}

/// The environment `name` with these packages, as arguments of `pip install`.
pub(crate) fn venv(name: &str, packages: &[&str], more: &[&str]) -> Result<Venv> {
    let folder = root().join("target/venvs").join(name);
    let bin = folder.join("bin");
    let wanted = format!("{} {}\n{}", packages.join(" "), more.join(" "), requirements(packages));
    let mark = folder.join("installed");
    if fs::read_to_string(&mark).ok().as_deref() != Some(&wanted) {
        let shown = folder.to_str().context("the target folder's path is not UTF-8")?;
        Command::new("python3", &["-m", "venv", "--clear", shown]).run()?;
        let venv = Venv { bin: bin.clone() };
        venv.python(&["-m", "pip", "install", "--quiet"]).args(packages).args(more).run()?;
        fs::write(&mark, wanted).with_context(|| format!("write {}", mark.display()))?;
    }
    Ok(Venv { bin })
}

/// The text of a requirements file that is named, so that a change to it is noticed.
fn requirements(packages: &[&str]) -> String {
    match packages {
        ["--requirement", file] => fs::read_to_string(root().join(file)).unwrap_or_default(),
        _ => String::new(),
    }
}

impl Venv {
    pub(crate) fn python(&self, args: &[&str]) -> Command {
        self.tool("python", args)
    }

    pub(crate) fn tool(&self, name: &str, args: &[&str]) -> Command {
        Command::new(self.bin.join(name), args)
    }
}
