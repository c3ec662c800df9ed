//! `polar export`: a task's traces as files for trainers.
//!
//! Trajectories are read as they come, one session at a time, and a file gets its name once it
//! is whole.

use crate::api::Api;
use crate::args::{Export, ExportFormat};
use anyhow::{Context, Result, ensure};
use futures_util::StreamExt as _;
use polar_export::{
    AtifWriter, ExportError, Filters, MessagesWriter, ParquetWriter, Row, RowWriter, Selection,
    Side,
};
use polar_types::Trajectory;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

pub(crate) async fn export(args: Export) -> Result<()> {
    let api = Api::of(args.server)?;
    let agent = api.task(&args.tasks[0]).await?.harness;
    let mut selection = Selection::by(Filters {
        reasons: args.reason,
        roles: args.role,
        min_reward: args.min_reward,
        max_reward: args.max_reward,
        max_tokens: args.max_tokens,
        dedupe: args.dedupe,
        held_out: args.held_out.unwrap_or(0.0),
    });
    let mut files = Files::begin(&args.out, args.format, args.held_out.is_some(), &agent)?;
    let mut done = HashSet::new();
    // One that is named twice is exported once.
    for task in args.tasks.iter().filter(|task| done.insert(*task)) {
        read_task(&api, task, |trajectory| {
            selection.of_session(trajectory, |row, side| files.write(row, side))?;
            Ok(())
        })
        .await
        .with_context(|| format!("export task {task}"))?;
    }
    files.finish()?;
    let counts = selection.counts();
    ensure!(
        counts.is_conserved(),
        "the trajectories count {} trained tokens, and their traces hold {}; see `polar verify`",
        counts.trained_in_all,
        counts.trained + counts.trained_left_out
    );
    writeln!(std::io::stdout().lock(), "{counts}")?;
    Ok(())
}

/// Gives each trajectory of a task to `take`, as soon as it has come.
async fn read_task(
    api: &Api,
    task: &str,
    mut take: impl FnMut(&Trajectory) -> Result<()>,
) -> Result<()> {
    let mut body = api.trajectories(task, "jsonl").await?.bytes_stream();
    let mut held = Vec::new();
    while let Some(piece) = body.next().await {
        let piece = piece.context("read the trajectories")?;
        let mut rest = piece.as_ref();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            held.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let trajectory = serde_json::from_slice(&held).context("read a trajectory")?;
            held.clear();
            take(&trajectory)?;
        }
        held.extend_from_slice(rest);
    }
    ensure!(held.is_empty(), "the trajectories broke off");
    Ok(())
}

/// The files that are written, each beside its place until it is whole.
struct Files {
    train: Output,
    test: Option<Output>,
}

impl Files {
    fn begin(out: &Path, format: ExportFormat, split: bool, agent: &str) -> Result<Self> {
        if !split {
            return Ok(Self { train: Output::begin(out.to_owned(), format, agent)?, test: None });
        }
        fs::create_dir_all(out).with_context(|| format!("make the folder {}", out.display()))?;
        let named = |name: &str| out.join(format!("{name}.{}", format.ending()));
        Ok(Self {
            train: Output::begin(named("train"), format, agent)?,
            test: Some(Output::begin(named("test"), format, agent)?),
        })
    }

    fn write(&mut self, row: Row<'_>, side: Side) -> Result<(), ExportError> {
        match (side, &mut self.test) {
            (Side::Test, Some(test)) => test.writer.write(row),
            _ => self.train.writer.write(row),
        }
    }

    fn finish(self) -> Result<()> {
        self.train.finish()?;
        self.test.map_or(Ok(()), Output::finish)
    }
}

struct Output {
    writer: Box<dyn RowWriter>,
    path: PathBuf,
    partial: Partial,
}

/// A file that is gone unless it was made whole.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // Nothing is there any more once it has its name.
        let _ = fs::remove_file(&self.0);
    }
}

impl Output {
    fn begin(path: PathBuf, format: ExportFormat, agent: &str) -> Result<Self> {
        let name = path.file_name().context("--out must name a file")?.to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.partial"));
        let file = File::create(&partial)
            .with_context(|| format!("write {}", partial.display()))
            .map(BufWriter::new)?;
        let writer: Box<dyn RowWriter> = match format {
            ExportFormat::Parquet => Box::new(ParquetWriter::new(file)?),
            ExportFormat::Jsonl => Box::new(MessagesWriter::new(file)),
            ExportFormat::Atif => Box::new(AtifWriter::new(file, agent)),
        };
        Ok(Self { writer, path, partial: Partial(partial) })
    }

    fn finish(mut self) -> Result<()> {
        self.writer.finish()?;
        drop(self.writer);
        fs::rename(&self.partial.0, &self.path)
            .with_context(|| format!("write {}", self.path.display()))
    }
}
