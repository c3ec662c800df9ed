//! The suites: what each needs, and what it runs.

use crate::command::{Counts, check, run};
use anyhow::{Result, bail};

/// A named set of tests.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Runs on any machine with Rust, Python 3.11 and Node 20.
    pub(crate) default: bool,
    pub(crate) run: fn() -> Result<Counts>,
}

pub(crate) const ALL: &[Suite] = &[
    Suite { name: "format", about: "rustfmt", default: true, run: format },
    Suite { name: "lint", about: "clippy, warnings are errors", default: true, run: lint },
    Suite { name: "rust", about: "unit, property and process tests", default: true, run: rust },
];

/// The suites named, or the default ones.
pub(crate) fn choose(names: &[String]) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(ALL.iter().filter(|suite| suite.default).collect());
    }
    names
        .iter()
        .map(|name| match ALL.iter().find(|suite| suite.name == name) {
            Some(suite) => Ok(suite),
            None => {
                let known: Vec<&str> = ALL.iter().map(|suite| suite.name).collect();
                bail!("no suite {name:?}; there are {}", known.join(", "))
            }
        })
        .collect()
}

fn format() -> Result<Counts> {
    check("cargo", &["fmt", "--all", "--check"])
}

fn lint() -> Result<Counts> {
    check("cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])
}

fn rust() -> Result<Counts> {
    run("cargo", &["test", "--workspace", "--quiet"])
}
