//! Running commands of a suite: their output is shown as it comes and read for counts.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

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

    /// A step that has no count of its own is one check.
    pub(crate) const ONE: Self = Self { passed: 1, failed: 0 };
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a command at the root, showing its output. Fails when it does.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<Counts> {
    let shown = format!("{program} {}", args.join(" "));
    println!("$ {shown}");
    let mut child = Command::new(program)
        .args(args)
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {shown}"))?;
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

/// Runs a command and takes its success as one check.
pub(crate) fn check(program: &str, args: &[&str]) -> Result<Counts> {
    run(program, args)?;
    Ok(Counts::ONE)
}

/// Reads the closing line of cargo's test runner and of pytest.
fn counted(line: &str) -> Option<Counts> {
    let is_cargo = line.starts_with("test result:");
    let is_pytest = line.contains(" passed") && line.contains(" in ") && line.ends_with('s')
        || line.starts_with('=') && line.contains(" passed");
    if !is_cargo && !is_pytest {
        return None;
    }
    Some(Counts { passed: number_before(line, " passed"), failed: number_before(line, " failed") })
}

fn number_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    let digits: String =
        line[..end].chars().rev().take_while(char::is_ascii_digit).collect::<String>();
    digits.chars().rev().collect::<String>().parse().unwrap_or(0)
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
        assert_eq!(counted("the lease passed in time"), Some(Counts::default()));
        assert_eq!(counted("running 5 tests"), None);
    }
}
