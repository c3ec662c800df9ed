//! What the evidence of one run says about a harness.

use crate::harness::HarnessAdapter;
use polar_record::{RecordedCall, RecordedSession};
use polar_types::{ForkCause, Outcome, SessionReport, Side, UntrainedReason};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// How a finding is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Passed,
    /// It works, and costs something.
    Warning,
    /// It does not work.
    Failed,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub subject: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it, unless it passed.
    pub mend: Option<String>,
}

impl Finding {
    fn passed(subject: &'static str, found: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Passed, found: found.into(), mend: None }
    }

    fn warning(subject: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        let (found, mend) = (found.into(), Some(mend.into()));
        Self { subject, verdict: Verdict::Warning, found, mend }
    }

    fn failed(subject: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        let (found, mend) = (found.into(), Some(mend.into()));
        Self { subject, verdict: Verdict::Failed, found, mend }
    }
}

/// What a run left to look at.
pub(super) struct Evidence<'a> {
    pub(super) adapter: &'a HarnessAdapter,
    pub(super) session: &'a SessionReport,
    pub(super) journal: &'a Path,
    pub(super) installed_before: bool,
    pub(super) installed: bool,
}

/// Looks at everything that happened, in order, and stops where nothing more can have
/// happened.
pub(super) fn examine(evidence: Evidence<'_>) -> Vec<Finding> {
    let mut findings = vec![installation(&evidence)];
    if !evidence.installed {
        return findings;
    }
    findings.push(start(&evidence));
    let Ok(recorded) = RecordedSession::read(evidence.journal) else { return findings };
    findings.push(requests(&evidence, recorded.calls()));
    if !recorded.calls().is_empty() {
        findings.push(dialect(&evidence, recorded.calls()));
        findings.push(streaming(recorded.calls()));
        findings.push(tool_calls(&recorded));
        findings.push(lineages(&evidence));
        findings.push(tokens(&evidence));
    }
    findings.push(end(&evidence));
    findings.push(work(&evidence));
    findings
}

fn installation(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "installed";
    match (&evidence.adapter.install, evidence.installed_before, evidence.installed) {
        (None, _, _) => Finding::passed(SUBJECT, "the adapter takes the program as it is"),
        (Some(_), true, _) => Finding::passed(SUBJECT, "it was there already"),
        (Some(recipe), false, true) => Finding::passed(SUBJECT, recipe.npm.join(", ")),
        (Some(_), false, false) => Finding::failed(
            SUBJECT,
            failure_message(evidence.session),
            "see that npm works on this machine and reaches a registry",
        ),
    }
}

fn start(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "started";
    let session = evidence.session;
    if session.exit_code == Some(127) || session.exit_code == Some(126) {
        return Finding::failed(
            SUBJECT,
            failure_message(session),
            "correct `command` of the adapter; the first word must be a program in the sandbox",
        );
    }
    match &session.outcome {
        Outcome::Failed { side: Side::Sandbox | Side::Polar, message, .. }
            if session.exit_code.is_none() =>
        {
            Finding::failed(SUBJECT, message, "mend the sandbox; `polar doctor` looks at it")
        }
        Outcome::Failed { side: Side::Harness, message, .. } if session.exit_code.is_none() => {
            Finding::failed(SUBJECT, message, "correct the adapter or the harness's settings")
        }
        _ => Finding::passed(SUBJECT, "yes"),
    }
}

fn requests(evidence: &Evidence<'_>, calls: &[RecordedCall]) -> Finding {
    const SUBJECT: &str = "requests";
    match calls.len() {
        0 => Finding::failed(
            SUBJECT,
            "none reached the gateway with the session's secret",
            format!(
                "give the program {{{{ base_url }}}} and {{{{ api_key }}}} in `env_vars` or \
                 `files`; it speaks {}, and its own name for the base URL may want a /v1",
                word(&evidence.adapter.provider)
            ),
        ),
        count => Finding::passed(SUBJECT, format!("{count} model calls")),
    }
}

fn dialect(evidence: &Evidence<'_>, calls: &[RecordedCall]) -> Finding {
    const SUBJECT: &str = "dialect";
    let spoken: BTreeSet<_> = calls.iter().map(|call| call.meta.dialect.as_str()).collect();
    let spoken = spoken.into_iter().collect::<Vec<_>>().join(", ");
    match evidence.adapter.provider.dialect() {
        Some(dialect) if dialect != spoken => Finding::failed(
            SUBJECT,
            format!("it speaks {spoken} while the adapter says {dialect}"),
            "correct `provider` of the adapter, or make the program use that API",
        ),
        _ => Finding::passed(SUBJECT, spoken),
    }
}

fn streaming(calls: &[RecordedCall]) -> Finding {
    let streamed = calls.iter().filter(|call| call.meta.stream).count();
    Finding::passed("streaming", format!("{streamed} of {} calls", calls.len()))
}

