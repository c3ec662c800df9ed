//! `polar tasks import`: tasks in other forms, made into Polar's.
//!
//! What comes out is whole: files that a task needs are in it, so that it can be moved, kept
//! and sent to any server. Where a task asks for what Polar cannot do, the import says so; it
//! leaves nothing out.

mod harbor;
mod harbor_image;
mod jsonl;
mod output;
mod swebench;

use crate::args::{Import, ImportArgs, Tasks};
use crate::task_file;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use std::path::Path;

/// What a task begins as when there is no template.
const HARNESS: &str = "pi";

pub(crate) fn tasks(args: Tasks) -> Result<()> {
    let Tasks::Import(import) = args;
    let (tasks, common) = match &import {
        Import::Harbor(args) => (harbor::import(args)?, &args.common),
        Import::Swebench(args) => (swebench::import(args)?, &args.common),
        Import::Jsonl(args) => (jsonl::import(args)?, &args.common),
    };
    if tasks.is_empty() {
        bail!("there is nothing to import");
    }
    output::write(&tasks, common.out.as_deref())
}

/// What all tasks of an import have in common.
fn template(common: &ImportArgs) -> Result<Map<String, Value>> {
    let mut task = match &common.template {
        Some(path) => task_file::read(path)?,
        None => json!({"harness": HARNESS}),
    };
    if let Some(harness) = &common.harness {
        task_file::set_harness(&mut task, harness)?;
    }
    match task {
        Value::Object(task) => Ok(task),
        _ => bail!("a template is a mapping, as a task file is"),
    }
}

/// A word for a task: what ids may not have becomes a hyphen.
fn task_id(name: &str) -> Result<String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let id: String = name.chars().map(|letter| if fits(letter) { letter } else { '-' }).collect();
    let id = id.trim_start_matches(['.', '_', '-']).to_owned();
    id.parse::<polar_types::TaskId>().with_context(|| format!("the name {name:?}"))?;
    Ok(id)
}

/// The image of a task: that of the command line, else its own.
fn image(common: &ImportArgs, name: &str, own: Option<String>) -> Option<String> {
    common.image.as_ref().map(|image| image.replace("{name}", name)).or(own)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}
