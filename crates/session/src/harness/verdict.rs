//! How a run ended, from everything that can be known about it.

use super::adapter::{FailurePattern, HarnessAdapter, OutputStream};
use polar_sandbox::ExecEnd;
use polar_types::{ErrorClass, Outcome, Side};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes at the end of an output that are looked at.
pub(crate) const TAIL: u64 = 256 * 1024;

/// What is known after a run.
#[derive(Debug, Clone, Copy)]
pub struct RunEvidence<'a> {
    /// How the process ended.
    pub end: ExecEnd,
    /// Its stdout on the host.
    pub stdout: &'a Path,
    /// Its stderr on the host.
    pub stderr: &'a Path,
    /// Calls in the journal.
    pub calls: u32,
    /// How the last call failed, when it did.
    pub last_call: Option<&'a CallFailure>,
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure {
    /// What the gateway told the harness.
    pub message: String,
    /// Whether the request was at fault: too long, malformed. Otherwise the engine was.
    pub refused: bool,
}

/// Judges a run by the adapter's rule. A run cut off by its budget is `TimedOut`
/// whatever it printed. A failed run whose last call the engine failed is the engine's
/// failure, since the harness could do no better.
pub fn judge(adapter: &HarnessAdapter, evidence: RunEvidence<'_>) -> Outcome {
    let code = match evidence.end {
        ExecEnd::TimedOut => return Outcome::TimedOut,
        ExecEnd::Exited(code) => code,
    };
    let Some(failure) = failure(adapter, &evidence, code) else { return Outcome::Completed };
    let (side, class, message) = match evidence.last_call {
        Some(call) if call.refused => (
            Side::Harness,
            ErrorClass::Invalid,
            format!("{failure}, after its last call was refused: {}", call.message),
        ),
        Some(call) => (
            Side::Engine,
            ErrorClass::Unavailable,
            format!("{failure}, after the engine failed its last call: {}", call.message),
        ),
        None => (
            Side::Harness,
            ErrorClass::Internal,
            format!("{failure}; see stdout.log and stderr.log of the session"),
        ),
    };
    Outcome::Failed { side, class, message }
}

/// What is wrong with a run, if anything.
fn failure(adapter: &HarnessAdapter, evidence: &RunEvidence<'_>, code: i32) -> Option<String> {
    let rule = &adapter.success;
    let name = &adapter.name;
    if !rule.exit_codes.contains(&code) {
        let words = last_words(evidence);
        return Some(match code {
            127 => format!("{name} could not be started (exit code 127){words}"),
            _ => format!("{name} ended with exit code {code}{words}"),
        });
    }
    if let Some(said) = rule.failures.iter().find_map(|failure| said(failure, evidence)) {
        return Some(said);
    }
    if !rule.requires_call {
        return None;
    }
    if evidence.calls == 0 {
        return Some(format!(
            "{name} ended with exit code {code} without a single model call, so it does not use \
             the gateway as its adapter tells it to{}",
            last_words(evidence)
        ));
    }
    evidence.last_call.map(|_| format!("{name} gave up with exit code {code}"))
}

/// What the output says that means failure.
fn said(failure: &FailurePattern, evidence: &RunEvidence<'_>) -> Option<String> {
    let pattern = regex::Regex::new(&failure.pattern).ok()?;
    let streams: &[&Path] = match failure.stream {
        OutputStream::Stdout => &[evidence.stdout],
        OutputStream::Stderr => &[evidence.stderr],
        OutputStream::Any => &[evidence.stdout, evidence.stderr],
    };
    streams.iter().find_map(|stream| {
        let text = tail(stream).ok()?;
        let found = pattern.find(&text)?;
        let line = text[found.start()..].lines().next().unwrap_or_default();
        Some(format!("{}: {}", failure.meaning, clip(line)))
    })
}

/// The last line of stderr, or of stdout when stderr is empty.
fn last_words(evidence: &RunEvidence<'_>) -> String {
    [evidence.stderr, evidence.stdout]
        .iter()
        .filter_map(|path| tail(path).ok())
        .find_map(|text| text.lines().rev().find(|l| !l.trim().is_empty()).map(clip))
        .map(|line| format!(", saying: {line}"))
        .unwrap_or_default()
}

fn clip(line: &str) -> String {
    let line = line.trim();
    match line.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The end of a file as text, however large the file.
pub(crate) fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The whole lines within the end of a file.
pub(crate) fn tail_lines(path: &Path) -> io::Result<String> {
    let text = tail(path)?;
    if std::fs::metadata(path)?.len() <= TAIL {
        return Ok(text);
    }
    // It may begin within a line, and half a line can look like a whole one.
    Ok(text.split_once('\n').map(|(_, lines)| lines.to_owned()).unwrap_or_default())
}
