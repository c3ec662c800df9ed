//! `polar trajectories`: as data, or as text with the trained tokens marked.

use crate::api::Api;
use crate::args::{Format, Trajectories};
use crate::detokenizer::Detokenizer;
use crate::display::{self, SpanKind};
use anyhow::{Context, Result};
use futures_util::StreamExt as _;
use polar_trajectory::unroll;
use polar_types::Trajectory;
use std::io::Write as _;

pub(crate) async fn trajectories(args: Trajectories) -> Result<()> {
    let api = Api::of(args.server)?;
    let format = match args.format {
        Format::Json => "json",
        Format::Jsonl => "jsonl",
        Format::Text => return as_text(&api, &args.task, args.engine.as_deref()).await,
    };
    // Passed on as it comes: a task's trajectories can be larger than memory.
    let mut body = api.trajectories(&args.task, format).await?.bytes_stream();
    let mut out = std::io::stdout().lock();
    while let Some(piece) = body.next().await {
        out.write_all(&piece.context("read the trajectories")?)?;
    }
    out.flush()?;
    Ok(())
}

async fn as_text(api: &Api, task: &str, engine: Option<&str>) -> Result<()> {
    let mut shown = 0;
    for session in api.sessions(task).await? {
        if let Some(trajectory) = api.trajectory(session.session_id.as_str()).await? {
            print_trajectory(&trajectory, engine).await?;
            shown += 1;
        }
    }
    if shown == 0 {
        writeln!(std::io::stderr(), "no session of {task} has a trajectory yet")?;
    }
    Ok(())
}

/// Prints a trajectory's traces. Text comes from the engine's own tokenizer; where the
/// engine is gone, ids are shown instead.
pub(crate) async fn print_trajectory(trajectory: &Trajectory, engine: Option<&str>) -> Result<()> {
    let colours = display::colours();
    let traces = unroll(trajectory)?;
    for (index, trace) in traces.iter().enumerate() {
        let trained = trace.loss_mask.iter().filter(|mask| **mask == 1).count();
        let mut text = format!(
            "── {} trace {index} of {}: {} prompt, {} response, {trained} trained tokens, \
             {} calls, reward {}\n",
            trajectory.session_id,
            traces.len(),
            trace.prompt_ids.len(),
            trace.response_ids.len(),
            trace.calls.len(),
            trace.reward.map_or("none".to_owned(), |reward| reward.to_string()),
        );
        let detokenizer = Detokenizer::of(&trace.sampling["engine"], engine);
        for span in display::spans(trace) {
            text.push_str(&display::paint(&detokenizer.text(span.ids).await, span.kind, colours));
        }
        text.push('\n');
        std::io::stdout().lock().write_all(text.as_bytes())?;
    }
    let legend = [
        display::paint("trained", SpanKind::Trained, colours),
        display::paint("context", SpanKind::Context, colours),
    ];
    writeln!(std::io::stdout(), "({})", legend.join(", "))?;
    Ok(())
}