/// Whether what the model asked for was done and told to it.
fn tool_calls(recorded: &RecordedSession) -> Finding {
    const SUBJECT: &str = "tool calls";
    let asked = |reply: &Value| reply["tool_calls"].as_array().map_or(0, Vec::len);
    let calls = recorded.calls();
    let wanted: usize = calls.iter().map(|call| asked(&recorded.reply(call))).sum();
    let answered = calls
        .iter()
        .any(|call| recorded.messages(call, 0).iter().any(|message| message["role"] == "tool"));
    let offered: BTreeSet<_> = calls
        .iter()
        .filter_map(|call| recorded.tools(call))
        .flat_map(|tools| tools.as_array().cloned().unwrap_or_default())
        .filter_map(|tool| Some(tool["function"]["name"].as_str()?.to_owned()))
        .collect();
    let offered = offered.into_iter().collect::<Vec<_>>().join(", ");
    match (wanted, answered) {
        (0, _) if offered.is_empty() => {
            Finding::warning(SUBJECT, "it offers no tools", "nothing, if it is no agent")
        }
        (0, _) => Finding::warning(
            SUBJECT,
            format!("the model made none of the tools offered: {offered}"),
            "the check's scripted model knows bash and Bash; check against a real engine",
        ),
        (wanted, true) => {
            Finding::passed(SUBJECT, format!("{wanted} made, results came back ({offered})"))
        }
        (wanted, false) => Finding::failed(
            SUBJECT,
            format!("{wanted} made, yet no result came back"),
            "let the program run tools without asking (see its flags for headless use)",
        ),
    }
}

/// The prefix property: a lineage whose prompts only ever grow is one trace.
fn lineages(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "traces";
    let session = evidence.session;
    let started = session.forks.get(&ForkCause::NewLineage).copied().unwrap_or(0);
    let broken: Vec<_> = session
        .forks
        .iter()
        .filter(|(cause, _)| **cause != ForkCause::NewLineage)
        .map(|(cause, count)| format!("{count} × {}", word(cause)))
        .collect();
    let found = format!("{} from {} calls, {started} lineages", session.traces, session.calls);
    match broken.as_slice() {
        [] => Finding::passed(SUBJECT, format!("{found}, each prompt extends the last")),
        broken => Finding::warning(
            SUBJECT,
            format!("{found}; broken by {}", broken.join(", ")),
            "no token is lost, but each break repeats its context; look for settings that keep \
             the history as it is",
        ),
    }
}

fn tokens(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "tokens";
    let tokens = &evidence.session.tokens;
    let missing = [UntrainedReason::IdsMissing, UntrainedReason::LogprobMissing]
        .iter()
        .filter_map(|reason| tokens.untrained.get(reason))
        .sum::<u64>();
    let found = format!("{} sampled, {} to train on", tokens.sampled, tokens.trained);
    if missing > 0 {
        let mend =
            "the engine gave no ids or logprobs for them; `polar doctor` says how to start it";
        return Finding::failed(SUBJECT, format!("{found}, {missing} without ids"), mend);
    }
    Finding::passed(SUBJECT, found)
}

fn end(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "end";
    let session = evidence.session;
    match &session.outcome {
        Outcome::Completed => match session.exit_code {
            Some(code) => Finding::passed(SUBJECT, format!("exit code {code}")),
            None => Finding::passed(SUBJECT, "by itself"),
        },
        Outcome::TimedOut => Finding::failed(
            SUBJECT,
            "it had not ended by its budget",
            "look for a flag that makes it end after the task, and see that stdin is not waited for",
        ),
        Outcome::Failed { message, .. } => Finding::failed(
            SUBJECT,
            message,
            "if this is a good end, say so in `success` of the adapter",
        ),
        Outcome::Cancelled => Finding::failed(SUBJECT, "it was cancelled", "check again"),
    }
}

fn work(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "work";
    let session = evidence.session;
    match (session.reward, &session.grade_error) {
        (Some(1.0), _) => Finding::passed(SUBJECT, "the file it was asked for is there"),
        (_, Some(error)) => Finding::failed(SUBJECT, error, "see the error"),
        _ => Finding::warning(
            SUBJECT,
            "the file it was asked for is not there",
            "if tool calls came back, see that the program works in the sandbox's work folder",
        ),
    }
}

fn failure_message(session: &SessionReport) -> String {
    match &session.outcome {
        Outcome::Failed { message, .. } => message.clone(),
        Outcome::TimedOut => "it ran out of time".to_owned(),
        Outcome::Completed | Outcome::Cancelled => "no reason is known".to_owned(),
    }
}

/// The name that users write.
fn word<T: serde::Serialize + std::fmt::Debug>(value: &T) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_else(|| format!("{value:?}"))
}
