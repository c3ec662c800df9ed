//! What a sandbox costs to start, and a command in one, against the runtime's own commands in
//! the same run.
//!
//! Every measurement is a whole: from the call to the end of a first command, `true`. Arms take
//! turns within each repeat, so that a machine whose speed drifts does not favour one.
//!
//! Left out is what the node does once for all sessions: pulling an image, and unpacking it for
//! Apptainer. That is told by itself.

mod plain;
mod sandboxes;

use anyhow::{Context, Result, bail};
use clap::Parser;
use plain::Plain;
use polar_types::RuntimeKind;
use sandboxes::Sandboxes;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

#[derive(Debug, Parser)]
struct Options {
    /// Runtimes to measure, each with its image: `local`, `docker=debian:12`,
    /// `podman=debian:12`, `apptainer=docker-archive:/images/debian.tar`.
    #[arg(required = true, value_name = "RUNTIME[=IMAGE]", value_parser = runtime)]
    runtimes: Vec<(RuntimeKind, Option<String>)>,
    /// Times that each is measured.
    #[arg(long, default_value_t = 20)]
    repeats: u32,
}

fn runtime(text: &str) -> Result<(RuntimeKind, Option<String>), String> {
    let (name, image) = match text.split_once('=') {
        Some((name, image)) => (name, Some(image.to_owned())),
        None => (text, None),
    };
    let kind = RuntimeKind::named(name).ok_or_else(|| format!("there is no runtime {name:?}"))?;
    match kind.takes_image() == image.is_some() {
        true => Ok((kind, image)),
        false => Err("say docker=IMAGE, podman=IMAGE, apptainer=IMAGE or local".to_owned()),
    }
}

/// Milliseconds of each measurement.
#[derive(Debug, Default)]
struct Times {
    /// The runtime's own command: start, `true`, removal.
    plain_start: Vec<f64>,
    /// A sandbox made and `true` run in it.
    cold: Vec<f64>,
    /// One that stands by taken and `true` run in it.
    warm: Vec<f64>,
    removal: Vec<f64>,
    plain_exec: Vec<f64>,
    exec: Vec<f64>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let mut text = String::from(
        "| runtime | its own start, ms | sandbox cold, ms (×) | warm, ms (×) | removal, ms | its \
         own exec, ms | exec, ms (+, ×) | image, once, ms |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (kind, image) in &options.runtimes {
        let row = measure(*kind, image.as_deref(), options.repeats)
            .await
            .with_context(|| format!("measure {}", kind.as_str()))?;
        text.push_str(&row);
    }
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

async fn measure(kind: RuntimeKind, image: Option<&str>, repeats: u32) -> Result<String> {
    let folder = tempfile::Builder::new().prefix("polar-start-cost-").tempdir()?;
    let sandboxes = Sandboxes::new(kind, image, folder.path())?;
    sandboxes.check().await?;
    let since = Instant::now();
    sandboxes.get_image().await?;
    let image_ms = ms(since);
    let plain = Plain::start(kind, image, folder.path()).await?;
    let standing = sandboxes.make().await?;
    let mut times = Times::default();
    for _ in 0..repeats {
        let since = Instant::now();
        plain.start_and_remove().await?;
        times.plain_start.push(ms(since));

        let since = Instant::now();
        let cold = sandboxes.make().await?;
        sandboxes.run_true(cold.as_ref()).await?;
        times.cold.push(ms(since));
        let since = Instant::now();
        cold.destroy().await?;
        times.removal.push(ms(since));

        // As a session does it: is it there, then its first command.
        let since = Instant::now();
        sandboxes.run_true(standing.as_ref()).await?;
        sandboxes.run_true(standing.as_ref()).await?;
        times.warm.push(ms(since));

        let since = Instant::now();
        plain.exec().await?;
        times.plain_exec.push(ms(since));
        let since = Instant::now();
        sandboxes.run_true(standing.as_ref()).await?;
        times.exec.push(ms(since));
    }
    standing.destroy().await?;
    plain.end().await?;
    row(kind, times, image_ms)
}

fn row(kind: RuntimeKind, times: Times, image_ms: f64) -> Result<String> {
    let Times { plain_start, cold, warm, removal, plain_exec, exec } = times;
    let all = [plain_start, cold, warm, removal, plain_exec, exec].map(median);
    let [plain_start, cold, warm, removal, plain_exec, exec] = all;
    if all.iter().any(|median| median.is_nan()) {
        bail!("nothing was measured; --repeats must be at least 1");
    }
    let mut text = String::new();
    writeln!(
        text,
        "| {} | {plain_start:.0} | {cold:.0} ({:.2}) | {warm:.0} ({:.2}) | {removal:.0} | \
         {plain_exec:.0} | {exec:.0} ({:+.0}, {:.2}) | {image_ms:.0} |",
        kind.as_str(),
        cold / plain_start,
        warm / plain_start,
        exec - plain_exec,
        exec / plain_exec,
    )?;
    Ok(text)
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
