//! What the evidence of one run says about a harness.

use super::expectation::{Bounds, Expectations, ExpectedEnd};
use super::labels::{LabelledCall, REFUSED, UNLABELLED, by_role};
use crate::harness::HarnessAdapter;
use polar_record::{RecordedCall, RecordedSession};
use polar_types::{ForkCause, Outcome, SessionReport, Side, UntrainedReason};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How a finding is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    pub(super) expect: &'a Expectations,
    /// Whether the scenario's script played the model.
    pub(super) scripted: bool,
    pub(super) session: &'a SessionReport,
    pub(super) recorded: Option<&'a RecordedSession>,
    pub(super) calls: &'a [LabelledCall],
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
    let Some(recorded) = evidence.recorded else { return findings };
    findings.push(requests(&evidence, recorded.calls()));
    if !recorded.calls().is_empty() {
        findings.push(dialect(&evidence, recorded.calls()));
        findings.push(streaming(recorded.calls()));
        findings.push(tool_calls(&evidence, recorded));
        if evidence.scripted {
            findings.push(roles(&evidence));
        }
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
        (Some(recipe), false, true) => {
            let packages: Vec<_> = recipe.npm.iter().chain(&recipe.pip).cloned().collect();
            Finding::passed(SUBJECT, packages.join(", "))
        }
        (Some(_), false, false) => Finding::failed(
            SUBJECT,
            failure_message(evidence.session),
            "see that npm or pip works on this machine and reaches a registry",
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
    let expected = evidence.expect.calls.filter(|_| evidence.scripted);
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
        count => match expected.filter(|bounds| !bounds.holds(count as u64)) {
            None => Finding::passed(SUBJECT, format!("{count} model calls")),
            Some(bounds) => Finding::failed(
                SUBJECT,
                format!("{count} model calls where {bounds} were expected"),
                "see what it asks for besides; `polar logs` and the journal show each call",
            ),
        },
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
fn tool_calls(evidence: &Evidence<'_>, recorded: &RecordedSession) -> Finding {
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
            "say in `check.tools.shell` of the adapter which of them runs a command, and with \
             which arguments",
        ),
        (wanted, false) if evidence.expect.work != Some(true) => {
            Finding::passed(SUBJECT, format!("{wanted} made"))
        }
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

/// Whether each call was given the role that is truly its own, and whether those who were
/// to call did.
fn roles(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "roles";
    let counts = by_role(evidence.calls);
    let found = counted(&counts);
    let mut wrong = BTreeMap::new();
    for call in evidence.calls.iter().filter(|call| call.is_wrong()) {
        let pair = format!(
            "{} taken for {}",
            call.role.as_deref().unwrap_or_default(),
            call.assigned.as_deref().unwrap_or("nothing")
        );
        *wrong.entry(pair).or_default() += 1;
    }
    if !wrong.is_empty() {
        return Finding::failed(
            SUBJECT,
            format!("{found}; wrong: {}", counted(&wrong)),
            "say in `roles` of the adapter how its calls tell who makes them",
        );
    }
    for (role, bounds) in &evidence.expect.roles {
        let count = counts.get(role).copied().unwrap_or(0);
        if !bounds.holds(count) {
            return Finding::failed(
                SUBJECT,
                format!("{found}; {bounds} × {role} expected"),
                "see what the program printed; it did not go on as the scenario foresees",
            );
        }
    }
    if counts.contains_key(REFUSED) && !evidence.expect.roles.contains_key(REFUSED) {
        return Finding::warning(
            SUBJECT,
            format!("{found}; the engine refuses none in this scenario"),
            "see in the journal which requests it refused, and why",
        );
    }
    if counts.contains_key(UNLABELLED) {
        return Finding::warning(
            SUBJECT,
            format!("{found}; the scenario does not foresee all of them"),
            "nothing, if these are helper requests of its own",
        );
    }
    Finding::passed(SUBJECT, found)
}

/// The prefix property: a lineage whose prompts only ever grow is one trace.
fn lineages(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "traces";
    let session = evidence.session;
    let started = session.forks.get(&ForkCause::NewLineage).copied().unwrap_or(0);
    let is_foreseen = |cause: &ForkCause| {
        // What never reached the harness it cannot go on from.
        matches!(cause, ForkCause::NewLineage | ForkCause::Unanswered)
            || evidence.expect.forks.contains(cause)
    };
    let causes = |foreseen: bool| {
        let causes = session.forks.iter().filter(|(cause, _)| **cause != ForkCause::NewLineage);
        let causes = causes.filter(|(cause, _)| is_foreseen(cause) == foreseen);
        causes.map(|(cause, count)| format!("{count} × {}", word(cause))).collect::<Vec<_>>()
    };
    let found = format!("{} from {} calls, {started} lineages", session.traces, session.calls);
    if let [_, ..] = causes(false).as_slice() {
        return Finding::warning(
            SUBJECT,
            format!("{found}; broken by {}", causes(false).join(", ")),
            "no token is lost, but each break repeats its context; look for settings that keep \
             the history as it is",
        );
    }
    let expected = evidence.expect.traces.filter(|_| evidence.scripted);
    if let Some(bounds) = expected.filter(|bounds| !bounds.holds(session.traces.into())) {
        return Finding::warning(
            SUBJECT,
            format!("{found}; {bounds} expected"),
            "look at the calls that start them",
        );
    }
    match causes(true).as_slice() {
        [] => Finding::passed(SUBJECT, format!("{found}, each prompt extends the last")),
        foreseen => Finding::passed(SUBJECT, format!("{found}; {}", foreseen.join(", "))),
    }
}

fn tokens(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "tokens";
    let tokens = &evidence.session.tokens;
    let count = |reason| tokens.untrained.get(&reason).copied().unwrap_or(0);
    let missing = count(UntrainedReason::IdsMissing) + count(UntrainedReason::LogprobMissing);
    let found = format!("{} sampled, {} to train on", tokens.sampled, tokens.trained);
    if missing > 0 {
        let mend =
            "the engine gave no ids or logprobs for them; `polar doctor` says how to start it";
        return Finding::failed(SUBJECT, format!("{found}, {missing} without ids"), mend);
    }
    if !tokens.is_conserved() {
        return Finding::failed(
            SUBJECT,
            format!("{found}, which does not add up with those left out"),
            "this is Polar's mistake; please report it with the session's journal",
        );
    }
    let left_out = tokens.untrained.iter().filter(|(_, count)| **count > 0);
    let left_out: BTreeMap<_, _> = left_out.map(|(reason, n)| (word(reason), *n)).collect();
    let found = match left_out.is_empty() {
        true => found,
        false => format!("{found}, {}", counted(&left_out)),
    };
    match unforeseen(evidence) {
        None => Finding::passed(SUBJECT, found),
        Some(what) => Finding::warning(
            SUBJECT,
            format!("{found}; {what}"),
            "see which calls these are; the harness may have left before their end",
        ),
    }
}

/// Tokens left out of training for a reason, or in a number, that the scenario does not
/// foresee. Side calls are never trained, and whether they are side calls is looked at with
/// the roles.
fn unforeseen(evidence: &Evidence<'_>) -> Option<String> {
    let untrained = &evidence.session.tokens.untrained;
    let foreseen = &evidence.expect.untrained;
    let surprise = untrained.iter().find(|(reason, count)| {
        **count > 0 && **reason != UntrainedReason::SideCall && !foreseen.contains_key(reason)
    });
    if let Some((reason, _)) = surprise.filter(|_| evidence.scripted) {
        return Some(format!("none {} expected", word(reason)));
    }
    let expected = |(reason, bounds): &(&UntrainedReason, &Bounds)| {
        !bounds.holds(untrained.get(reason).copied().unwrap_or(0))
    };
    let (reason, bounds) = foreseen.iter().find(expected).filter(|_| evidence.scripted)?;
    Some(format!("{bounds} {} expected", word(reason)))
}

/// `2 × main, 1 × title`.
fn counted(counts: &BTreeMap<String, u64>) -> String {
    counts.iter().map(|(what, n)| format!("{n} × {what}")).collect::<Vec<_>>().join(", ")
}

fn end(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "end";
    let session = evidence.session;
    let by_harness = matches!(&session.outcome, Outcome::Failed { side: Side::Harness, .. });
    match (&session.outcome, evidence.expect.end) {
        (Outcome::Completed, ExpectedEnd::Failed) => Finding::failed(
            SUBJECT,
            "it ended as if all were well",
            "say in `success` of the adapter how a failure is told",
        ),
        (Outcome::Failed { message, .. }, ExpectedEnd::Failed | ExpectedEnd::Any) if by_harness => {
            Finding::passed(SUBJECT, format!("it gave up: {message}"))
        }
        (Outcome::Completed, _) => match session.exit_code {
            Some(code) => Finding::passed(SUBJECT, format!("exit code {code}")),
            None => Finding::passed(SUBJECT, "by itself"),
        },
        (Outcome::TimedOut, _) => Finding::failed(
            SUBJECT,
            "it had not ended by its budget",
            "look for a flag that makes it end after the task, and see that stdin is not waited for",
        ),
        (Outcome::Failed { message, .. }, _) => Finding::failed(
            SUBJECT,
            message,
            "if this is a good end, say so in `success` of the adapter",
        ),
        (Outcome::Cancelled, _) => Finding::failed(SUBJECT, "it was cancelled", "check again"),
    }
}

fn work(evidence: &Evidence<'_>) -> Finding {
    const SUBJECT: &str = "work";
    let session = evidence.session;
    let mend = "if tool calls came back, see that the program works in the sandbox's work folder";
    match (session.reward, &session.grade_error, evidence.expect.work) {
        (_, _, None) => Finding::passed(SUBJECT, "it is not looked at here"),
        (_, Some(error), _) => Finding::failed(SUBJECT, error, "see the error"),
        (Some(1.0), _, Some(true)) => Finding::passed(SUBJECT, "what it was asked for is there"),
        (Some(1.0), _, Some(false)) => {
            Finding::failed(SUBJECT, "what it was asked for is there all the same", "look how")
        }
        (_, _, Some(false)) => Finding::passed(SUBJECT, "not done, as it must be here"),
        (_, _, Some(true)) if evidence.scripted => {
            Finding::failed(SUBJECT, "what it was asked for is not there", mend)
        }
        (_, _, Some(true)) => Finding::warning(SUBJECT, "what it was asked for is not there", mend),
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
