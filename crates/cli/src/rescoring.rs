//! Scores traces again on an engine, and compares with the logprobs that were recorded.
//!
//! What an engine says of the same token twice differs a little: other batches, other kernels. So
//! a merged trace is held against its own calls, each scored alone in the same run: where its
//! differences are no larger, its contexts are those of the calls.

use crate::display;
use crate::evidence::Evidence;
use anyhow::{Context, Result, bail};
use polar_engine::Engine;
use polar_record::{RecordedCall, RecordedSession};
use polar_types::{CallId, ForkCause, Trace};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Differences so far.
pub(crate) struct Rescored {
    engine: Arc<dyn Engine>,
    share: f64,
    /// Traces seen, scored or not.
    offered: u64,
    found: Summary,
}

/// All differences of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// Traces scored.
    traces: u64,
    /// Traces that were chosen and not scored, because their logprobs are of the distribution
    /// after temperature and truncation, which an engine does not tell of given tokens.
    incomparable: u64,
    /// Traces that were chosen and not scored, because they were sampled behind pictures or sounds,
    /// which are not among their tokens.
    with_media: u64,
    /// Trained tokens of which the engine told no logprob.
    untold: u64,
    /// Tokens of whole traces.
    merged: Deltas,
    /// Tokens of the same calls, each scored alone; none without a journal.
    single: Deltas,
    /// Tokens of whole traces by where they stand.
    parts: BTreeMap<String, Deltas>,
    /// Tokens of whole traces by the weights that sampled them.
    weight_versions: BTreeMap<String, Deltas>,
}

/// How far logprobs are apart.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Deltas {
    tokens: u64,
    mean: f64,
    max: f64,
}

impl Deltas {
    fn add(&mut self, delta: f64) {
        self.tokens += 1;
        self.mean += (delta - self.mean) / self.tokens as f64;
        self.max = self.max.max(delta);
    }
}

impl Rescored {
    /// `share` of the traces will be scored, evenly spread.
    pub(crate) fn new(engine: Arc<dyn Engine>, share: f64) -> Result<Self> {
        if engine.tokens().is_none() {
            bail!(
                "the engine at {} does not take token ids, so that nothing can be scored on it",
                engine.info().url
            );
        }
        Ok(Self { engine, share, offered: 0, found: Summary::default() })
    }

    /// Scores those of a session's traces whose turn it is.
    pub(crate) async fn add(&mut self, evidence: &Evidence, traces: &[Trace]) -> Result<()> {
        let journal = evidence.journal.as_ref();
        for trace in traces {
            let upto = |count: u64| (count as f64 * self.share).ceil();
            let is_chosen = upto(self.offered + 1) > upto(self.offered);
            self.offered += 1;
            if !is_chosen {
                continue;
            }
            if shows_media(trace.prompt_messages.iter().chain(&trace.response_messages)) {
                self.found.with_media += 1;
            } else if !is_comparable(trace) {
                self.found.incomparable += 1;
            } else {
                self.trace(trace, journal)
                    .await
                    .with_context(|| format!("score {} again", evidence.name))?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Summary {
        self.found
    }

    async fn trace(&mut self, trace: &Trace, journal: Option<&RecordedSession>) -> Result<()> {
        let prompt = trace.prompt_ids.len();
        let whole = [&trace.prompt_ids[..], &trace.response_ids[..]].concat();
        let scored = scores(self.engine.as_ref(), &whole, prompt).await?;
        let found = &mut self.found;
        found.traces += 1;
        for (place, run) in replies(trace, journal).into_iter().enumerate() {
            let part = found.parts.entry(part(trace, place)).or_default();
            for at in run {
                let Some(recorded) = trace.response_logprobs[at] else { continue };
                let Some(again) = scored.get(prompt + at).copied().flatten() else {
                    found.untold += 1;
                    continue;
                };
                let delta = f64::from((again - recorded).abs());
                let version = weight_version(trace, at);
                found.merged.add(delta);
                part.add(delta);
                found.weight_versions.entry(version).or_default().add(delta);
            }
        }
        for call in trace.calls.iter().filter_map(|id| recorded_call(journal?, id)) {
            if let Some(journal) = journal {
                score_alone(self.engine.as_ref(), journal, call, &mut found.single).await?;
            }
        }
        Ok(())
    }
}

/// Logprobs from a place on. An engine scores what it could go on from, so that of ids that fill its
/// window the last are left out.
async fn scores(engine: &dyn Engine, ids: &[u32], from: usize) -> Result<Vec<Option<f32>>> {
    let tokens = engine.tokens().context("an engine that takes ids")?;
    let window = engine.info().context_window.map_or(usize::MAX, |window| window as usize);
    let ids = &ids[..ids.len().min(window.saturating_sub(1))];
    match from < ids.len() {
        true => Ok(tokens.score(ids, from).await?),
        false => Ok(Vec::new()),
    }
}

/// Adds the differences of a call that is scored without what came after it.
async fn score_alone(
    engine: &dyn Engine,
    journal: &RecordedSession,
    call: &RecordedCall,
    deltas: &mut Deltas,
) -> Result<()> {
    let ids = (journal.prompt_ids(call), journal.sampled_ids(call));
    let (Some(prompt), Some(sampled)) = ids else { return Ok(()) };
    let scored = scores(engine, &[&prompt[..], &sampled[..]].concat(), prompt.len()).await?;
    if call.logprobs.len() != sampled.len() {
        return Ok(());
    }
    for (recorded, again) in call.logprobs.iter().zip(scored.iter().skip(prompt.len())) {
        if let (Some(recorded), Some(again)) = (recorded.filter(|value| value.is_finite()), again) {
            deltas.add(f64::from((again - recorded).abs()));
        }
    }
    Ok(())
}

fn recorded_call<'a>(journal: &'a RecordedSession, id: &CallId) -> Option<&'a RecordedCall> {
    journal.calls().iter().find(|call| call.meta.call_id == *id)
}

/// Whether recorded logprobs mean what an engine tells of given tokens.
fn is_comparable(trace: &Trace) -> bool {
    let is_varied = trace.sampling["varied"]
        .as_array()
        .is_some_and(|names| names.iter().any(|name| name == "temperature"));
    let temperature = trace.sampling["temperature"].as_f64().unwrap_or(1.0);
    trace.sampling["logprob_mode"] == "raw" || (temperature == 1.0 && !is_varied)
}

/// Whether anything but text is in a conversation.
fn shows_media<'a>(messages: impl Iterator<Item = &'a Value>) -> bool {
    let mut parts = messages.filter_map(|message| message["content"].as_array()).flatten();
    parts.any(|part| !matches!(part["type"].as_str(), Some("text" | "refusal")))
}

