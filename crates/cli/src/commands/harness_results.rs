//! What `polar harness check` found, for people, programs and the documentation.

use crate::display;
use jiff::Timestamp;
use polar_session::check::{CheckReport, Finding, Verdict};
use polar_types::ForkCause;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// All results of one command.
pub(crate) struct Results {
    pub(crate) all: Vec<CheckResult>,
    /// The kind of sandbox.
    pub(crate) runtime: &'static str,
    /// The engine given; the simulator when absent.
    pub(crate) engine: Option<String>,
    /// Whether the simulator is used in token mode.
    pub(crate) token_mode: bool,
    /// Whether warnings are failures.
    pub(crate) strict: bool,
}

/// One adapter in one scenario.
pub(crate) struct CheckResult {
    pub(crate) harness: String,
    pub(crate) version: String,
    pub(crate) scenario: String,
    pub(crate) found: Found,
}

/// What came of it.
pub(crate) enum Found {
    Report(Box<CheckReport>),
    /// The scenario is not for this adapter, and why.
    LeftOut(String),
    /// The check itself could not be made.
    Error(String),
}

/// What a result comes down to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sum {
    Passed,
    Warned,
    Failed,
    LeftOut,
}

impl Sum {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Warned => "passed with warnings",
            Self::Failed => "failed",
            Self::LeftOut => "left out",
        }
    }
}

const COLUMNS: [&str; 12] = [
    "harness",
    "version",
    "scenario",
    "result",
    "exit",
    "calls",
    "traces",
    "trained",
    "forks",
    "prompt tokens",
    "cached",
    "seconds",
];

impl Results {
    pub(crate) fn failed(&self) -> usize {
        self.count(Sum::Failed)
    }

    fn count(&self, sum: Sum) -> usize {
        self.all.iter().filter(|result| result.sum(self.strict) == sum).count()
    }

    /// A table, and behind it all that is not as it should be. A single result is shown
    /// with all that was looked at.
    pub(crate) fn as_text(&self) -> String {
        let mut text = String::new();
        let alone = self.all.len() == 1;
        for result in &self.all {
            if alone || matches!(result.sum(self.strict), Sum::Failed | Sum::Warned) {
                result.tell(&mut text, !alone);
            }
        }
        if alone {
            return text;
        }
        let rows: Vec<_> = self.all.iter().map(|result| result.row(self.strict)).collect();
        text.push_str(&display::table(&COLUMNS, &rows));
        let passed = self.count(Sum::Passed) + self.count(Sum::Warned);
        let left_out = match self.count(Sum::LeftOut) {
            0 => String::new(),
            count => format!(" ({count} left out)"),
        };
        let seconds: f64 = self.all.iter().filter_map(CheckResult::seconds).sum();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\n{passed} passed, {} failed{left_out} in {seconds:.0} s of work",
            self.failed()
        );
        text
    }

    pub(crate) fn as_json(&self) -> Value {
        let results: Vec<_> = self.all.iter().map(|result| result.as_json(self.strict)).collect();
        json!({"runtime": self.runtime, "engine": self.engine, "results": results})
    }

    /// The part of the documentation that a run writes.
    pub(crate) fn as_markdown(&self) -> String {
        let engine = self.engine.as_deref().unwrap_or("the engine simulator");
        let mode = if self.token_mode { " in token mode" } else { "" };
        let today = Timestamp::now().strftime("%-d %B %Y");
        let mut text = format!(
            "Made on {today} by `polar harness check` in `{}` sandboxes against {engine}{mode}.\n\n",
            self.runtime
        );
        let mut line = |cells: &[String]| {
            let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        };
        line(&COLUMNS.map(str::to_owned));
        line(&COLUMNS.map(|_| "---".to_owned()));
        for result in &self.all {
            line(&result.row(self.strict));
        }
        text
    }
}

impl CheckResult {
    fn sum(&self, strict: bool) -> Sum {
        match &self.found {
            Found::LeftOut(_) => Sum::LeftOut,
            Found::Error(_) => Sum::Failed,
            Found::Report(report) => match report.verdict() {
                Verdict::Passed => Sum::Passed,
                Verdict::Warning if !strict => Sum::Warned,
                Verdict::Warning | Verdict::Failed => Sum::Failed,
            },
        }
    }

    fn seconds(&self) -> Option<f64> {
        match &self.found {
            Found::Report(report) => Some(report.took.as_secs_f64()),
            Found::LeftOut(_) | Found::Error(_) => None,
        }
    }

