//! How a run ended, from everything that can be known about it.

use super::adapter::{FailurePattern, HarnessAdapter, OutputStream};
use polar_sandbox::ExecEnd;
use polar_types::{ErrorClass, Outcome, Side};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

/// Bytes at the end of an output that are looked at.
pub(crate) const TAIL: u64 = 256 * 1024;

/// What is known after a run.
#[derive(Debug, Clone, Copy)]
pub struct RunEvidence<'a> {
    /// How the process ended.
    pub end: ExecEnd,
    /// How long it might run.
    pub budget: Duration,
    /// Its stdout on the host.
    pub stdout: &'a Path,
    /// Its stderr on the host.
    pub stderr: &'a Path,
    /// Calls in the journal.
    pub calls: u32,
    /// How the last call failed, when it did.
    pub last_call: Option<&'a CallFailure>,
    /// That calls had to wait for an engine that was away.
    pub outage: Option<&'a OutageSeen>,
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure {
    /// What the gateway told the harness.
    pub message: String,
    /// Whether the request was at fault: too long, malformed. Otherwise the engine was.
    pub refused: bool,
    /// The engine was not there, or failed by its own word; otherwise it gave no whole reply.
    pub outage: bool,
}

/// What an outage of the engine did to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutageSeen {
    /// What was seen of the engine.
    pub reason: String,
    /// How long a call or more waited for it.
    pub waited: Duration,
    /// Whether the last call still waited when it ended.
    pub at_end: bool,
}

/// Share of its time that a run may lose to an outage and still have run out of it by itself.
const OUTAGE_BORNE: f64 = 0.1;

/// Judges a run by the adapter's rule. A run cut off by its budget is `TimedOut` whatever it
/// printed, unless the engine took the time. A failed run whose last call the engine failed is
/// the engine's failure, since the harness could do no better; and so is any run that ended
/// while a call waited for the engine.
pub fn judge(adapter: &HarnessAdapter, evidence: RunEvidence<'_>) -> Outcome {
    let lost = evidence.outage.filter(|outage| {
        let borne = evidence.budget.mul_f64(OUTAGE_BORNE);
        outage.at_end || (evidence.end == ExecEnd::TimedOut && outage.waited > borne)
    });
    if let Some(outage) = lost {
        let (name, waited) = (&adapter.name, outage.waited.as_secs_f64());
        let message = format!(
            "{name} waited {waited:.0} s for its engine and could not go on: {}",
            outage.reason
        );
        return Outcome::Failed { side: Side::Engine, class: ErrorClass::Unavailable, message };
    }
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
            if call.outage { ErrorClass::Unavailable } else { ErrorClass::Internal },
            format!("{failure}, after the engine failed its last call: {}", call.message),
        ),
        None => {
            let never_started = evidence.calls == 0 && matches!(code, NOT_FOUND | NOT_EXECUTABLE);
            let class = if never_started { ErrorClass::NotFound } else { ErrorClass::Internal };
            let logs = "see stdout.log and stderr.log of the session";
            (Side::Harness, class, format!("{failure}; {logs}"))
        }
    };
    Outcome::Failed { side, class, message }
}

/// What a shell, and the node's own start of a command, end with.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

/// What is wrong with a run, if anything.
fn failure(adapter: &HarnessAdapter, evidence: &RunEvidence<'_>, code: i32) -> Option<String> {
    let rule = &adapter.success;
    let name = &adapter.name;
    if !rule.exit_codes.contains(&code) {
        let words = last_words(evidence);
        let unheard = if evidence.calls == 0 { " before its first model call" } else { "" };
        return Some(match code {
            NOT_FOUND if evidence.calls == 0 => {
                format!("the agent's program was not found: {name} ended with exit code 127{words}")
            }
            NOT_EXECUTABLE if evidence.calls == 0 => format!(
                "the agent's program could not be executed: {name} ended with exit code 126{words}"
            ),
            // Its last words are ours, and say why.
            137 if words.contains("polar: ended, because") => {
                format!("{name} was ended (exit code 137){unheard}{words}")
            }
            _ => format!("{name} {}{unheard}{words}", end_in_words(code)),
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

/// An exit code above 128 tells of a signal, whoever waited for the program.
fn end_in_words(code: i32) -> String {
    let signal = match code - 128 {
        4 => "SIGILL, an instruction that this processor does not have",
        6 => "SIGABRT, by which a program ends itself",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL, as when memory runs out (`runtime.memory_mb`)",
        11 => "SIGSEGV, a crash",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        25 => "SIGXFSZ, by a file that got longer than `runtime.storage_mb` lets it",
        1..=64 => return format!("was killed by signal {} (exit code {code})", code - 128),
        _ => return format!("ended with exit code {code}"),
    };
    format!("was killed by {signal} (exit code {code})")
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
