//! `polar harness list|install|check`.

use crate::args::Harness;
use crate::commands::harness_check;
use crate::{display, paths};
use anyhow::Result;
use polar_session::harness::{HarnessAdapter, Installer};
use serde_json::json;
use std::io::Write as _;
use std::path::Path;

pub(crate) async fn harness(command: Harness) -> Result<()> {
    match command {
        Harness::List { json } => list(json),
        Harness::Install { name } => install(&name).await,
        Harness::Check(args) => harness_check::check(*args).await,
    }
}

/// A shipped adapter by name, or one of the user's by path.
pub(crate) fn adapter(choice: &str) -> Result<HarnessAdapter> {
    if !Path::new(choice).is_file() {
        return Ok(HarnessAdapter::shipped(choice)?);
    }
    Ok(HarnessAdapter::from_file(Path::new(choice))?)
}

fn list(as_json: bool) -> Result<()> {
    let installer = Installer::new(&paths::cache()?);
    let mut out = std::io::stdout().lock();
    let adapters = HarnessAdapter::list()?;
    if as_json {
        let entries: Vec<_> = adapters
            .iter()
            .map(|adapter| {
                json!({
                    "name": adapter.name,
                    "version": adapter.version,
                    "description": adapter.description,
                    "installed": installer.is_installed(adapter),
                })
            })
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&entries)?)?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = adapters
        .iter()
        .map(|adapter| {
            let installed = if installer.is_installed(adapter) { "yes" } else { "no" };
            vec![
                adapter.name.clone(),
                adapter.version.clone(),
                installed.to_owned(),
                adapter.description.clone(),
            ]
        })
        .collect();
    write!(out, "{}", display::table(&["harness", "version", "installed", "what it is"], &rows))?;
    Ok(())
}

async fn install(name: &str) -> Result<()> {
    let adapter = adapter(name)?;
    let installation = Installer::new(&paths::cache()?).ensure(&adapter).await?;
    let mut out = std::io::stdout().lock();
    match installation {
        Some(installation) => writeln!(
            out,
            "{} {} is in {}",
            adapter.name,
            adapter.version,
            installation.folder.display()
        )?,
        None => writeln!(out, "{} needs no installation", adapter.name)?,
    }
    Ok(())
}