    /// One line for each as it ends.
    pub(crate) fn line(&self, strict: bool) -> String {
        let mark = match self.sum(strict) {
            Sum::Passed => '✓',
            Sum::Warned => '!',
            Sum::Failed => '✗',
            Sum::LeftOut => '-',
        };
        let how = match &self.found {
            Found::Report(report) => format!("{:.1} s", report.took.as_secs_f64()),
            Found::LeftOut(why) | Found::Error(why) => why.clone(),
        };
        format!("{mark} {} {} {}: {how}", self.harness, self.version, self.scenario)
    }

    fn row(&self, strict: bool) -> Vec<String> {
        let mut row = vec![
            self.harness.clone(),
            self.version.clone(),
            self.scenario.clone(),
            self.sum(strict).word().to_owned(),
        ];
        match &self.found {
            Found::Report(report) => {
                let session = &report.session;
                row.extend([
                    session.exit_code.map_or("-".to_owned(), |code| code.to_string()),
                    calls(report),
                    session.traces.to_string(),
                    share(session.tokens.trained, session.tokens.sampled),
                    forks(report),
                    report.prompts.sent.to_string(),
                    share(report.prompts.cached, report.prompts.sent),
                    format!("{:.1}", report.took.as_secs_f64()),
                ]);
            }
            Found::LeftOut(_) | Found::Error(_) => {
                row.extend(std::iter::repeat_n("-".to_owned(), 8));
            }
        }
        row
    }

    /// All that was looked at, or only what is not as it should be.
    fn tell(&self, text: &mut String, with_heading: bool) {
        if with_heading {
            let _ = writeln!(text, "{} {} {}", self.harness, self.version, self.scenario);
        }
        let report = match &self.found {
            Found::Report(report) => report,
            Found::LeftOut(why) | Found::Error(why) => {
                let _ = writeln!(text, "✗ {why}\n");
                return;
            }
        };
        for Finding { subject, verdict, found, mend } in &report.findings {
            if with_heading && *verdict == Verdict::Passed {
                continue;
            }
            let _ = writeln!(text, "{} {subject:<11} {found}", mark(*verdict));
            if let Some(mend) = mend {
                let _ = writeln!(text, "  {:<11} → {mend}", "");
            }
        }
        if !report.passed() && !report.output.is_empty() {
            let _ = writeln!(text, "\nWhat it printed last:\n{}", report.output);
        }
        if with_heading {
            text.push('\n');
        }
    }

    fn as_json(&self, strict: bool) -> Value {
        let mut result = json!({
            "harness": self.harness,
            "version": self.version,
            "scenario": self.scenario,
            "result": self.sum(strict).word(),
        });
        match &self.found {
            Found::LeftOut(why) | Found::Error(why) => result["reason"] = why.clone().into(),
            Found::Report(report) => {
                let findings = report.findings.iter().map(|finding| {
                    json!({
                        "subject": finding.subject,
                        "verdict": match finding.verdict {
                            Verdict::Passed => "passed",
                            Verdict::Warning => "warning",
                            Verdict::Failed => "failed",
                        },
                        "found": finding.found,
                        "mend": finding.mend,
                    })
                });
                let calls = report.calls.iter().map(
                    |call| json!({"rule": call.rule, "role": call.role, "assigned": call.assigned}),
                );
                result["findings"] = findings.collect();
                result["calls"] = calls.collect();
                result["session"] = serde_json::to_value(&report.session).unwrap_or_default();
                result["prompt_tokens"] = report.prompts.sent.into();
                result["cached_tokens"] = report.prompts.cached.into();
                result["seconds"] = report.took.as_secs_f64().into();
            }
        }
        result
    }
}

/// A share in percent, never rounded up to the whole.
fn share(part: u64, whole: u64) -> String {
    let share = part as f64 / whole.max(1) as f64;
    format!("{:.1}%", (share * 1000.0).floor() / 10.0)
}

/// Calls by role, as `3 main, 1 title`.
fn calls(report: &CheckReport) -> String {
    let roles = report.calls_by_role();
    if roles.is_empty() {
        return report.session.calls.to_string();
    }
    let parts: Vec<_> = roles.iter().map(|(role, count)| format!("{count} {role}")).collect();
    parts.join(", ")
}

/// Causes of forks but the first of each lineage.
fn forks(report: &CheckReport) -> String {
    let forks = report.session.forks.iter().filter(|(cause, _)| **cause != ForkCause::NewLineage);
    let parts: Vec<_> = forks
        .map(|(cause, count)| {
            let word = serde_json::to_value(cause).unwrap_or_default();
            format!("{count} {}", word.as_str().unwrap_or_default())
        })
        .collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

fn mark(verdict: Verdict) -> char {
    match verdict {
        Verdict::Passed => '✓',
        Verdict::Warning => '!',
        Verdict::Failed => '✗',
    }
}