/// The response positions of each reply of a trace: as recorded, or else, without a journal, as
/// far as context stands between them.
fn replies(trace: &Trace, journal: Option<&RecordedSession>) -> Vec<Range<usize>> {
    let prompt = trace.prompt_ids.len();
    let mut recorded = Vec::new();
    for call in trace.calls.iter().filter_map(|id| recorded_call(journal?, id)) {
        if let (Some(from), Some(to)) = (call.prompt_end(), call.sequence_end()) {
            let place = |depth: usize| depth.saturating_sub(prompt).min(trace.response_ids.len());
            recorded.push(place(from.depth())..place(to.depth()));
        }
    }
    if recorded.len() == trace.calls.len() {
        return recorded;
    }
    let mut runs: Vec<Range<usize>> = Vec::new();
    for span in &trace.weight_versions {
        let (start, end) = (span.start as usize, (span.end as usize).min(trace.response_ids.len()));
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start.min(end)..end),
        }
    }
    runs
}

/// What stands before the `place`-th reply of a trace.
fn part(trace: &Trace, place: usize) -> String {
    let cause = trace.lineage.fork.cause;
    match (place, cause) {
        (1.., _) => "behind merged context".to_owned(),
        (_, ForkCause::NewLineage | ForkCause::PerRequest) => "first call".to_owned(),
        _ => {
            let cause = serde_json::to_value(cause).unwrap_or_default();
            format!("after a fork, {}", cause.as_str().unwrap_or("unknown"))
        }
    }
}

fn weight_version(trace: &Trace, at: usize) -> String {
    let at = at as u64;
    let span = trace.weight_versions.iter().find(|span| span.start <= at && at < span.end);
    span.and_then(|span| span.version.clone()).unwrap_or_else(|| "unknown".to_owned())
}

impl Summary {
    /// The largest difference, where it is above what is right.
    pub(crate) fn above(&self, most: Option<f64>) -> Option<f64> {
        most.filter(|most| self.merged.max > *most).map(|_| self.merged.max)
    }

    /// A table, and how to read it.
    pub(crate) fn text(&self) -> String {
        let row = |name: String, deltas: &Deltas| {
            let number = |value: f64| format!("{value:.6}");
            vec![name, deltas.tokens.to_string(), number(deltas.mean), number(deltas.max)]
        };
        let mut rows = vec![row("whole traces".to_owned(), &self.merged)];
        rows.extend(self.parts.iter().map(|(part, deltas)| row(format!("  {part}"), deltas)));
        let versions = self.weight_versions.iter();
        rows.extend(versions.map(|(name, deltas)| row(format!("  weights {name}"), deltas)));
        if self.single.tokens > 0 {
            rows.push(row("the same calls alone".to_owned(), &self.single));
        }
        let mut text = format!("{} scored again\n", display::counted(self.traces, "trace"));
        text.push_str(&display::table(&["tokens of", "tokens", "mean |Δ|", "max |Δ|"], &rows));
        if self.single.tokens == 0 && self.traces > 0 {
            text.push_str("note: without journals there are no single calls to compare with\n");
        }
        if self.untold > 0 {
            text.push_str(&format!("note: the engine told nothing of {} tokens\n", self.untold));
        }
        if self.with_media > 0 {
            text.push_str(&format!(
                "note: left out: {} sampled behind pictures or sounds\n",
                display::counted(self.with_media, "trace")
            ));
        }
        if self.incomparable > 0 {
            text.push_str(&format!(
                "note: left out: {} with logprobs of another distribution than the model's own\n",
                display::counted(self.incomparable, "trace")
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_trace_that_shows_anything_but_text_is_told() {
        let with =
            |content: Value| shows_media([json!({"role": "user", "content": content})].iter());
        assert!(!with(json!("a")));
        assert!(!with(json!(null)));
        assert!(!with(json!([{"type": "text", "text": "a"}])));
        let picture = json!({"type": "image_url", "image_url": {"url": "data:,"}});
        assert!(with(json!([{"type": "text", "text": "a"}, picture])));
    }
}
