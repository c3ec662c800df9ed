//! Tasks of the repository itself: `cargo xtask test` is the command that passes all
//! tests, for people and for CI alike.

#![allow(clippy::print_stdout, reason = "its output is for the person or CI that runs it")]

mod command;
mod fuzz;
mod node;
mod python;
mod suites;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use std::fs;

#[derive(Debug, Parser)]
#[command(about = "Tasks of the Polar repository")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run tests: all that need nothing but Rust, Python 3.11, Node 20 and a network for
    /// package registries, or the suites named.
    Test {
        /// Suites to run instead of the default ones.
        #[arg(long = "suite", value_name = "NAME")]
        suites: Vec<String>,
    },
    /// List the suites with what each needs.
    Suites,
    /// Write what the documents take from the code: the table of docs/dialects.md.
    Dialects,
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Test { suites } => test(&suites),
        Task::Dialects => dialects(),
        Task::Suites => {
            for suite in suites::ALL {
                let kind = if suite.default { "default" } else { "by name" };
                println!("{:10} {kind:8} {}", suite.name, suite.about);
            }
            Ok(())
        }
    }
}

/// Puts the table of losses into its place in the document.
fn dialects() -> Result<()> {
    let path = command::root().join("docs/dialects.md");
    let document = fs::read_to_string(&path).context("read docs/dialects.md")?;
    let (before, rest) = document.split_once("<!-- losses -->\n").context("no mark of losses")?;
    let (_, after) = rest.split_once("<!-- end of losses -->").context("no end of losses")?;
    let table = polar_convo::loss::markdown_table();
    let document = format!("{before}<!-- losses -->\n{table}<!-- end of losses -->{after}");
    fs::write(&path, document).context("write docs/dialects.md")
}

fn test(names: &[String]) -> Result<()> {
    let chosen = suites::choose(names)?;
    let mut total = command::Counts::default();
    let mut failed = Vec::new();
    for suite in chosen {
        println!("\n━━ {}: {}", suite.name, suite.about);
        match (suite.run)() {
            Ok(counts) => {
                total.add(counts);
                if counts.failed > 0 {
                    failed.push(suite.name);
                }
            }
            Err(error) => {
                println!("━━ {} failed: {error:#}", suite.name);
                total.failed += 1;
                failed.push(suite.name);
            }
        }
    }
    println!("\n{} passed, {} failed", total.passed, total.failed);
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}
