//! Running commands of a suite: their output is shown as it comes and read for counts.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

/// Tests that ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A command run at the repository's root.
pub(crate) struct Command {
    inner: process::Command,
}

impl Command {
    pub(crate) fn new(program: impl AsRef<OsStr>, args: &[&str]) -> Self {
        let mut inner = process::Command::new(program);
        inner.args(args).current_dir(root()).stdin(Stdio::null()).stdout(Stdio::piped());
        Self { inner }
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.inner.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.inner.env(name, value);
        self
    }

    /// Runs it in a folder below the root.
    pub(crate) fn within(mut self, folder: impl AsRef<Path>) -> Self {
        self.inner.current_dir(root().join(folder));
        self
    }

    /// Runs it and takes its success as one check.
    pub(crate) fn check(self) -> Result<Counts> {
        self.run()?;
        Ok(Counts { passed: 1, failed: 0 })
    }

    /// Runs it and gives what it prints, without the line end.
    pub(crate) fn output(mut self) -> Result<String> {
        let shown = shown(&self.inner);
        let output = self.inner.output().with_context(|| format!("run {shown}"))?;
        if !output.status.success() {
            bail!("{shown} ended with {}", output.status);
        }
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }

    /// Runs it, shows its output, and gives the tests it counted. Fails when it does.
    pub(crate) fn run(mut self) -> Result<Counts> {
        let shown = shown(&self.inner);
        println!("$ {shown}");
        let mut child = self.inner.spawn().with_context(|| format!("start {shown}"))?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut counts = Counts::default();
        for line in BufReader::new(stdout).lines() {
            let line = line.context("read output")?;
            println!("{line}");
            if let Some(found) = counted(&line) {
                counts.add(found);
            }
        }
        let status = child.wait().with_context(|| format!("wait for {shown}"))?;
        if !status.success() {
            bail!("{shown} ended with {status}");
        }
        Ok(counts)
    }
}

fn shown(command: &process::Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    words.join(" ")
}

/// Reads the closing line of cargo's test runner and of pytest, and those of Node's.
fn counted(line: &str) -> Option<Counts> {
    if let Some(count) = line.strip_prefix("\u{2139} pass ") {
        return Some(Counts { passed: count.parse().ok()?, failed: 0 });
    }
    if let Some(count) = line.strip_prefix("\u{2139} fail ") {
        return Some(Counts { passed: 0, failed: count.parse().ok()? });
    }
    let is_cargo = line.starts_with("test result:");
    let is_pytest = line.contains(" passed") && line.contains(" in ");
    if !is_cargo && !is_pytest {
        return None;
    }
    Some(Counts { passed: number_before(line, " passed"), failed: number_before(line, " failed") })
}

fn number_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    let head = &line[..end];
    let start = head.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    head[start..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted() {
        let cargo = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(counted(cargo), Some(Counts { passed: 12, failed: 0 }));
        let pytest = "======= 3 failed, 40 passed in 2.31s =======";
        assert_eq!(counted(pytest), Some(Counts { passed: 40, failed: 3 }));
        assert_eq!(counted("7 passed in 0.12s"), Some(Counts { passed: 7, failed: 0 }));
        assert_eq!(counted("ℹ pass 12"), Some(Counts { passed: 12, failed: 0 }));
        assert_eq!(counted("ℹ fail 1"), Some(Counts { passed: 0, failed: 1 }));
        assert_eq!(counted("the lease passed in time"), Some(Counts::default()));
        assert_eq!(counted("running 5 tests"), None);
    }
}
